# SPDX-License-Identifier: Apache-2.0
"""Operations between two ranks, and results that go into memory that the caller gives (step 3).

Tensors are dense. A given memory is written by the engine itself if the adapter can hand it out as it is; otherwise the
result is copied there once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeVar

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.collectives import Collectives, Reduction
from horovod.core.context import LOCAL_ERRORS, Context
from horovod.core.exceptions import InvalidRequestError
from horovod.core.gpus import OnGpu, gpu_of
from horovod.core.native import ALLGATHER, ALLTOALL, RECEIVE, REDUCESCATTER, SEND
from horovod.core.operations import Operation, number_given, rows_given, submit_one, take_result
from horovod.core.process_sets import ProcessSet, number_of, told_in
from horovod.core.reductions import as_key
from horovod.core.requests import Key, Prepared, check_name, forms_of, own_rows, request_of, wire_name
from horovod.core.tensors import check_complex_group, check_rows
from horovod.core.wording import shown
from horovod.world.communicators import plan

__all__ = ["DirectCollectives"]

T = TypeVar("T")

MAX_TAG = 2**31 - 1


class DirectCollectives(Collectives[T]):
    """Collectives, and those operations over one framework's tensors."""

    # Point to point. The two ends meet if set, ranks and tag are equal; messages of one tag keep their order.

    def send(self, tensor: T, to: int, tag: int, process_set: ProcessSet | None, flags: int = 0) -> Operation:
        """Starts sending a tensor to one rank of the set (a rank of the world), which receives as many elements.

        Done when the other rank has called receive, and the tensor's memory may be reused. The result is None.
        """
        context = contexts.current()
        staged: Any = self._adapter.stage(tensor)
        request = self._message(context, SEND, staged, to, tag, process_set)
        handle = submit_one(context, request, self._adapter.address(staged), None, flags)
        return Operation(context, handle, None, staged, None)

    def receive(
        self, tensor: T, source: int | None, tag: int, process_set: ProcessSet | None, flags: int = 0
    ) -> Operation:
        """Starts receiving into `tensor` from one rank of the set (a rank of the world), or from any if it is None.

        The result is the rank that sent.
        """
        context, adapter = contexts.current(), self._adapter
        staged: Any = adapter.stage_in_place(tensor)
        request = self._message(context, RECEIVE, staged, -1 if source is None else source, tag, process_set)
        handle = submit_one(context, request, 0, adapter.address(staged), flags)

        def collect(operation: Operation) -> int:
            if staged is not tensor:
                adapter.write_back(tensor, staged)
            return number_given(operation)

        return Operation(context, handle, None, staged, collect)

    def _message(
        self, context: Context, kind: int, staged: Any, peer: Any, tag: Any, process_set: ProcessSet | None
    ) -> Any:
        rank, checked_tag = _integer("rank", peer), _integer("tag", tag)
        key: Key = (kind, checked_tag, rank, process_set, staged.dtype, staged.shape)
        request = context.requests.find(key)
        if request is not None:
            return request
        if kind == SEND and rank == -1:
            raise InvalidRequestError("send: expected a rank, got -1")
        number, gpu = number_of(process_set), gpu_of([staged])
        _check_link(context, [rank] if rank != -1 else range(context.size))
        made = request_of(
            kind,
            None,
            ((self._adapter.dtype_of(staged), (math.prod(staged.shape),)),),
            process_set=number,
            root_rank=rank,
            tag=checked_tag,
            gpu=gpu,
        )
        return context.requests.add(key, made, context.failure_of, gpu)

    # Into given memory

    def allgather_into(
        self,
        tensor: T,
        output: T,
        name: str | None,
        process_set: ProcessSet | None,
        flags: int = 0,
        output_rows: Sequence[int] | None = None,
    ) -> Operation:
        """As allgather. `output` must be as large as all ranks' tensors; it is the result.

        `output_rows`: the rows that must come from each rank, if given.
        """
        return self._gather_into(ALLGATHER, "allgather", tensor, output, name, process_set, flags, None, output_rows)

    def alltoall_into(
        self,
        tensor: T,
        output: T,
        splits: Sequence[int] | None,
        output_splits: Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet | None,
        flags: int = 0,
    ) -> Operation:
        """As alltoall. `output` is the result; `output_splits`: the rows that must come from each rank, if given."""
        sent = None if splits is None else tuple(map(operator.index, splits))
        return self._gather_into(ALLTOALL, "alltoall", tensor, output, name, process_set, flags, sent, output_splits)

    def reducescatter_into(self, tensor: T, output: T, name: str | None, how: Reduction, flags: int = 0) -> Operation:
        """As reducescatter. `output` has this rank's rows, and is the result."""
        context, adapter = contexts.current(), self._adapter
        try:
            how = as_key(how)
            staged: Any = adapter.stage(tensor)
            target: Any = adapter.stage_in_place(output)
            check_complex_group(adapter, [tensor], how[0])
            check_rows(adapter, "reducescatter", [tensor], [staged])
            key: Key = (REDUCESCATTER, name, "reducescatter", how, staged.dtype, staged.shape)
            request = context.requests.find(key) or self._reduction(context, key, "reducescatter", how, [staged])
            rows = own_rows(context.place(request.process_set), tuple(staged.shape))
            self._check_output("reducescatter", staged, target, math.prod(rows))
            handle = submit_one(context, request, adapter.address(staged), adapter.address(target), flags)
        except LOCAL_ERRORS as error:
            context.refuse("reducescatter", name, error, told_in(how[-1]))

        def collect(_: Operation) -> T:
            if target is not output:
                adapter.write_back(output, target)
            return output

        return Operation(context, handle, None, (staged, target), collect)

    def _gather_into(
        self,
        kind: int,
        label: str,
        tensor: T,
        output: T,
        name: str | None,
        process_set: ProcessSet | None,
        flags: int,
        splits: tuple[int, ...] | None,
        output_rows: Sequence[int] | None,
    ) -> Operation:
        context, adapter = contexts.current(), self._adapter
        try:
            staged: Any = adapter.stage(tensor)
            target: Any = adapter.stage_in_place(output)
            on_gpu = isinstance(staged, OnGpu)
            check_rows(adapter, label, [tensor], [staged])
            key: Key = (kind, name, "into", splits, process_set, *forms_of([staged, target]))
            request: Prepared | native.Request | None = context.requests.find(key)
            if request is None:
                check_name(name)
                self._check_output(label, staged, target, None)
                dtype, number, gpu = adapter.dtype_of(staged), number_of(process_set), gpu_of([staged])
                metas = ((dtype, tuple(staged.shape)),)
                made = request_of(kind, wire_name(label, name), metas, process_set=number, splits=splits, gpu=gpu)
                if not on_gpu:
                    made.tensors[0].output_bytes = math.prod(target.shape) * native.DTYPE_BYTES[dtype]
                request = context.requests.add(key, made, context.failure_of, gpu)
            handle = submit_one(context, request, adapter.address(staged), adapter.address(target), flags)
        except LOCAL_ERRORS as error:
            context.refuse(label, name, error, told_in(process_set))

        def collect(operation: Operation) -> T:
            if output_rows is not None and (received := rows_given(operation, len(output_rows))) != list(output_rows):
                hint = "\nhint: what rank a sends to rank b must be what rank b expects of rank a" if splits else ""
                raise InvalidRequestError(f"{label}: expected {list(output_rows)} elements, got {received}{hint}")
            if on_gpu:
                take_result(operation, adapter.address(target), math.prod(target.shape))
            if target is not output:
                adapter.write_back(output, target)
            return output

        return Operation(context, handle, None, (staged, target), collect)

    def _check_output(self, label: str, staged: Any, target: Any, count: int | None) -> None:
        dtype, wanted = self._adapter.dtype_of(target), self._adapter.dtype_of(staged)
        if dtype != wanted:
            raise InvalidRequestError(
                f"{label}: expected an output of {native.DTYPE_NAMES[wanted]}, got {native.DTYPE_NAMES[dtype]}"
            )
        if isinstance(staged, OnGpu) != isinstance(target, OnGpu):
            raise InvalidRequestError(f"{label}: expected tensor and output on one device")
        if count is not None and math.prod(target.shape) != count:
            raise InvalidRequestError(f"{label}: expected an output of {count} elements, got {math.prod(target.shape)}")


def _check_link(context: Context, peers: Sequence[int]) -> None:
    """Raises if there will be no link to one of these ranks, which a message would go over."""
    world, rank = context.world, context.rank
    if context.dynamic_process_sets:
        return
    for peer in peers:
        if peer in world.peers or not 0 <= peer < context.size or world.host_of_rank[peer] == world.host_of_rank[rank]:
            continue
        if peer in plan(context.communicator, world.host_of_rank, sorted((rank, peer)), rank, must=False)[1]:
            raise InvalidRequestError(
                f"rank {rank} has no link to rank {peer}, which is on another host\n"
                "hint: set HOROVOD_DYNAMIC_PROCESS_SETS=1 on all ranks, or call init(process_sets='dynamic')"
            )


def _integer(argument: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = MAX_TAG + 1
    if not -MAX_TAG <= number <= MAX_TAG:
        raise InvalidRequestError(f"{argument}={shown(value)}: expected an integer of 32 bits")
    return number
