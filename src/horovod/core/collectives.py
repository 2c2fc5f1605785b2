# SPDX-License-Identifier: Apache-2.0
"""What every operation means, once for all frameworks: step 3 of a gradient's way.

Words. An *operation* is one call of one rank; ranks meet by *name* (`allreduce.<name>`), unnamed ones by their order. A
*request* is what crosses into the native core; everything in it but the addresses is fixed by the cache's *key*, so a
tensor that comes back with the same name, dtype and shape costs two addresses and one call (an *entry*). A *staged*
tensor is dense host memory: the user's own, or a private copy.

A call that fails on this rank before its peers can see it would leave them waiting: it is *refused*, and they fail as
well. (Not so for a name that is in flight: that is this rank's own business, the operation in flight is fine.)

Thread safety: all operations may be called from any thread. Blocking: only wait (the forms without _async) and
synchronize.
"""

from __future__ import annotations

import ctypes
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.context import Context
from horovod.core.exceptions import DuplicateNameError, InvalidRequestError
from horovod.core.native import ALLGATHER, ALLREDUCE, BARRIER, BOOL, BROADCAST, SYNC, Adasum, Average, Max, Min, Sum
from horovod.core.operations import Operation, gathered
from horovod.core.process_sets import ProcessSet, global_process_set, number_of
from horovod.core.tensors import Adapter

__all__ = ["Collectives", "Reduction", "resolve_op"]

T = TypeVar("T")
Key = tuple[Any, ...]
# (op, average, prescale, postscale, process set), as the user gave them; a plain tuple, as it is made on every call.
Reduction = tuple[int | None, bool | None, float, float, ProcessSet | None]

# Entries live as long as their generation: names that never come back must not fill it.
MAX_ENTRIES = 16384

# What a rank may get wrong in its own call.
_LOCAL_ERRORS = (TypeError, ValueError, NotImplementedError, OverflowError)


