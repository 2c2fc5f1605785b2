# SPDX-License-Identifier: Apache-2.0
"""Collectives as operations of MXNet's engine: pushes them, with native/shims/mxnet as what MXNet runs (step 4).

MXNet orders them by the arrays that they read and write, as it does with its own operations. Python does not wait.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError, check_call

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.context import Context
from horovod.core.exceptions import HorovodInternalError, NotRunningError, RankLeftError
from horovod.core.telemetry.arrivals import note_framework_waits
from horovod.core.wording import tell
from horovod.settings import current_environment

__all__ = ["forget_failures", "generation", "library", "new_step", "push"]

# FnProperty of MXNet. Prioritized: on a thread for what shall not wait behind computations, which would hold up the
# other ranks.
_NORMAL, _CPU_PRIORITIZED = 0, 3
_ROOM_FOR_FAILURES = 4096  # a step of the largest networks has fewer calls; 13 ms once, on an EPYC


class Generation:
    """The generation that runs. `number`: as the errors of its calls have it; `has_told`: whether one was raised."""

    number = 0
    has_told = False


generation = Generation()


class _Api(ctypes.Structure):
    """hvd_mxnet_api."""

    _fields_ = [
        (name, c_void_p)
        for name in ("copy", "free", "to_dlpack", "free_dlpack", "last_error", "make_error", "end_error", "reorder")
    ]


class _Context(ctypes.Structure):
    """mxnet::Context."""

    _fields_ = [("dev_type", c_int), ("dev_id", c_int)]


_CPU = _Context(1, 0)  # all arrays are in host memory

# dmlc::Error is a std::runtime_error with nothing added.
_FUNCTIONS = (
    "MXShallowCopyNDArray",
    "MXNDArrayFree",
    "MXNDArrayToDLPack",
    "MXNDArrayCallDLPackDeleter",
    "MXGetLastError",
    "_ZNSt13runtime_errorC1EPKc",
    "_ZNSt13runtime_errorD1Ev",
)


@functools.cache
def library() -> ctypes.CDLL:
    """The native core, with the functions of this MXNet. Raises ImportError if they are not what we know."""
    if not mx.__version__.startswith("1.9."):
        raise ImportError(f"horovod.mxnet is for MXNet 1.9, got {mx.__version__}\nhint: pip install 'mxnet==1.9.1'")
    if current_environment().get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        raise ImportError(
            "MXNET_ENGINE_TYPE=NaiveEngine forgets the errors of asynchronous operations, which Horovod's are\n"
            "hint: unset it; to find what fails, read each result as soon as it is made"
        )
    opened = native.library()
    opened.hvd_mxnet_use.argtypes = opened.hvd_mxnet_attach.argtypes = [c_void_p]
    opened.hvd_mxnet_use.restype, opened.hvd_mxnet_attach.restype = None, c_uint64
    opened.hvd_mxnet_new_step.argtypes, opened.hvd_mxnet_new_step.restype = [c_uint32], c_void_p
    opened.hvd_mxnet_new.argtypes = [c_void_p] * 4
    opened.hvd_mxnet_new.restype = c_void_p
    names = _FUNCTIONS + (("_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv",) if _has_own_layouts() else ())
    try:
        addresses = [ctypes.cast(getattr(_LIB, name), c_void_p) for name in names]
    except AttributeError as error:
        raise ImportError(f"Horovod does not know this build of MXNet {mx.__version__}: {error}") from None
    opened.hvd_mxnet_use(ctypes.byref(_Api(*addresses)))
    contexts.watch(_attach)
    note_framework_waits()
    atexit.register(_end)
    return opened


def _attach(context: Context | None) -> None:
    _check_identity()
    if context is not None:
        _make_room_for_failures()
        generation.has_told = False
    generation.number = native.library().hvd_mxnet_attach(None if context is None else context.pointer)


def _end() -> None:
    """Runs at exit after shutdown, and before MXNet would raise failures of results that were never read.

    A script that has got an error has ended for that reason, so the failures of its other calls are not reported.
    """
    had_told, unread = generation.has_told, None
    while True:
        try:
            mx.nd.waitall()
        except (NotRunningError, RankLeftError):
            continue  # it has failed because the ranks exit, and the script has ended
        except HorovodInternalError as error:
            unread = unread or error
            continue
        break
    if unread is not None and not had_told:
        tell(f"horovod: error in a result that was never read: {type(unread).__name__}: {unread}")


def _identity(array: Any) -> int | None:
    """The identity of the memory that arrays share: MXNet orders operations by it."""
    return c_void_p.from_address(array.handle.value).value  # NDArray::ptr_


@functools.cache
def _check_identity() -> None:
    # Not while we are imported: MXNet's engine starts its threads with the first array, and a fork would lose them.
    array, other = mx.nd.zeros((4,)), mx.nd.zeros((4,))
    if not _identity(array) == _identity(array[1:3]) != _identity(other):
        raise ImportError(f"Horovod does not know how MXNet {mx.__version__} lays out its arrays")


@functools.cache
def _make_room_for_failures() -> None:
    """MXNet's list of what has failed shall not move while its threads search it (native/shims/mxnet/call.cc)."""
    mx.nd.waitall()  # what has failed so far is the script's to hear
    array = mx.nd.zeros((1,))
    for _ in range(_ROOM_FOR_FAILURES):
        _push("room", library().hvd_mxnet_fail, None, None, (), (array,), _NORMAL, even_after_failure=True)
    forget_failures()


