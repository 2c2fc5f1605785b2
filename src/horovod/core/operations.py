# SPDX-License-Identifier: Apache-2.0
"""Submitting a request, and the submitted operation until its result is taken (steps 4 and 8).

And the table of those that users hold a number of.

An Operation keeps every tensor alive that the engine may still touch, and its generation. Waiting frees the GIL, drives
the engine, and lets Python's signal handlers run: an exception from one of them (KeyboardInterrupt) leaves the
operation in the table, so that its memory outlives the engine's use of it. An operation that is dropped without being
waited for (an exception on the way, say) leaves its tensors in a list until the engine is done with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from horovod.core import native
from horovod.core.calls import WAIT_SLICE_MS, Ended, finish, run, submit, unfinished
from horovod.core.context import Context
from horovod.core.exceptions import InvalidRequestError
from horovod.core.gpus import StreamHandle
from horovod.core.requests import Prepared, PreparedOnGpu
from horovod.core.tensors import Adapter
from horovod.world.topology import ranks_text

__all__ = [
    "Operation",
    "TimeLimit",
    "after_run",
    "gathered",
    "number_given",
    "poll",
    "register",
    "rows_given",
    "run_all",
    "run_one",
    "submit_group",
    "submit_one",
    "synchronize",
    "take_result",
]

_pending: dict[int, Operation] = {}
_waiting: dict[int, tuple[Context, Any]] = {}  # by thread, what it waits for
_numbers = itertools.count(1)
_Kept = tuple[Context, c_uint64, tuple[Any, ...]]  # context, handle, what must live until it is done
_dropped: list[_Kept] = []
_launched: list[_Kept] = []  # for which another stream waits than the one that submitted them; in that order


def run_one(
    context: Context, request: Prepared | native.Request, source: int, target: int, keep: Any
) -> Operation | None:
    """Submits and waits, in one native call if the request is prepared.

    None: it is done. Otherwise the operation, still to be waited for. Raises only what submitting raises. `keep`: as of
    Operation.
    """
    if type(request) is not Prepared:
        return Operation(context, submit_one(context, request, source, target, native.SYNC), None, keep, None)
    return after_run(context, run(context.pointer, request.entry, source, target, keep), keep)


def after_run(context: Context, ended: Ended | None, keep: Any) -> Operation | None:
    """Turns what calls.run has returned into what run_one returns."""
    if ended is None:
        if _dropped:
            _forget_done()
        return None
    code, handle, status = ended
    if not handle:
        return context.raise_failure(code, native.Status.from_buffer_copy(status))
    operation = Operation(context, c_uint64(handle), None, keep, None)
    del unfinished[context.pointer, handle]
    return operation


def submit_one(
    context: Context, request: Prepared | native.Request, source: int, target: int | None, flags: int
) -> c_uint64:
    """The hot path: two addresses and one call. Returns the native handle."""
    if type(request) is not Prepared:
        return _submit_otherwise(context, request, [source], [target], flags)
    handle = submit(context.pointer, request.entry, source, target or 0, flags)
    if isinstance(handle, tuple):
        code, _, status = handle
        context.raise_failure(code, native.Status.from_buffer_copy(status))
    return c_uint64(handle)


def submit_group(
    context: Context,
    request: Prepared | native.Request,
    sources: Sequence[int],
    targets: Sequence[int | None],
    flags: int,
) -> c_uint64:
    """As submit_one, of several tensors."""
    if type(request) is not Prepared:
        return _submit_otherwise(context, request, sources, targets, flags)
    handle = c_uint64()
    code = context.submit_entry(
        context.argument,
        c_void_p(request.entry),
        (c_void_p * len(sources))(*sources),
        (c_void_p * len(targets))(*targets),
        flags,
        byref(handle),
        native.scratch.status_argument,
    )
    if code:
        context.raise_failure(code, native.scratch.status)
    return handle


def _submit_otherwise(
    context: Context,
    request: Prepared | native.Request,
    sources: Sequence[int],
    targets: Sequence[int | None],
    flags: int,
) -> c_uint64:
    """Submits a request that is not prepared, or whose tensors lie on a GPU."""
    if isinstance(request, PreparedOnGpu):
        return _submit_on_gpu(context, request, sources, targets, flags)
    assert isinstance(request, native.Request)
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        request.tensors[index].input = source
        request.tensors[index].output = target
    request.flags = flags
    handle = c_uint64()
    code = context.library.hvd_submit(
        context.pointer, ctypes.addressof(request), ctypes.addressof(handle), native.scratch.status_address
    )
    if code:
        context.raise_failure(code, native.scratch.status)
    return handle


def _submit_on_gpu(
    context: Context, request: PreparedOnGpu, sources: Sequence[int], targets: Sequence[int | None], flags: int
) -> StreamHandle:
    handle = StreamHandle.of(request.gpu)
    code = context.library.hvd_submit_entry_on(
        context.pointer,
        request.entry,
        (c_void_p * len(sources))(*sources),
        (c_void_p * len(targets))(*targets),
        flags,
        None,
        handle.stream,
        byref(handle),
        native.scratch.status_address,
    )
    if code:
        context.raise_failure(code, native.scratch.status)
    context.uses_gpus = True
    return handle


class TimeLimit(NamedTuple):
    """How long a caller waits for an operation. Then the generation ends on all ranks, with the text that `say` makes.

    `say` gets the seconds, and in words the ranks of this host that are known to be missing. A submitted operation
    cannot be taken back, so that there is no other way out.
    """

    seconds: float
    say: Callable[[float, str], str]

    def deadline(self) -> float:
        """As of time.monotonic(), if it begins now."""
        return time.monotonic() + self.seconds


class Operation:
    """`value`: the result, or what `collect(self)` makes the result of. `keep`: tensors to keep alive until done."""

    __slots__ = ("collect", "context", "handle", "keep", "value")

    def __init__(
        self, context: Context, handle: c_uint64, value: Any, keep: Any, collect: Callable[[Operation], Any] | None
    ) -> None:
        self.context = context
        self.handle: c_uint64 | None = handle
        self.value = value
        self.keep = keep
        self.collect = collect

    def wait(self, number: int | None = None, limit: TimeLimit | None = None, deadline: float | None = None) -> Any:
        """Blocks until the operation is done here; returns its result or raises its error. To be called once.

        On a GPU, until it is launched: the current stream waits for the rest (core/gpus.py).

        `number`: the handle that the operation gets back in the table if a signal handler raises meanwhile.
        `deadline`: of the limit, by time.monotonic(); None: the limit begins now.
        """
        context = self.context
        handle: Any = self.handle
        if handle is None:  # a signal handler's exception came between the end of the operation and that of this call
            return self.value
        status = native.scratch.status_argument
        on_gpu = type(handle) is not c_uint64
        wait = handle.waiter(context) if on_gpu else context.wait
        if limit is not None and deadline is None:
            deadline = limit.deadline()
        try:
            slice_ms = _slice_ms(deadline)
            if not on_gpu and limit is None and self.collect is None:
                if finish(context.pointer, handle.value, self):
                    if _dropped:
                        _forget_done()
                    return self.value
                slice_ms = 0  # it has waited; why it has ended is to be told
            code = wait(context.argument, handle, slice_ms, status)
            if code == native.PENDING:
                code = _wait_on(context, handle, wait, status, limit, deadline)
        except BaseException:
            _pending[next(_numbers) if number is None else number] = self
            raise
        try:
            if code != native.OK:
                # Here, in one line: every rank prints the way to it. Not from a local name: the traceback would hold
                # this frame, and this frame the error and so the generation, until the next garbage collection.
                raise context.failure_of(code, native.scratch.status)
            return self.value if self.collect is None else self.collect(self)
        finally:
            if on_gpu and not handle.has_ended(context):
                _launched.append((context, handle, (self.value, self.keep, self.collect)))
                _forget_launched()
            else:
                context.release(context.argument, handle)
            self.handle = None
            if _dropped:
                _forget_done()

    def __del__(self) -> None:
        # Not in a forked child, nor if the generation has been freed in the same garbage collection.
        if self.handle is not None and os.getpid() == self.context.process_id and not self.context.is_freed:
            _dropped.append((self.context, self.handle, (self.value, self.keep, self.collect)))
            _forget_done()

    def done(self) -> bool:
        """True if wait() would return or raise at once. May run collectives on this thread."""
        context = self.context
        if self.handle is None:
            return True
        code = context.library.hvd_poll_launch(context.pointer, self.handle, native.scratch.status_address)
        return bool(code != native.PENDING)


def _slice_ms(deadline: float | None) -> int:
    """For so long Python's signal handlers may wait."""
    if deadline is None:
        return WAIT_SLICE_MS
    return max(1, min(WAIT_SLICE_MS, math.ceil(1000 * (deadline - time.monotonic()))))


