# SPDX-License-Identifier: Apache-2.0
"""A backend of ray.util.collective: arrays between actors that the program itself has started.

    register_collective_backend()  # in the driver, and in each actor
    collective.init_collective_group(world_size, rank, backend="hvd", group_name="default")
    collective.allreduce(array)

The first group of a process makes a world; later groups of its actors are process sets in it. The actors of a group
meet in a named actor of Ray (`_Meeting`), which keeps the rendezvous.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import ray
from ray.util import collective
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

import horovod.core as hvd
from horovod.core import basics
from horovod.core import context as contexts
from horovod.core.asked_sets import asked_sets
from horovod.core.exceptions import StartError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.ray import place
from horovod.ray.coordinator import Coordinator
from horovod.ray.runner import MiniSettings
from horovod.world.network import at_port

__all__ = ["register_collective_backend"]

_TIMEOUT_S = 300.0
_OPERATIONS = {
    ReduceOp.SUM: hvd.Sum,
    ReduceOp.PRODUCT: hvd.Product,
    ReduceOp.MIN: hvd.Min,
    ReduceOp.MAX: hvd.Max,
}
_groups: list[HorovodGroup] = []  # of this process, in the world that the first one has begun
_times = itertools.count()


def register_collective_backend(name: str = "hvd") -> None:
    """Makes the backend known to ray.util.collective in this process. A second call does nothing."""
    if not collective.is_backend_available(name):
        collective.register_collective_backend(name, HorovodGroup)


class _Meeting:
    """Brings the actors of a group together, again and again: a group may be destroyed and made anew."""

    def __init__(self) -> None:
        self._arrived: dict[int, dict[str, Any]] = {}
        self._answer: asyncio.Future[list[Any]] | None = None
        self._coordinator: Coordinator | None = None

    async def join(self, rank: int, size: int, here: dict[str, Any]) -> Any:
        """Orders for a new world, or the world ranks of the group if its actors are in one."""
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
        answer = self._answer
        self._arrived[rank] = here
        if len(self._arrived) == size:
            ordered = [self._arrived[one] for one in range(size)]
            self._arrived, self._answer = {}, None
            try:
                answer.set_result(self._answers(ordered))
            except Exception as error:
                answer.set_exception(error)
        return (await answer)[rank]

    async def missing(self, size: int) -> list[int]:
        return sorted(set(range(size)) - set(self._arrived))

    def _answers(self, ordered: list[dict[str, Any]]) -> list[Any]:
        worlds = {here["world"] for here in ordered}
        if worlds == {None}:
            if self._coordinator is not None:
                self._coordinator.close()
            self._coordinator = Coordinator(MiniSettings())
            return list(self._coordinator.orders(ordered))
        if len(worlds) > 1:
            raise StartError(
                "the actors of this group are in different worlds: an actor can be in one at a time\n"
                "hint: make a group of all actors first; groups of some of them can follow",
                "start-settings",
            )
        return [[here["rank"] for here in ordered]] * len(ordered)


def _world() -> tuple[str | None, int]:
    """The name of this process' world, which no other world has, or None; and its rank there."""
    if not contexts.is_initialized():
        return None, 0
    world = contexts.current().world
    meeting_point = world.rendezvous
    where = f"{at_port(meeting_point.address, meeting_point.port)}" if meeting_point else place.whereabouts()["where"]
    return f"{where} {world.generation}", contexts.rank()


