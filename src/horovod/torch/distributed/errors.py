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
from horovod.core.exceptions import HorovodInternalError, NotRunningError

__all__ = ["BackendError", "DestroyedError", "as_torch", "told_as_torch"]

Method = TypeVar("Method", bound=Callable[..., Any])

BackendError = DistBackendError


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


def told_as_torch(method: Method) -> Method:
    """A decorator of methods whose errors are raised as torch's. torch.compile leaves them as they are."""

    @functools.wraps(method)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except HorovodInternalError as error:
            raise as_torch(error) from None

    left_alone = torch._disable_dynamo(told)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        # torch's decorator imports the compiler, which takes a second and leaves a folder behind.
        return (left_alone if "torch._dynamo" in sys.modules else told)(*args, **kwargs)

    return call  # type: ignore[return-value]