def forget_failures() -> None:
    """Drops all failures so far: reading an array after this does not raise them."""
    while True:
        try:
            mx.nd.waitall()
        except MXNetError:
            continue
        return


def new_step(calls: int) -> int | None:
    """For `calls` pushes, after the last of which no rank waits for more."""
    step: int | None = library().hvd_mxnet_new_step(calls) if calls else None
    return step


def _handles(arrays: Sequence[Any]) -> Any:
    return (c_void_p * len(arrays))(*[array.handle for array in arrays])


def push(
    label: str,
    request: native.Request,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    order: Sequence[Any],
    priority: int,
    step: int | None,
) -> None:
    """Has MXNet's engine run a request once the arrays are ready. An output may be its input.

    order: arrays that the operation counts as writing, so that others which do so wait for it.
    """
    written = {_identity(array): array for array in (*outputs, *order)}
    read = {_identity(array): array for array in inputs if _identity(array) not in written}
    if _has_own_layouts():  # the call itself does it for what it writes
        for array in read.values():
            _LIB._ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv(array.handle)
    call = library().hvd_mxnet_new(ctypes.byref(request), _handles(inputs), _handles(outputs), step)
    if not call:
        check_call(-1)
    run, delete = library().hvd_mxnet_run, library().hvd_mxnet_delete
    _push(label, run, call, delete, list(read.values()), list(written.values()), _CPU_PRIORITIZED, priority)


def _push(
    label: str,
    run: Any,
    call: int | None,
    delete: Any,
    read: Sequence[Any],
    written: Sequence[Any],
    thread: int,
    priority: int = 0,
    even_after_failure: bool = False,
) -> None:
    check_call(
        _LIB.MXEnginePushAsyncND(
            run,
            c_void_p(call),
            delete,
            ctypes.byref(_CPU),
            _handles(read),
            c_int(len(read)),
            _handles(written),
            c_int(len(written)),
            ctypes.byref(c_int(thread)),
            c_int(priority),
            c_char_p(f"horovod_{label}".encode()),
            ctypes.c_bool(even_after_failure),
        )
    )


@functools.cache
def _has_own_layouts() -> bool:
    """True if this MXNet keeps some arrays in layouts of oneDNN, which are undone before an array is sent."""
    return bool(mx.runtime.Features().is_enabled("MKLDNN"))
