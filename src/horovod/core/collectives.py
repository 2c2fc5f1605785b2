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
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    INT32,
    INT64,
    REDUCESCATTER,
    SYNC,
    Average,
    Sum,
)
from horovod.core.operations import Operation, gathered
from horovod.core.process_sets import ProcessSet, global_process_set, number_of
from horovod.core.requests import LOCAL_ERRORS, Key, Metas, prepare, refuse, submit_group, submit_one
from horovod.core.tensors import Adapter

__all__ = ["Collectives", "Reduction", "checked_root", "resolve_op", "resolved"]

T = TypeVar("T")
# (op, average, prescale, postscale, process set), as the user gave them; a plain tuple, as it is made on every call.
Reduction = tuple[int | None, bool | None, float, float, ProcessSet | None]


def resolve_op(op: int | None, average: bool | None) -> int:
    """The reduction that `op` and the deprecated `average` ask for; Average where neither does. Raises ValueError."""
    if average is not None:
        if op is not None:
            raise InvalidRequestError(
                f"both op={op!r} and average={average!r} were given: expected one; hint: op alone"
            )
        warnings.warn("average= is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=5)
        return Average if average else Sum
    if op is True or op is False:  # which would count as the numbers of Sum and Average
        raise InvalidRequestError(f"op={op!r}: expected one of {', '.join(native.OP_NAMES)}")
    return Average if op is None else op


def resolved(how: Reduction) -> tuple[int, float, float, int]:
    """(op, prescale, postscale, number of the process set). Raises ValueError or TypeError."""
    op, average, prescale, postscale, process_set = how
    # A scale may come as a tensor, whose value can change; the cache's key must not.
    if type(prescale) is not float or type(postscale) is not float:
        prescale, postscale = float(prescale), float(postscale)
    if prescale != prescale or postscale != postscale:  # also no key of a cache: it differs from itself
        raise InvalidRequestError(
            f"prescale_factor={prescale}, postscale_factor={postscale}: expected numbers, seen not-a-number"
        )
    set_number = 0 if process_set is global_process_set else number_of(process_set)
    return resolve_op(op, average), prescale, postscale, set_number


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
            op, prescale, postscale, set_number = resolved(how)
            adapter = self._adapter
            if in_place:
                adapter.check_in_place(tensor)
            staged, dtype, shape = adapter.stage(tensor)
            key = (ALLREDUCE, name, op, dtype, shape, prescale, postscale, set_number)
            entry: int | native.Request | None = context.entries.get(key)
            if entry is None:
                entry = prepare(context, key, "allreduce", ((dtype, shape),))
            private = staged is not tensor
            output = staged if in_place or private else adapter.empty_like(staged)
            handle = submit_one(context, entry, adapter.address(staged), adapter.address(output), flags)
        except LOCAL_ERRORS as error:
            refuse(context, "allreduce", name, error, _told_in(how[-1]))
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
            op, prescale, postscale, set_number = resolved(how)
            staged, metas = self._stage_group(tensors, in_place)
            key = (ALLREDUCE, name, op, metas, None, prescale, postscale, set_number)
            entry = _entry(context, key, "grouped_allreduce", metas)
            outputs = [
                mine if in_place or mine is not tensor else adapter.empty_like(mine)
                for mine, tensor in zip(staged, tensors, strict=True)
            ]
            handle = submit_group(
                context, entry, [adapter.address(s) for s in staged], [adapter.address(o) for o in outputs], flags
            )
        except LOCAL_ERRORS as error:
            refuse(context, "grouped_allreduce", name, error, _told_in(how[-1]))
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
            entry = _entry(context, key, "allgather", ((dtype, shape),))
            members, _ = context.place(set_number)
            handle = submit_one(context, entry, adapter.address(staged), None, flags)
        except LOCAL_ERRORS as error:
            refuse(context, "allgather", name, error, _told_in(process_set))

        def collect(operation: Operation) -> Any:
            result, rows = gathered(operation, 0, adapter, dtype, members)
            delivered = adapter.deliver(result, tensor)
            return (delivered, rows) if with_rows else delivered

        return Operation(context, handle, None, staged, collect)

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None,
        process_set: ProcessSet | None,
        flags: int = 0,
        with_rows: bool = False,
        label: str = "grouped_allgather",
    ) -> Operation:
        """Starts the allgather of several tensors, done or failed as a whole. The result is a tuple; `with_rows`: of
        (tensor, rows that each rank gave). `label`: what it is a part of, and meets its peers as."""
        context = contexts.current()
        adapter = self._adapter
        try:
            set_number = number_of(process_set)
            staged, metas = self._stage_group(tensors, False)
            key = (ALLGATHER, name, None, metas, label, 1.0, 1.0, set_number)
            entry = _entry(context, key, label, metas)
            members, _ = context.place(set_number)
            handle = submit_group(context, entry, [adapter.address(s) for s in staged], [None] * len(staged), flags)
        except LOCAL_ERRORS as error:
            refuse(context, label, name, error, _told_in(process_set))

        def collect(operation: Operation) -> Any:
            results: list[Any] = []
            for index, (tensor, (dtype, _)) in enumerate(zip(tensors, metas, strict=True)):
                result, rows = gathered(operation, index, adapter, dtype, members)
                delivered = adapter.deliver(result, tensor)
                results.append((delivered, rows) if with_rows else delivered)
            return tuple(results)

        return Operation(context, handle, None, staged, collect)

    # Alltoall

    def alltoall(
        self,
        tensor: T,
        splits: Any,
        name: str | None,
        process_set: ProcessSet | None,
        flags: int = 0,
        with_splits: bool = True,
    ) -> Operation:
        """Starts sending splits[r] rows of the tensor to each rank r, the first ones to the first; evenly where
        `splits` is None. The result is the rows received, in rank order; `with_splits`: and how many came from each
        rank, as int32."""
        context = contexts.current()
        adapter = self._adapter
        try:
            set_number = number_of(process_set)
            rows_to_send = None if splits is None else self._integers(splits)
            staged, dtype, shape = adapter.stage(tensor)
            key = (ALLTOALL, name, rows_to_send, dtype, shape, 1.0, 1.0, set_number)
            entry = _entry(context, key, "alltoall", ((dtype, shape),), splits=rows_to_send)
            members, _ = context.place(set_number)
            handle = submit_one(context, entry, adapter.address(staged), None, flags)
        except LOCAL_ERRORS as error:
            refuse(context, "alltoall", name, error, _told_in(process_set))

        def collect(operation: Operation) -> Any:
            result, rows = gathered(operation, 0, adapter, dtype, members)
            delivered = adapter.deliver(result, tensor)
            if not with_splits:
                return delivered
            # As wide as `splits`, but where even parts are larger than that can say.
            wide = max(rows) > 2**31 - 1
            received = adapter.empty((members,), INT64 if wide else INT32)
            kind = ctypes.c_int64 if wide else ctypes.c_int32
            (kind * members).from_address(adapter.address(received))[:] = rows
            return delivered, received

        return Operation(context, handle, None, staged, collect)

    def _integers(self, splits: Any) -> tuple[int, ...]:
        """`splits` as the user may give it: a list or tuple of ints, or a tensor."""
        if isinstance(splits, (list, tuple)):
            return tuple(operator.index(rows) for rows in splits)
        staged, dtype, shape = self._adapter.stage(splits)
        if dtype != INT32 or len(shape) != 1:
            raise InvalidRequestError(
                f"splits: expected a list of ints or a one-dimensional int32 tensor, seen {native.DTYPE_NAMES[dtype]} "
                f"of shape {list(shape)}"
            )
        return tuple((ctypes.c_int32 * shape[0]).from_address(self._adapter.address(staged))) if shape[0] else ()

    # Reducescatter

    def reducescatter(self, tensor: T, name: str | None, how: Reduction, flags: int = 0) -> Operation:
        """Starts the reduction of one tensor over all ranks, of which each gets its rows: dealt in rank order, one
        more to the first ranks where they do not come out even. Bit for bit those rows of the allreduce."""
        context = contexts.current()
        adapter = self._adapter
        try:
            op, prescale, postscale, set_number = resolved(how)
            staged, dtype, shape = adapter.stage(tensor)
            key = (REDUCESCATTER, name, op, dtype, shape, prescale, postscale, set_number)
            entry = _entry(context, key, "reducescatter", ((dtype, shape),))
            output = adapter.empty(_own_rows(context.place(set_number), shape), dtype)
            handle = submit_one(context, entry, adapter.address(staged), adapter.address(output), flags)
        except LOCAL_ERRORS as error:
            refuse(context, "reducescatter", name, error, _told_in(how[-1]))
        return Operation(context, handle, (tensor, output), staged, self._deliver)

    def grouped_reducescatter(
        self, tensors: Sequence[T], name: str | None, how: Reduction, flags: int = 0
    ) -> Operation:
        """Starts the reducescatter of several tensors, done or failed as a whole. The result is a list."""
        context = contexts.current()
        adapter = self._adapter
        try:
            op, prescale, postscale, set_number = resolved(how)
            staged, metas = self._stage_group(tensors, False)
            key = (REDUCESCATTER, name, op, metas, None, prescale, postscale, set_number)
            entry = _entry(context, key, "grouped_reducescatter", metas)
            place = context.place(set_number)
            outputs = [adapter.empty(_own_rows(place, shape), dtype) for dtype, shape in metas]
            handle = submit_group(
                context, entry, [adapter.address(s) for s in staged], [adapter.address(o) for o in outputs], flags
            )
        except LOCAL_ERRORS as error:
            refuse(context, "grouped_reducescatter", name, error, _told_in(how[-1]))

        def collect(operation: Operation) -> Any:
            return [adapter.deliver(output, tensor) for output, tensor in zip(outputs, tensors, strict=True)]

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
            if root_rank is True or root_rank is False:
                checked_root(context, root_rank, set_number)  # as keys they would count as ranks 1 and 0
            if in_place:
                adapter.check_in_place(tensor)
            staged, dtype, shape = adapter.stage(tensor)
            key = (BROADCAST, name, root_rank, dtype, shape, 1.0, 1.0, set_number)
            entry = context.entries.get(key) or prepare(
                context, key, "broadcast", ((dtype, shape),), checked_root(context, root_rank, set_number)
            )
            private = staged is not tensor
            output = staged if in_place or private else adapter.empty_like(staged)
            handle = submit_one(context, entry, adapter.address(staged), adapter.address(output), flags)
        except LOCAL_ERRORS as error:
            refuse(context, "broadcast", name, error, _told_in(process_set))
        if not private:
            return Operation(context, handle, output, staged, None)
        return Operation(context, handle, (tensor, output), None, self._write_back if in_place else self._deliver)

    # Barrier

    def barrier(self, process_set: ProcessSet | None) -> None:
        """Blocks until every rank of the set has called it."""
        context = contexts.current()
        try:
            key = (BARRIER, None, None, None, None, 1.0, 1.0, number_of(process_set))
            entry = _entry(context, key, "barrier", ())
        except LOCAL_ERRORS as error:
            refuse(context, "barrier", None, error, _told_in(process_set))
        Operation(context, submit_group(context, entry, [], [], SYNC), None, None, None).wait()

    def tell(self, label: str, name: str, error: Exception, process_set: ProcessSet | None = None) -> None:
        """As refuse, for a sibling that raises `error` itself."""
        contexts.current().refuse(f"{label}.{name}", _told_in(process_set), str(error))

    def refuse(self, label: str, name: str | None, error: Exception, process_set: ProcessSet | None = None) -> NoReturn:
        """For a sibling whose own step before an operation failed: tells the peers, then raises `error`."""
        refuse(contexts.current(), label, name, error, _told_in(process_set))

    # What a finished operation gives back

    def _write_back(self, operation: Operation) -> T:
        tensor, staged = operation.value
        self._adapter.write_back(tensor, staged)
        return tensor  # type: ignore[no-any-return]

    def _deliver(self, operation: Operation) -> T:
        tensor, staged = operation.value
        return self._adapter.deliver(staged, tensor)

    def _stage_group(self, tensors: Sequence[T], in_place: bool) -> tuple[list[T], Metas]:
        if not isinstance(tensors, (list, tuple)):
            raise TypeError(f"a grouped operation takes a list of tensors, seen {type(tensors).__name__}")
        if not tensors:
            raise InvalidRequestError("a grouped operation takes at least one tensor, seen an empty list")
        if in_place:
            for tensor in tensors:
                self._adapter.check_in_place(tensor)
        staged = [self._adapter.stage(tensor) for tensor in tensors]
        return [mine for mine, _, _ in staged], tuple((dtype, shape) for _, dtype, shape in staged)