class HorovodGroup(BaseGroup):  # type: ignore[misc]
    """An actor's part of a group. Blocks until all actors of the group have come."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        name = f"horovod-collective-{group_name}"
        options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 1000}
        self._meeting = ray.remote(_Meeting).options(**options).remote()
        world, own = _world()
        here = {**place.whereabouts(), "world": world, "rank": own}
        try:
            answer = ray.get(self._meeting.join.remote(rank, world_size, here), timeout=_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError:
            missing = ray.get(self._meeting.missing.remote(world_size), timeout=_TIMEOUT_S)
            raise TimeoutError(
                f"the group {group_name!r} is not complete after {_TIMEOUT_S:g} s: ranks "
                f"{', '.join(map(str, missing))} have not joined\n"
                "hint: call init_collective_group with this group name in each actor"
            ) from None
        if isinstance(answer, list):
            self._world_ranks = answer
            self._set = self._process_set()
        else:
            place.take_orders(answer)
            basics.init(process_sets="dynamic")
            asked_sets(contexts.current())
            self._world_ranks = list(range(world_size))
            self._set = global_process_set
            self._is_first = True
        _groups.append(self)

    _is_first = False

    def _process_set(self) -> ProcessSet:
        context = contexts.current()
        if len(self._world_ranks) == context.size:
            return global_process_set
        if not any(group._is_first for group in _groups):
            raise StartError(
                f"the group {self.group_name!r} has {self.world_size} of the {context.size} ranks, and "
                "hvd.init() started their world, not ray.util.collective\n"
                f"hint: put all {context.size} ranks into the group, or use hvd.ProcessSet",
                "start-settings",
            )
        return asked_sets(context).ask(f"ray {self.group_name} {next(_times)}", sorted(self._world_ranks), _TIMEOUT_S)[
            0
        ]

    def destroy_group(self) -> None:
        """Leaves the group. The last one of this process ends the world that the first one has begun."""
        _groups.remove(self)
        if not _groups and contexts.is_initialized():
            basics.shutdown()

    @classmethod
    def backend(cls) -> str:
        return "HVD"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    # Ray gives lists of one tensor. Results are written into the tensors given.

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        operation = _OPERATIONS[allreduce_options.reduceOp if allreduce_options else ReduceOp.SUM]
        _of(tensor[0]).allreduce_(tensor[0], op=operation, process_set=self._set)

    def barrier(self, barrier_options: Any = None) -> None:
        hvd.barrier(process_set=self._set)

    def reduce(self, tensor: list[Any], reduce_options: Any) -> None:
        operation = _OPERATIONS[reduce_options.reduceOp]
        reduced = _of(tensor[0]).allreduce(tensor[0], op=operation, process_set=self._set)
        if self.rank == reduce_options.root_rank:
            tensor[0][...] = reduced

    def broadcast(self, tensor: list[Any], broadcast_options: Any) -> None:
        root = self._world_ranks[broadcast_options.root_rank]
        _of(tensor[0]).broadcast_(tensor[0], root, process_set=self._set)

    def allgather(self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = None) -> None:
        rows = _of(tensor[0]).allgather(tensor[0][None], process_set=self._set)
        for one, world_rank in zip(tensor_list[0], self._world_ranks, strict=True):
            one[...] = rows[self._ordered().index(world_rank)]

    def reducescatter(self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any) -> None:
        rows = [tensor_list[0][self._world_ranks.index(world_rank)] for world_rank in self._ordered()]
        operation = _OPERATIONS[reducescatter_options.reduceOp]
        tensor[0][...] = _of(tensor[0]).reducescatter(_stacked(rows), op=operation, process_set=self._set)[0]

    def send(self, tensor: list[Any], send_options: Any) -> None:
        hvd.send(_array(tensor[0]), self._world_ranks[send_options.dst_rank], process_set=self._set)

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        hvd.recv(_array(tensor[0]), self._world_ranks[recv_options.src_rank], process_set=self._set)

    def _ordered(self) -> list[int]:
        """The world ranks of the group as the process set has them."""
        return sorted(self._world_ranks)


def _of(tensor: Any) -> Any:
    """The package that reduces a tensor of this kind."""
    if isinstance(tensor, np.ndarray):
        return hvd
    if type(tensor).__module__.partition(".")[0] == "torch":
        import horovod.torch

        return horovod.torch
    raise TypeError(f"{type(tensor).__module__}.{type(tensor).__name__}: expected a numpy.ndarray or a torch.Tensor")


def _stacked(rows: list[Any]) -> Any:
    if isinstance(rows[0], np.ndarray):
        return np.stack(rows)
    stacked = rows[0].new_empty((len(rows), *rows[0].shape))
    for index, row in enumerate(rows):
        stacked[index] = row
    return stacked


def _array(tensor: Any) -> Any:
    """The memory of a tensor as an array, for messages between two actors."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if getattr(tensor, "is_cuda", False):
        raise NotImplementedError("send and recv take no tensors on a GPU\nhint: send tensor.cpu()")
    return tensor.detach().numpy()
