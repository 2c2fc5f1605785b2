# SPDX-License-Identifier: Apache-2.0
"""Horovod's errors as torch's: each is also a torch.distributed.DistBackendError."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.distributed import DistBackendError

from horovod.core import exceptions
from horovod.core.context import NotAMemberError
from horovod.core.exceptions import DuplicateNameError, HorovodInternalError, NotRunningError

__all__ = ["BackendError", "DestroyedError", "as_torch", "told_as_torch"]

Method = TypeVar("Method", bound=Callable[..., Any])

BackendError = DistBackendError
_OF_THIS_RANK = (DuplicateNameError, NotAMemberError)  # for which no peer waits


def _both(kind: type[HorovodInternalError]) -> type[HorovodInternalError]:
    name = f"{kind.__name__}OfBackend"
    return type(name, (kind, DistBackendError), {"__module__": __name__, "__qualname__": name, "__doc__": kind.__doc__})


_KINDS = {
    kind: _both(kind)
    for kind in vars(exceptions).values()
    if isinstance(kind, type) and issubclass(kind, HorovodInternalError)
}
globals().update({both.__name__: both for both in _KINDS.values()})  # so that they can be pickled
DestroyedError = _KINDS[NotRunningError]


def as_torch(error: BaseException) -> BaseException:
    """The same error, of a class that is also torch's; any other error as it is."""
    both = _KINDS.get(type(error))  # type: ignore[arg-type]
    if both is not None:
        error.__class__ = both
    return error


def told_as_torch(label: str | None) -> Callable[[Method], Method]:
    """A decorator of methods of a group whose errors are raised as torch's. torch.compile leaves them as they are.

    `label`: the operation of the core that a call becomes. If this rank's call fails before that operation
    starts, the waiting peers are told. None: no peer waits.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def told(group: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(group, *args, **kwargs)
            except HorovodInternalError as error:
                raise as_torch(error) from None
            except Exception as error:
                if label is not None and not getattr(error, "is_told", isinstance(error, _OF_THIS_RANK)):
                    group._tell(label, error)
                raise

        left_alone = torch._disable_dynamo(told)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            # torch's decorator imports the compiler, which takes a second and leaves a folder behind.
            return (left_alone if "torch._dynamo" in sys.modules else told)(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