def _told_in(process_set: ProcessSet | None) -> int:
    """Where the peers of a call that failed wait: in its set; in the global one, where it has none."""
    try:
        return number_of(process_set)
    except InvalidRequestError:
        return 0


def _entry(
    context: Context, key: Key, label: str, metas: Metas, splits: Sequence[int] | None = None
) -> int | native.Request:
    return context.entries.get(key) or prepare(context, key, label, metas, splits=splits)


def _own_rows(place: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what this rank gets of a reducescatter: as the native core deals the rows (rows_of_member)."""
    members, index = place
    return shape[0] // members + (index < shape[0] % members), *shape[1:]


def _finished(finish: Callable[[Operation], Any], operation: Operation, pair: tuple[Any, Any]) -> Any:
    tensor, output = pair
    if output is tensor:
        return tensor
    operation.value = pair
    return finish(operation)


def checked_root(context: Context, root_rank: Any, set_number: int) -> int:
    """The root as a world rank. Raises ValueError or TypeError."""
    if isinstance(root_rank, bool):
        raise InvalidRequestError(f"root_rank={root_rank!r}: expected the number of a rank")
    root = operator.index(root_rank)
    if not 0 <= root < context.size:
        raise InvalidRequestError(f"root_rank={root}: expected 0 to {context.size - 1}, as the size is {context.size}")
    if set_number != 0 and root not in context.sets[set_number].ranks:
        raise InvalidRequestError(
            f"root_rank={root}: expected one of the ranks {context.sets[set_number].ranks} of the process set"
        )
    return root