def _wait_on(
    context: Context,
    handle: Any,
    wait: Callable[..., int],
    status: Any,
    limit: TimeLimit | None,
    deadline: float | None,
) -> int:
    """Waits as long as it takes. The engine hears whether another thread of this process can still submit something."""
    thread = threading.get_ident()
    before = _waiting.get(thread)  # of the code that a signal handler has interrupted
    _waiting[thread] = (context, handle)
    code = native.PENDING
    try:
        while code == native.PENDING:
            if limit is not None and deadline is not None and time.monotonic() >= deadline:
                missing = _missing(context, handle)
                context.abort(
                    limit.say(limit.seconds, ranks_text(missing) if missing else ""), missing[0] if missing else -1
                )
                limit = deadline = None
            _declare_blocked(context)
            code = wait(context.argument, handle, _slice_ms(deadline), status)
        return code
    finally:
        if before is None:
            del _waiting[thread]
        else:
            _waiting[thread] = before
        if code == native.PENDING:
            context.library.hvd_declare_blocked(context.pointer, None, 0, None)


def _missing(context: Context, handle: Any) -> list[int]:
    """The ranks of this host that have not called it, as far as this rank knows."""
    ranks, count = (c_int32 * context.size)(), c_uint32(context.size)
    code = context.library.hvd_missing(context.pointer, handle, ranks, byref(count), native.scratch.status_address)
    if code:
        context.raise_failure(code, native.scratch.status)
    return ranks[: count.value]


