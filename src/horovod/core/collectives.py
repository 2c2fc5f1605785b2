# SPDX-License-Identifier: Apache-2.0
"""The meaning of every operation, once for all frameworks: step 3 of a gradient's way.

Words. An *operation* is one call of one rank; ranks meet by *name* (`allreduce.<name>`), unnamed ones by their order. A
*request* is what crosses into the native core; its *key* fixes everything in it but the addresses. A repeated call with
the same name, dtype and shape therefore costs one lookup in the cache of *prepared* requests, two addresses and one
native call. A *staged* tensor is dense memory, the host's or a GPU's: the user's own, or a private copy.

A call that fails on this rank before its peers can see it would leave them waiting: it is *refused*, and they fail as
well. (A duplicate name is the exception: only this rank gets the error, and the operation in flight is unaffected.)

Thread safety: all operations may be called from any thread. Blocking: only wait (the forms without _async) and
synchronize.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.calls import Ended
from horovod.core.context import LOCAL_ERRORS, Context
from horovod.core.exceptions import HorovodInternalError, InvalidRequestError, OutOfMemoryError, text_of
from horovod.core.gpus import OnGpu, for_result, gpu_of
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
    Adasum,
    Average,
    Sum,
)
from horovod.core.operations import Operation, TimeLimit, after_run, gathered, run_one, submit_group, submit_one
from horovod.core.process_sets import ProcessSet, checked_root, number_of, told_in
from horovod.core.reductions import Reduction, as_key, resolve_op, resolved
from horovod.core.requests import (
    Key,
    Metas,
    Prepared,
    check_adasum_ranks,
    check_name,
    check_reduction,
    check_tensors,
    forms_of,
    own_rows,
    request_of,
    wire_name,
)
from horovod.core.tensors import Adapter, check_complex, check_complex_group, check_rows, of_each
from horovod.core.wording import shown

__all__ = ["Collectives", "Reduction", "resolve_op", "resolved"]

_OF_COMPLEX = (None, Average, Sum)

T = TypeVar("T")


class Collectives(Generic[T]):
    """The operations over one framework's tensors. Stateless but for the adapter: one per framework package."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter

    # Allreduce. `tensors` of a grouped call are reduced as a whole: all of them or none.

    def allreduce(self, tensor: T, name: str | None, how: Reduction, in_place: bool, flags: int = 0) -> Operation:
        """Starts the reduction of one tensor over all ranks."""
        context = contexts.current()
        try:
            adapter = self._adapter
            staged, request = self._staged(context, tensor, name, how, in_place)
            output = self._target(tensor, staged, in_place)
            handle = submit_one(context, request, adapter.address(staged), adapter.address(output), flags)
        except LOCAL_ERRORS as error:
            context.refuse("allreduce", name, error, told_in(how[-1]))
        if staged is tensor:
            return Operation(context, handle, output, staged, None)
        return Operation(context, handle, (tensor, output), None, self._write_back if in_place else self._deliver)

    def _target(self, tensor: T, staged: Any, in_place: bool) -> Any:
        """Where the result is written to."""
        if in_place:
            return staged
        return self._adapter.empty_like(staged) if staged is tensor else for_result(staged)

    def run_allreduce(
        self, tensor: T, name: str | None, how: Reduction, in_place: bool, limit: TimeLimit | None = None
    ) -> T:
        """Reduces one tensor over all ranks; blocks. This path sets the latency of small tensors, so keep it short."""
        context = contexts.current()
        deadline = None if limit is None else limit.deadline()  # run waits, too
        try:
            adapter = self._adapter
            ended: Ended | bool | None = False
            # Another kind of op may count as an int that is a part of a key: a bool, for example. _staged looks at it.
            if in_place and adapter.run_known is not None and type(how[0]) is int:
                ended = adapter.run_known(context.requests.prepared, tensor, context.pointer, ALLREDUCE, name, how)
            if not isinstance(ended, bool):
                operation, staged, output = after_run(context, ended, tensor), tensor, tensor
            else:
                staged, request = self._staged(context, tensor, name, how, in_place)
                source = adapter.address(staged)
                if in_place:
                    output = staged
                    operation = run_one(context, request, source, source, staged)
                else:
                    output = adapter.empty_like(staged) if staged is tensor else for_result(staged)
                    operation = run_one(context, request, source, adapter.address(output), (staged, output))
        except LOCAL_ERRORS as error:
            context.refuse("allreduce", name, error, told_in(how[-1]))
        if operation is not None:
            operation.wait(None, limit, deadline)
        if staged is tensor:
            return output
        if in_place:
            adapter.write_back(tensor, staged)
            return tensor
        return adapter.deliver(output, tensor)

    def _staged(
        self, context: Context, tensor: T, name: str | None, how: Reduction, in_place: bool
    ) -> tuple[Any, Prepared | native.Request]:
        """The tensor as the core takes it, and the request of its reduction."""
        if type(how[2]) is not float or type(how[3]) is not float or type(how[0]) is not int or how[1] is not None:
            how = as_key(how)
        adapter = self._adapter
        if adapter.find is not None:
            known = adapter.find(context.requests.prepared, tensor, ALLREDUCE, name, how)
            if known is not None:
                return tensor, known
        staged: Any = adapter.stage_in_place(tensor) if in_place else adapter.stage(tensor)
        if staged is not tensor and how[0] not in _OF_COMPLEX and adapter.is_complex(tensor):
            check_complex(how[0])
        key = (ALLREDUCE, name, how, staged.dtype, staged.shape)
        return staged, context.requests.find(key) or self._reduction(context, key, "allreduce", how, [staged])

    def prepared_allreduce(self, how: Reduction, tensor: T) -> Prepared | None:
        """The request of unnamed allreduces like one that has run; None: it is not prepared, or not of plain memory."""
        staged: Any = self._adapter.stage_in_place(tensor)
        request = contexts.current().requests.find((ALLREDUCE, None, how, staged.dtype, staged.shape))
        return request if staged is tensor and type(request) is Prepared else None

    def grouped_allreduce(
        self, tensors: Sequence[T], name: str | None, how: Reduction, in_place: bool, flags: int = 0
    ) -> Operation:
        """Starts the reduction of several tensors, done or failed as a whole.

        The result is a list, in place a tuple.
        """
        context = contexts.current()
        adapter = self._adapter
        try:
            how = as_key(how)
            staged = self._stage_group(tensors, in_place)
            check_complex_group(adapter, tensors, how[0])
            key = (ALLREDUCE, name, "grouped_allreduce", how, *forms_of(staged))
            request = context.requests.find(key) or self._reduction(context, key, "grouped_allreduce", how, staged)
            outputs = staged
            if not in_place:
                outputs = [
                    adapter.empty_like(mine) if mine is tensor else for_result(mine)
                    for mine, tensor in zip(staged, tensors, strict=True)
                ]
            handle = submit_group(context, request, self._addresses(staged), self._addresses(outputs), flags)
        except LOCAL_ERRORS as error:
            context.refuse("grouped_allreduce", name, error, told_in(how[-1]))
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
        """Starts the concatenation of all ranks' tensors along dimension 0, in rank order.

        `with_rows`: the result is (tensor, rows that each rank gave).
        """
        started = self._gather([tensor], None, name, process_set, flags, with_rows)
        started.collect = _first(started.collect)
        return started

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None,
        process_set: ProcessSet | None,
        flags: int = 0,
        with_rows: bool = False,
        label: str = "grouped_allgather",
    ) -> Operation:
        """Starts the allgather of several tensors, done or failed as a whole.

        The result is a tuple; `with_rows`: of (tensor, rows that each rank gave). `label`: the name of the operation
        that this is part of; peers match by it.
        """
        return self._gather(tensors, label, name, process_set, flags, with_rows)

    def _gather(
        self,
        tensors: Sequence[T],
        group: str | None,
        name: str | None,
        process_set: ProcessSet | None,
        flags: int,
        with_rows: bool,
    ) -> Operation:
        """`group`: what a grouped call meets its peers as; None: a call of one tensor."""
        context = contexts.current()
        adapter, label = self._adapter, group or "allgather"
        try:
            staged = self._stage_group(tensors, False)
            check_rows(adapter, label, tensors, staged)
            key = (ALLGATHER, name, group, process_set, *forms_of(staged))
            request: Prepared | native.Request | None = context.requests.find(key)
            if request is None:
                request = self._prepared(context, key, label, staged, process_set)
            members, _ = context.place(request.process_set)
            metas = self._metas(staged)
            handle = submit_group(context, request, self._addresses(staged), [None] * len(staged), flags)
        except LOCAL_ERRORS as error:
            context.refuse(label, name, error, told_in(process_set))

        def collect(operation: Operation) -> Any:
            results: list[Any] = []
            for index, (tensor, mine, (dtype, _)) in enumerate(zip(tensors, staged, metas, strict=True)):
                result, rows = gathered(operation, index, adapter, mine, dtype, members)
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
        """Starts sending splits[r] rows of the tensor to each rank r, the first ones to the first.

        Evenly if `splits` is None. The result is the rows received, in rank order; `with_splits`: also how many came
        from each rank, as int32.
        """
        context = contexts.current()
        adapter = self._adapter
        try:
            rows_to_send = None if splits is None else self._integers(splits)
            staged: Any = adapter.stage(tensor)
            check_rows(adapter, "alltoall", [tensor], [staged])
            dtype = adapter.dtype_of(staged)
            key = (ALLTOALL, name, rows_to_send, process_set, staged.dtype, staged.shape)
            request: Prepared | native.Request | None = context.requests.find(key)
            if request is None:
                request = self._prepared(context, key, "alltoall", [staged], process_set, splits=rows_to_send)
            members, _ = context.place(request.process_set)
            handle = submit_one(context, request, adapter.address(staged), None, flags)
        except LOCAL_ERRORS as error:
            context.refuse("alltoall", name, error, told_in(process_set))

        def collect(operation: Operation) -> Any:
            result, rows = gathered(operation, 0, adapter, staged, dtype, members)
            delivered = adapter.deliver(result, tensor)
            if not with_splits:
                return delivered
            # As wide as `splits`, unless even parts need more.
            wide = max(rows) > 2**31 - 1
            received = adapter.empty((members,), INT64 if wide else INT32)
            kind = ctypes.c_int64 if wide else ctypes.c_int32
            (kind * members).from_address(adapter.address(received))[:] = rows
            return delivered, received

        return Operation(context, handle, None, staged, collect)

    def _integers(self, splits: Any) -> tuple[int, ...]:
        """`splits` as the user may give it: a list or tuple of ints, or a tensor of int32 or int64."""
        if isinstance(splits, (list, tuple)):
            if all(hasattr(rows, "__index__") for rows in splits):
                return tuple(map(operator.index, splits))
            raise TypeError(f"splits={shown(splits)}: expected a list of ints")
        try:
            staged: Any = self._adapter.stage(splits)
            if isinstance(staged, OnGpu):
                staged = staged.on_host()
            dtype, shape = self._adapter.dtype_of(staged), staged.shape
        except (TypeError, InvalidRequestError) as error:
            raise type(error)(f"splits: {error}") from None
        if dtype not in (INT32, INT64) or len(shape) != 1:
            raise InvalidRequestError(
                "splits: expected a list of ints or a one-dimensional int32 or int64 tensor, got "
                f"{native.DTYPE_NAMES[dtype]} of shape {list(shape)}"
            )
        kind = ctypes.c_int32 if dtype == INT32 else ctypes.c_int64
        return tuple((kind * shape[0]).from_address(self._adapter.address(staged))) if shape[0] else ()

    # Reducescatter

    def reducescatter(self, tensor: T, name: str | None, how: Reduction, flags: int = 0) -> Operation:
        """Starts the reduction of one tensor over all ranks, of which each gets its rows.

        They are dealt in rank order, one more to the first ranks if they do not come out even. Bit for bit they are
        those rows of the allreduce.
        """
        started = self._scatter([tensor], "reducescatter", name, how, flags)
        started.collect = _first(started.collect)
        return started

    def grouped_reducescatter(
        self, tensors: Sequence[T], name: str | None, how: Reduction, flags: int = 0
    ) -> Operation:
        """Starts the reducescatter of several tensors, done or failed as a whole. The result is a list."""
        return self._scatter(tensors, "grouped_reducescatter", name, how, flags)

    def _scatter(self, tensors: Sequence[T], label: str, name: str | None, how: Reduction, flags: int) -> Operation:
        context = contexts.current()
        adapter = self._adapter
        try:
            how = as_key(how)
            staged = self._stage_group(tensors, False)
            check_complex_group(adapter, tensors, how[0])
            check_rows(adapter, label, tensors, staged)
            key = (REDUCESCATTER, name, label, how, *forms_of(staged))
            request = context.requests.find(key) or self._reduction(context, key, label, how, staged)
            place = context.place(request.process_set)
            outputs = [self._rows_for(place, mine) for mine in staged]
            handle = submit_group(context, request, self._addresses(staged), self._addresses(outputs), flags)
        except LOCAL_ERRORS as error:
            context.refuse(label, name, error, told_in(how[-1]))

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
            if type(root_rank) is not int:  # as a part of a key it may count as one: a bool, for example
                root_rank = checked_root(context, root_rank, number_of(process_set))
            staged: Any = adapter.stage_in_place(tensor) if in_place else adapter.stage(tensor)
            key = (BROADCAST, name, root_rank, process_set, staged.dtype, staged.shape)
            request: Prepared | native.Request | None = context.requests.find(key)
            if request is None:
                root = checked_root(context, root_rank, number_of(process_set))
                request = self._prepared(context, key, "broadcast", [staged], process_set, root_rank=root)
            private = staged is not tensor
            output = self._target(tensor, staged, in_place)
            handle = submit_one(context, request, adapter.address(staged), adapter.address(output), flags)
        except LOCAL_ERRORS as error:
            context.refuse("broadcast", name, error, told_in(process_set))
        if not private:
            return Operation(context, handle, output, staged, None)
        return Operation(context, handle, (tensor, output), None, self._write_back if in_place else self._deliver)

    # Barrier

    def barrier(self, process_set: ProcessSet | None) -> None:
        """Blocks until every rank of the set has called it."""
        self.start_barrier(process_set, SYNC).wait()

    def start_barrier(self, process_set: ProcessSet | None, flags: int = 0) -> Operation:
        """Starts an operation that is done when every rank of the set has called it."""
        context = contexts.current()
        try:
            key = (BARRIER, process_set)
            request = context.requests.find(key) or self._prepared(context, key, "barrier", [], process_set)
        except LOCAL_ERRORS as error:
            context.refuse("barrier", None, error, told_in(process_set))
        return Operation(context, submit_group(context, request, [], [], flags), None, None, None)

    # Calls that fail before an operation

    def tell(self, label: str, name: str | None, error: Exception, process_set: ProcessSet | None = None) -> None:
        """As refuse, for a sibling that raises `error` itself."""
        contexts.current().tell(None if name is None else f"{label}.{name}", told_in(process_set), str(error))

    def refuse(self, label: str, name: str | None, error: Exception, process_set: ProcessSet | None = None) -> NoReturn:
        """For a sibling whose own step before an operation failed: tells the peers, then raises `error`."""
        contexts.current().refuse(label, name, error, told_in(process_set))

    # Requests that the cache does not know

    def _reduction(
        self, context: Context, key: Key, label: str, how: Reduction, staged: Sequence[Any]
    ) -> Prepared | native.Request:
        op, prescale, postscale, number = resolved(how)
        metas = self._metas(staged)
        check_reduction(key[0], op, [dtype for dtype, _ in metas])
        if op == Adasum:
            check_adasum_ranks(context.place(number)[0])
        scales = {"prescale": prescale, "postscale": postscale}
        return self._prepared(context, key, label, staged, how[-1], op=operator.index(op), **scales)

    def _prepared(
        self,
        context: Context,
        key: Key,
        label: str,
        staged: Sequence[Any],
        process_set: ProcessSet | None,
        **fixed: Any,
    ) -> Prepared | native.Request:
        """`fixed`: as of request_of."""
        kind, name = key[0], None if key[0] == BARRIER else key[1]
        check_name(name)
        metas = self._metas(staged)
        check_tensors(kind, label, metas)
        number, gpu = number_of(process_set), gpu_of(staged)
        request = request_of(kind, wire_name(label, name), metas, process_set=number, gpu=gpu, **fixed)
        try:
            return context.requests.add(key, request, context.failure_of, gpu)
        except (HorovodInternalError, OutOfMemoryError) as error:  # this rank's GPU has failed, or its memory is full
            context.tell(None if name is None else f"{label}.{name}", number, text_of(error))
            raise

    # Tensors

    def _stage_group(self, tensors: Sequence[T], in_place: bool) -> list[Any]:
        if not isinstance(tensors, (list, tuple)):
            raise TypeError(f"a grouped operation takes a list of tensors, got {type(tensors).__name__}")
        if not tensors:
            raise InvalidRequestError("a grouped operation takes at least one tensor, got an empty list")
        stage = self._adapter.stage_in_place if in_place else self._adapter.stage
        return of_each(stage, tensors)

    def _metas(self, staged: Sequence[Any]) -> Metas:
        dtypes = of_each(self._adapter.dtype_of, staged)
        return tuple((dtype, tuple(mine.shape)) for dtype, mine in zip(dtypes, staged, strict=True))

    def _addresses(self, staged: Sequence[Any]) -> list[int]:
        return [self._adapter.address(mine) for mine in staged]

    # Memory for results

    def _rows_for(self, place: tuple[int, int], staged: Any) -> Any:
        shape = own_rows(place, tuple(staged.shape))
        if isinstance(staged, OnGpu):
            return staged.empty(shape)
        return self._adapter.empty(shape, self._adapter.dtype_of(staged))

    # The results of a finished operation

    def _write_back(self, operation: Operation) -> T:
        tensor, staged = operation.value
        self._adapter.write_back(tensor, staged)
        return tensor  # type: ignore[no-any-return]

    def _deliver(self, operation: Operation) -> T:
        tensor, staged = operation.value
        return self._adapter.deliver(staged, tensor)


def _first(collect: Callable[[Operation], Any] | None) -> Callable[[Operation], Any]:
    assert collect is not None
    return lambda operation: collect(operation)[0]


def _finished(finish: Callable[[Operation], Any], operation: Operation, pair: tuple[Any, Any]) -> Any:
    tensor, output = pair
    if output is tensor:
        return tensor
    operation.value = pair
    return finish(operation)
