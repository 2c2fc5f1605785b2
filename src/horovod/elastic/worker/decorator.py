# SPDX-License-Identifier: Apache-2.0
"""run(), the decorator of training functions, for frameworks that raise errors of their own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from horovod.core import context as contexts
from horovod.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.elastic.worker.wrapper import run_fn

__all__ = ["run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `func(state, ...)` survive the loss of workers, and changes of the hosts.

    It starts from its top in every new world, so its loops must begin at values of the state. Call no operation between
    hvd.init() and this function: a worker that joins is alone there. It returns what `func` returns. It raises
    SystemExit in a worker that is removed, and lets errors of the script through. If the job is not elastic, it sends
    the state once and calls `func`.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with _losses():
            return func(*args, **kwargs)

    return run_fn(translated, lambda: None)


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """If the world has ended, whatever is raised comes from that.

    TensorFlow and JAX have errors of their own for what fails in a compiled step. Keras may add another one while it
    cleans up.
    """
    try:
        yield
    except (HorovodInternalError, HostsUpdatedInterrupt):
        raise
    except Exception as error:
        cause = contexts.current().end_seen() if contexts.is_initialized() else None
        if not isinstance(cause, HorovodInternalError):
            raise
        raise cause from error