def _declare_blocked(context: Context) -> None:
    ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith("horovod-")}
    waiting = [_waiting.get(thread) for thread in sys._current_frames() if thread not in ours]
    handles = [one[1].value for one in waiting if one is not None and one[0] is context]
    count = len(handles) if len(handles) == len(waiting) else 0
    context.library.hvd_declare_blocked(context.pointer, (c_uint64 * count)(*handles[:count]), count, None)


def _forget_done() -> None:
    """Lets go of the dropped operations that the engine has finished.

    Runs at any moment (a destructor calls it), so it leaves the thread's status alone.
    """
    for entry in list(_dropped):
        context, handle, _ = entry
        if context.is_freed or context.library.hvd_poll(context.pointer, handle, None) != native.PENDING:
            _let_go(_dropped, entry)


def _forget_launched() -> None:
    """Lets go of those calls on GPUs that have ended, from the oldest on."""
    for entry in list(_launched):
        context, handle, _ = entry
        if not context.is_freed and context.library.hvd_poll(context.pointer, handle, None) == native.PENDING:
            return
        _let_go(_launched, entry)


def _let_go(kept: list[_Kept], entry: _Kept) -> None:
    with contextlib.suppress(ValueError):  # another thread has done it, or a destructor in the middle of this
        kept.remove(entry)
        if not entry[0].is_freed:
            entry[0].library.hvd_release(entry[0].pointer, entry[1])