def resolve_op(op: int | None, average: bool | None) -> int:
    """The reduction that `op` and the deprecated `average` ask for; Average where neither does. Raises ValueError."""
    if average is not None:
        if op is not None:
            raise InvalidRequestError(
                f"both op={op!r} and average={average!r} were given: expected one; hint: op alone"
            )
        warnings.warn("average= is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=4)
        return Average if average else Sum
    return Average if op is None else op


class Collectives(Generic[T]):
    """The operations over one framework's tensors. Stateless but for the adapter: one per framework package."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter

    # Allreduce. `tensors` of a grouped call are reduced as a whole: all of them or none.

    def allreduce(
        self,
        tensor: T,
        name: str | None,
        how: Reduction,
        in_place: bool,
        flags: int = 0,
    ) -> Operation:
        """Starts the reduction of one tensor over all ranks."""
        context = contexts.current()
        try:
            op, average, prescale, postscale, process_set = how
            op = resolve_op(op, average)
            set_number = 0 if process_set is global_process_set else number_of(process_set)
            adapter = self._adapter
            if in_place:
                adapter.check_in_place(tensor)
            staged, dtype, shape = adapter.stage(tensor)
            key = (ALLREDUCE, name, op, dtype, shape, prescale, postscale, set_number)
            entry: int | native.Request | None = context.entries.get(key)
            if entry is None:
                entry = self._prepare(context, key, "allreduce", ((dtype, shape),), -1)
            private = staged is not tensor
            output = staged if in_place or private else adapter.empty_like(staged)
            handle = _submit_one(context, entry, adapter.address(staged), adapter.address(output), flags)
        except _LOCAL_ERRORS as error:
            _refuse(context, "allreduce", name, error)
        if not private:
            return Operation(context, handle, output, staged, None)
        return Operation(context, handle, (tensor, output), None, self._write_back if in_place else self._deliver)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        name: str | None,
        how: Reduction,
        in_place: bool,
        flags: int = 0,
    ) -> Operation:
        """Starts the reduction of several tensors, done or failed as a whole. The result is a list, in place a
        tuple."""
        context = contexts.current()
        adapter = self._adapter
        try:
            op, average, prescale, postscale, process_set = how
            op = resolve_op(op, average)
            set_number = number_of(process_set)
            staged, metas = self._stage_group(tensors, in_place)
            key = (ALLREDUCE, name, op, metas, None, prescale, postscale, set_number)
            entry: int | native.Request | None = context.entries.get(key)
            if entry is None:
                entry = self._prepare(context, key, "grouped_allreduce", metas, -1)
            outputs = [
                mine if in_place or mine is not tensor else adapter.empty_like(mine)
                for mine, tensor in zip(staged, tensors, strict=True)
            ]
            handle = _submit_group(
                context, entry, [adapter.address(s) for s in staged], [adapter.address(o) for o in outputs], flags
            )
        except _LOCAL_ERRORS as error:
            _refuse(context, "grouped_allreduce", name, error)
        finish = self._write_back if in_place else self._deliver
        pairs = list(zip(tensors, outputs, strict=True))

        def collect(operation: Operation) -> Any:
            results = [_finished(finish, operation, pair) for pair in pairs]
            return tuple(results) if in_place else results

        return Operation(context, handle, None, staged, collect)

    # Allgather

    def allgather(
        self, tensor: T, name: str | None, process_set: ProcessSet | None, flags: int = 0, with_rows: bool = False
    ) -> Operation:
        """Starts the concatenation of all ranks' tensors along dimension 0, in rank order. `with_rows`: the result is
        (tensor, rows that each rank gave)."""
        context = contexts.current()
        adapter = self._adapter
        try:
            set_number = number_of(process_set)
            staged, dtype, shape = adapter.stage(tensor)
            key = (ALLGATHER, name, None, dtype, shape, 1.0, 1.0, set_number)
            entry: int | native.Request | None = context.entries.get(key)
            if entry is None:
                entry = self._prepare(context, key, "allgather", ((dtype, shape),), -1)
            handle = _submit_one(context, entry, adapter.address(staged), None, flags)
        except _LOCAL_ERRORS as error:
            _refuse(context, "allgather", name, error)

        def collect(operation: Operation) -> Any:
            result, rows = gathered(operation, 0, adapter, dtype)
            delivered = adapter.deliver(result, tensor)
            return (delivered, rows) if with_rows else delivered

        return Operation(context, handle, None, staged, collect)

    # Broadcast

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet | None,
        in_place: bool,
        flags: int = 0,
    ) -> Operation:
        """Starts the copy of the root's tensor to all ranks."""
        context = contexts.current()
        adapter = self._adapter
        try:
            set_number = number_of(process_set)
            if in_place:
                adapter.check_in_place(tensor)
            staged, dtype, shape = adapter.stage(tensor)
            key = (BROADCAST, name, root_rank, dtype, shape, 1.0, 1.0, set_number)
            entry: int | native.Request | None = context.entries.get(key)
            if entry is None:
                entry = self._prepare(context, key, "broadcast", ((dtype, shape),), _checked_root(context, root_rank))
            private = staged is not tensor
            output = staged if in_place or private else adapter.empty_like(staged)
            handle = _submit_one(context, entry, adapter.address(staged), adapter.address(output), flags)
        except _LOCAL_ERRORS as error:
            _refuse(context, "broadcast", name, error)
        if not private:
            return Operation(context, handle, output, staged, None)
        return Operation(context, handle, (tensor, output), None, self._write_back if in_place else self._deliver)

    # Barrier

    def barrier(self, process_set: ProcessSet | None) -> None:
        """Blocks until every rank has called it."""
        context = contexts.current()
        try:
            key = (BARRIER, None, None, None, None, 1.0, 1.0, number_of(process_set))
            entry: int | native.Request | None = context.entries.get(key)
            if entry is None:
                entry = self._prepare(context, key, "barrier", (), -1)
        except _LOCAL_ERRORS as error:
            _refuse(context, "barrier", None, error)
        Operation(context, _submit_group(context, entry, [], [], SYNC), None, None, None).wait()

    def refuse(self, label: str, name: str | None, error: Exception) -> NoReturn:
        """For a sibling whose own step before an operation failed: tells the peers, then raises `error`."""
        _refuse(contexts.current(), label, name, error)

    # What a finished operation gives back

    def _write_back(self, operation: Operation) -> T:
        tensor, staged = operation.value
        self._adapter.write_back(tensor, staged)
        return tensor  # type: ignore[no-any-return]

    def _deliver(self, operation: Operation) -> T:
        tensor, staged = operation.value
        return self._adapter.deliver(staged, tensor)

    def _stage_group(
        self, tensors: Sequence[T], in_place: bool
    ) -> tuple[list[T], tuple[tuple[int, tuple[int, ...]], ...]]:
        if not isinstance(tensors, (list, tuple)):
            raise TypeError(f"a grouped operation takes a list of tensors, seen {type(tensors).__name__}")
        if not tensors:
            raise InvalidRequestError("a grouped operation takes at least one tensor, seen an empty list")
        if in_place:
            for tensor in tensors:
                self._adapter.check_in_place(tensor)
        staged = [self._adapter.stage(tensor) for tensor in tensors]
        return [mine for mine, _, _ in staged], tuple((dtype, shape) for _, dtype, shape in staged)

    def _prepare(
        self, context: Context, key: Key, label: str, metas: tuple[tuple[int, tuple[int, ...]], ...], root_rank: int
    ) -> int | native.Request:
        """A key seen for the first time: checks what it fixes and returns its request; an entry from the second time
        on, so that a name which never comes back leaves nothing behind in the native core."""
        kind, name, op, *_, prescale, postscale, set_number = key
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name: expected a str, seen {type(name).__name__}")
        if name is not None and "\0" in name:
            raise InvalidRequestError(f"name {name!r}: a name cannot hold a NUL character")
        if kind == ALLREDUCE:
            _check_reduction(op, metas)
        for dtype, shape in metas:
            if len(shape) > native.MAX_DIMENSIONS:
                raise InvalidRequestError(f"expected at most {native.MAX_DIMENSIONS} dimensions, seen {len(shape)}")
            if kind == ALLGATHER and not shape:
                raise InvalidRequestError("allgather joins along dimension 0: expected at least one, seen a 0-d tensor")
            assert 0 <= dtype <= BOOL
        request = _request(kind, _wire_name(label, name), op, metas, float(prescale), float(postscale), root_rank)
        request.process_set = set_number
        if key not in context.sighted or len(context.entries) >= MAX_ENTRIES:
            if len(context.sighted) >= MAX_ENTRIES:
                context.sighted.clear()
            context.sighted.add(key)
            return request
        entry = ctypes.c_void_p()
        code = context.library.hvd_prepare(
            context.pointer, ctypes.addressof(request), ctypes.addressof(entry), native.scratch.status_address
        )
        if code != native.OK or entry.value is None:
            context.raise_failure(code, native.scratch.status)
        context.entries[key] = entry.value
        return entry.value


def _finished(finish: Callable[[Operation], Any], operation: Operation, pair: tuple[Any, Any]) -> Any:
    tensor, output = pair
    if output is tensor:
        return tensor
    operation.value = pair
    return finish(operation)


def _wire_name(label: str, name: str | None) -> bytes | None:
    return None if name is None else f"{label}.{name}".encode()


def _check_reduction(op: Any, metas: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    if op == Adasum:
        raise NotImplementedError("op=Adasum is not supported yet\nhint: Average and Sum are")
    try:
        known = 0 <= operator.index(op) < len(native.OP_NAMES)
    except TypeError:
        known = False
    if not known:
        raise InvalidRequestError(f"op={op!r}: expected one of {', '.join(native.OP_NAMES)}")
    for dtype, _ in metas:
        if dtype == BOOL and op not in (Min, Max):
            raise InvalidRequestError(
                f"a bool tensor has Min (and) and Max (or), seen op={native.OP_NAMES[op]}\nhint: cast it to an integer"
            )


def _checked_root(context: Context, root_rank: Any) -> int:
    root = operator.index(root_rank)
    if not 0 <= root < context.size:
        raise InvalidRequestError(f"root_rank={root}: expected 0 to {context.size - 1}, as the size is {context.size}")
    return root


def _request(
    kind: int,
    wire_name: bytes | None,
    op: int | None,
    metas: tuple[tuple[int, tuple[int, ...]], ...],
    prescale: float,
    postscale: float,
    root_rank: int,
) -> native.Request:
    tensors = (native.Tensor * len(metas))()
    for tensor, (dtype, shape) in zip(tensors, metas, strict=True):
        tensor.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        tensor.ndim = len(shape)
        tensor.dtype = dtype
    return native.Request(
        size=ctypes.sizeof(native.Request),
        kind=kind,
        op=Sum if kind != ALLREDUCE or op is None else op,
        root_rank=root_rank,
        ntensors=len(metas),
        tensor_size=ctypes.sizeof(native.Tensor),
        name=wire_name,
        tensors=tensors,
        prescale=prescale,
        postscale=postscale,
    )


def _submit_one(context: Context, entry: int | native.Request, source: int, target: int | None, flags: int) -> int:
    """The hot path: two addresses and one call. Returns the native handle."""
    scratch = native.scratch
    if not isinstance(entry, int):
        return _submit_request(context, entry, [source], [target], flags)
    scratch.input[0] = source
    scratch.output[0] = target
    code = context.library.hvd_submit_entry(
        context.pointer,
        entry,
        scratch.input_address,
        scratch.output_address,
        flags,
        scratch.handle_address,
        scratch.status_address,
    )
    if code:
        context.raise_failure(code, scratch.status)
    return scratch.handle.value


def _submit_group(
    context: Context, entry: int | native.Request, sources: list[int], targets: list[int], flags: int
) -> int:
    if not isinstance(entry, int):
        return _submit_request(context, entry, sources, targets, flags)
    scratch = native.scratch
    inputs = (ctypes.c_void_p * len(sources))(*sources)
    outputs = (ctypes.c_void_p * len(targets))(*targets)
    code = context.library.hvd_submit_entry(
        context.pointer,
        entry,
        ctypes.addressof(inputs),
        ctypes.addressof(outputs),
        flags,
        scratch.handle_address,
        scratch.status_address,
    )
    if code:
        context.raise_failure(code, scratch.status)
    return scratch.handle.value


def _submit_request(
    context: Context,
    request: native.Request,
    sources: Sequence[int],
    targets: Sequence[int | None],
    flags: int,
) -> int:
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        request.tensors[index].input = source
        request.tensors[index].output = target
    request.flags = flags
    scratch = native.scratch
    code = context.library.hvd_submit(
        context.pointer, ctypes.addressof(request), scratch.handle_address, scratch.status_address
    )
    if code:
        context.raise_failure(code, scratch.status)
    return scratch.handle.value


def _refuse(context: Context, label: str, name: Any, error: Exception) -> NoReturn:
    """Tells the peers why this rank's call failed, then raises the same error with rank and operation in front."""
    if isinstance(error, DuplicateNameError):
        raise error
    shown = f"{label} of an unnamed tensor" if name is None else f"{label} of `{name}`"
    text = f"rank {context.rank}: {shown}: {error}"
    # A name that is no str is what the peers may well have as one: they wait under it.
    wire_name = None if name is None else f"{label}.{name}".partition("\0")[0]
    text += context.refuse(wire_name, 0, str(error))
    # Subclasses of ValueError may take other arguments than a text (UnicodeEncodeError).
    raise (type(error) if type(error) in (TypeError, NotImplementedError) else InvalidRequestError)(text) from error
