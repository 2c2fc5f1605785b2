# SPDX-License-Identifier: Apache-2.0
"""The native calls of operations on one small tensor, whose latency they set (step 4).

An extension makes them where CPython has a limited interface (native/shims/python). Elsewhere ctypes does the same, in
longer time. Both free the GIL.

`run(context, entry, source, target, keep)`: submits and waits. None if the operation is done. Otherwise (code, handle,
status): the operation has failed if the handle is 0; else it is still to be waited for, and `unfinished` holds `keep`
under (context, handle). It stays there if a signal handler's exception ends the caller: the engine may still write.
`submit(context, entry, source, target, flags)`: the handle, or (code, 0, status).
`finish(context, handle, operation)`: waits; True if the operation is done and has not failed. Then it is released, and
its handle is None before a signal handler's exception can end the caller.
`find(requests, tensor, *parts)`: the request of `requests` with the key (*parts, dtype, shape) of a tensor of PyTorch's
that is dense host memory without any conversion; None for any other, and if there is none.
`run_known(requests, tensor, context, *parts)`: `run` in place with what `find` gives; False if there is none.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64, c_void_p
from typing import Any, TypeAlias

from horovod.core import native

__all__ = ["Ended", "find", "finish", "forget", "run", "run_known", "submit", "unfinished"]

Ended: TypeAlias = tuple[int, int, bytes]

WAIT_SLICE_MS = 1000  # for so long Python's signal handlers may wait

unfinished: dict[tuple[int, int], Any] = {}


def forget(context: int) -> None:
    """Lets go of what a freed context has not finished."""
    for key in [key for key in unfinished if key[0] == context]:
        unfinished.pop(key, None)


def _run_by_ctypes(context: int, entry: int, source: int, target: int, keep: Any) -> Ended | None:
    handle, scratch = c_uint64(), native.scratch
    try:
        code = native.library().hvd_run_entry(
            context, entry, source, target, WAIT_SLICE_MS, byref(handle), scratch.status_address
        )
    finally:
        if handle.value:
            unfinished[context, handle.value] = keep
    return (code, handle.value, bytes(scratch.status)) if code else None


def _submit_by_ctypes(context: int, entry: int, source: int, target: int, flags: int) -> int | Ended:
    handle, scratch = c_uint64(), native.scratch
    code = native.library().hvd_submit_entry(
        context, entry, byref(c_void_p(source)), byref(c_void_p(target)), flags, byref(handle), scratch.status_address
    )
    return (code, 0, bytes(scratch.status)) if code else handle.value


def _finish_by_ctypes(context: int, handle: int, operation: Any) -> bool:
    library = native.library()
    is_done = bool(library.hvd_wait(context, handle, WAIT_SLICE_MS, native.scratch.status_address) == native.OK)
    if is_done:
        operation.handle = None
        library.hvd_release(context, handle)
    return is_done


def _find(requests: dict[Any, Any], tensor: Any, *parts: Any) -> Any:
    try:
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
            return requests.get((*parts, tensor.dtype, tensor.shape))
    except (AttributeError, RuntimeError, TypeError):
        pass  # the long way says what is wrong
    return None


def _run_known(requests: dict[Any, Any], tensor: Any, context: int, *parts: Any) -> Ended | None | bool:
    request = _find(requests, tensor, *parts)
    if request is None:
        return False
    address = tensor.data_ptr()
    return run(context, request.entry, address, address, tensor)


try:
    from horovod.core import _calls
except ImportError:  # PyPy, or a CPython without a GIL
    run, submit, finish, find = _run_by_ctypes, _submit_by_ctypes, _finish_by_ctypes, _find
    run_known = _run_known
else:
    run, submit, finish, find = _calls.run, _calls.submit, _calls.finish, _calls.find
    run_known = _calls.run_known


def bind(library: ctypes.CDLL) -> None:
    """Tells the extension where the library's functions are."""
    if run is not _run_by_ctypes:
        functions = library.hvd_run_entry, library.hvd_submit_entry, library.hvd_wait, library.hvd_release
        _calls.bind(unfinished, *(ctypes.cast(function, c_void_p).value or 0 for function in functions))