def register(operation: Operation) -> int:
    """Puts an operation into the table; returns the handle that users hold."""
    number = next(_numbers)
    _pending[number] = operation
    return number


def poll(handle: int) -> bool:
    """True if synchronize(handle) would return at once.

    Raises ValueError for a handle that is unknown or was waited for.
    """
    operation = _pending.get(handle)
    if operation is None:
        raise InvalidRequestError(f"poll: handle {handle!r} is unknown, or has been synchronized already")
    return operation.done()


def synchronize(handle: Any) -> Any:
    """Blocks until the operation is done and returns its result, or raises its error. None for an unknown handle.

    `handle`: a number, or the function that sparse_allreduce_async of PyTorch returns.
    """
    operation = _pending.pop(handle, None)
    if operation is None:
        return handle() if callable(handle) else None
    return operation.wait(handle)


def run_all(start: Callable[[Any], Operation], items: Iterable[Any]) -> list[Any]:
    """Starts an operation for each item, then waits for all. Returns their results, or raises the first error.

    An error in one must not leave the peers without the others.
    """
    started: list[Operation] = []
    results: list[Any] = []
    first_error: Exception | None = None
    for item in items:
        try:
            started.append(start(item))
        except Exception as error:
            first_error = first_error or error
    for operation in started:
        try:
            results.append(operation.wait())
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return results


def gathered(
    operation: Operation, index: int, adapter: Adapter[Any], staged: Any, dtype: int, members: int
) -> tuple[Any, list[int]]:
    """Copies result `index` of an allgather or alltoall of `staged` out of the engine.

    Returns (tensor, rows that came from each member).
    """
    result = _result(operation, index)
    shape = tuple(result.shape[: result.ndim])
    tensor: Any
    if isinstance(operation.handle, StreamHandle):
        tensor = staged.empty(shape)
        _copy_on_stream(operation.context, operation.handle, index, adapter.address(tensor))
    else:
        tensor = adapter.empty(shape, dtype)
        count_bytes = math.prod(shape) * native.DTYPE_BYTES[dtype]
        if count_bytes:
            ctypes.memmove(adapter.address(tensor), result.data, count_bytes)
    return tensor, list(result.rows[:members])


def take_result(operation: Operation, address: int, count: int) -> None:
    """Copies the result of an operation of tensors on a GPU to `address`, which has room for `count` elements."""
    result = _result(operation, 0)
    given = math.prod(result.shape[: result.ndim])
    if given != count:
        raise InvalidRequestError(f"expected an output of {given} elements, got {count}")
    assert isinstance(operation.handle, StreamHandle)
    _copy_on_stream(operation.context, operation.handle, 0, address)


def rows_given(operation: Operation, members: int) -> list[int]:
    """The rows that came from each member."""
    return list(_result(operation, 0).rows[:members])


def _copy_on_stream(context: Context, handle: StreamHandle, index: int, target: int) -> None:
    code = context.library.hvd_copy_result(
        context.pointer, handle, index, target, handle.waiting, native.scratch.status_address
    )
    if code:
        context.raise_failure(code, native.scratch.status)


def number_given(operation: Operation) -> int:
    """The one number that adding a process set, a join or a receive results in."""
    return int(_result(operation, 0).rows[0])


def _result(operation: Operation, index: int) -> native.Result:
    """Result `index` as it lies in the engine, valid until the handle is released."""
    context = operation.context
    result = native.Result(size=ctypes.sizeof(native.Result))
    code = context.library.hvd_get_result(
        context.pointer, operation.handle, index, ctypes.addressof(result), native.scratch.status_address
    )
    if code != native.OK:
        context.raise_failure(code, native.scratch.status)
    return result
