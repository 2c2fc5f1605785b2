# SPDX-License-Identifier: Apache-2.0
"""The start of Horovod from what torch knows, and of torch from what Horovod knows.

init_process_group has a store, a rank and a size. If Horovod does not run, it starts here: by horovodrun's rendezvous,
or else rank 0's address and the job's secret travel in the store. The other way round, a job whose ranks Horovod knows
needs no MASTER_ADDR: rank 0 opens a store, and the others learn its port by the rendezvous.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from horovod.core import basics
from horovod.core import context as contexts
from horovod.core.asked_sets import asked_sets
from horovod.core.context import Context
from horovod.core.exceptions import HorovodInternalError, StartError
from horovod.core.process_sets import global_process_set
from horovod.torch.distributed.group import HorovodProcessGroup
from horovod.torch.tensors import collectives

__all__ = ["create", "store_of_job"]

_KEY = "horovod-rank-0"
_stores = itertools.count()
_defaults = 0  # how many groups of all ranks there were; all ranks make them in one order
_times: Counter[tuple[int, ...]] = Counter()  # by ranks, other groups since then, which their members make in one order
_begun: list[Context] = []  # the generation that a default group has begun, and ends


def create(options: Any) -> HorovodProcessGroup:
    """The group that torch asks for. `options`: a torch.distributed.distributed_c10d._DistributedBackendOptions."""
    global _defaults
    ranks = list(options.global_ranks_in_group)
    if ranks:
        return _subgroup(options, ranks)
    begun = _ensure_started(options.store, options.group_rank, options.group_size, options.timeout)
    context = contexts.current()
    if (context.rank, context.size) != (options.group_rank, options.group_size):
        raise StartError(
            f"init_process_group was called as rank {options.group_rank} of {options.group_size}, but Horovod has "
            f"started this process as rank {context.rank} of {context.size}\n"
            "hint: give init_process_group no rank and no world_size, or those of hvd.rank() and hvd.size(). If a tool "
            "such as Lightning calls it, call init_process_group('hvd') before",
            "start-settings",
        )
    asked_sets(context)
    _defaults += 1
    _times.clear()
    end = _end if begun or context in _begun else None
    return HorovodProcessGroup(global_process_set, range(context.size), context.rank, options.timeout, on_shutdown=end)


def _subgroup(options: Any, ranks: list[int]) -> HorovodProcessGroup:
    """Only the members are asked for it."""
    if ranks != sorted(ranks):
        raise NotImplementedError(
            f"new_group(ranks={ranks}, sort_ranks=False): the backend hvd numbers the ranks of a group in ascending "
            "order\nhint: leave sort_ranks out"
        )
    if not contexts.is_initialized() or dist.get_backend() != "hvd":
        raise StartError(
            "new_group(backend='hvd') needs a default process group of the backend hvd, got "
            f"{dist.get_backend()}\n"
            "hint: call init_process_group('hvd') first, and new_group(backend=...) for groups of the other backend",
            "start-settings",
        )
    context = contexts.current()
    # Not torch's name for it, which can differ from rank to rank if not all ranks have called new_group.
    times = f"{_defaults}.{_times[tuple(ranks)]}"
    _times[tuple(ranks)] += 1
    process_set, shared = asked_sets(context).ask(f"{ranks} {times}", ranks, options.timeout.total_seconds())
    prefix = f"torch.{times}" if shared else ""
    return HorovodProcessGroup(process_set, ranks, context.rank, options.timeout, prefix=prefix)


def _ensure_started(store: Any, rank: int, size: int, timeout: timedelta) -> bool:
    """Starts Horovod if it does not run. Returns whether it has."""
    with contexts.starting:
        if contexts.is_initialized():
            return False
        basics.init_as(rank, size, lambda offer: store.set(_KEY, offer), functools.partial(_take, store))
        _begun[:] = [contexts.current()]
        return True


def _take(store: Any, deadline: float) -> bytes | None:
    """Rank 0's message; None if it has not come in time."""
    try:
        store.wait([_KEY], timedelta(seconds=max(0.1, deadline - time.monotonic())))
    except dist.DistStoreError:
        return None
    return bytes(store.get(_KEY))


def _end() -> None:
    """The default group is destroyed: ends what it has begun.

    When all ranks are done with it, as a rank that leaves ends the operations of the others, also in groups that it is
    not in. But a rank that leaves because of an error does not wait for the others, which may wait for it.
    """
    begun, _begun[:] = list(_begun), []
    if begun and contexts.is_initialized() and contexts.current() is begun[0]:
        if sys.exc_info()[0] is None:
            with contextlib.suppress(HorovodInternalError):  # the job has ended already
                collectives.barrier(global_process_set)
        basics.shutdown()


def store_of_job() -> tuple[tuple[Any, int, int], dict[str, str]] | None:
    """(store, rank, size) of the job that Horovod knows, and the variables that torchrun would set; None: no job."""
    with contexts.starting:
        if not contexts.is_initialized():
            if not basics.is_launched():
                return None
            basics.init(process_sets="dynamic")
            _begun[:] = [contexts.current()]
    context = contexts.current()
    place = context.world.identity
    variables = {
        "RANK": context.rank,
        "WORLD_SIZE": context.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "GROUP_RANK": place.cross_rank,  # Lightning counts hosts by it
    }
    return (_store(context), context.rank, context.size), {name: str(value) for name, value in variables.items()}


def _store(context: Context) -> Any:
    world = context.world
    if world.rendezvous is None:
        return dist.HashStore()
    key = f"torch-store/{world.generation}/{next(_stores)}"
    if context.rank == 0:
        on_one_host = len(set(world.host_of_rank)) == 1
        listener = world.rendezvous.listener(on_one_host)
        address, port = listener.getsockname()[:2]
        world.rendezvous.put(key, [address, port])
        # It waits for the others: it must not be gone before they have come.
        return dist.TCPStore(address, port, context.size, True, master_listen_fd=listener.detach())
    address, port = world.rendezvous.get(key, dist.default_pg_timeout.total_seconds())
    return dist.TCPStore(address, port, context.size, False)
