# SPDX-License-Identifier: Apache-2.0
"""Which GPUs each rank sees. Pure: what the tasks say in, variables or an error out.

Spark gives each task addresses of GPUs. All addresses of a host's tasks become each rank's CUDA_VISIBLE_DEVICES, in the
order of local ranks, so that `local_rank` selects the rank's own, as everywhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from horovod.core.wording import counted

__all__ = ["GpusError", "TaskGpus", "assign"]


class GpusError(RuntimeError):
    """The GPUs that Spark gave the tasks of a host cannot be divided among its ranks."""


@dataclasses.dataclass(frozen=True)
class TaskGpus:
    """Of a rank's task: its host, the addresses that Spark gave it, and CUDA_VISIBLE_DEVICES if it is set there."""

    host: str
    addresses: tuple[str, ...] = ()
    visible: str | None = None


@dataclasses.dataclass(frozen=True)
class RankGpus:
    """`visible`: CUDA_VISIBLE_DEVICES of the rank; None: as its task has it. `own`: what Spark gave its task."""

    visible: str | None
    own: tuple[str, ...]


def assign(tasks: Sequence[TaskGpus], by_local_rank: bool = False, name: str = "horovod.spark.run") -> list[RankGpus]:
    """By rank; the ranks of a host in the order of their local ranks.

    `by_local_rank`: HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX; what Spark says is then not looked at. `name`: of the
    function that was called. Raises GpusError.
    """
    if by_local_rank:
        return [RankGpus(None, task.addresses) for task in tasks]
    found = [_devices(task) for task in tasks]
    visible: dict[str, str] = {}
    for host in dict.fromkeys(task.host for task in tasks):
        ranks = [rank for rank, task in enumerate(tasks) if task.host == host]
        devices = [device for rank in ranks for device in found[rank] or ()]
        if not devices:
            continue
        if len(set(devices)) < len(devices):
            raise _error(name, f"a GPU of host {host} was given to two tasks", tasks, ranks)
        if not all(found[rank] for rank in ranks):
            few = f"{counted(len(ranks), 'rank')}, but {counted(len(devices), 'GPU')}"
            raise _error(name, f"host {host} has {few}", tasks, ranks)
        visible[host] = ",".join(devices)
    return [
        RankGpus(visible.get(task.host), task.addresses) if devices is not None else RankGpus(None, ("0",))
        for task, devices in zip(tasks, found, strict=True)
    ]


def _devices(task: TaskGpus) -> list[str] | None:
    """The devices of the task by the names that CUDA_VISIBLE_DEVICES takes; None: the platform has chosen them.

    A platform that sets the variable may count addresses by the positions in it.
    """
    if task.visible is None or not task.addresses:
        return list(task.addresses)
    listed = task.visible.split(",")
    fit = all(address.isdigit() and int(address) < len(listed) for address in task.addresses)
    if len(listed) > len(task.addresses) and fit:
        return [listed[int(address)] for address in task.addresses]
    return None


def _error(name: str, what: str, tasks: Sequence[TaskGpus], ranks: Sequence[int]) -> GpusError:
    lines = [f"  rank {rank}: {', '.join(tasks[rank].addresses) or 'no GPU'}" for rank in ranks]
    hint = (
        "set spark.task.resource.gpu.amount=1 to give each task its own GPU; or set "
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX=1, and each rank sees what its task sees and takes GPU hvd.local_rank()"
    )
    return GpusError("\n".join([f"{name}: {what}", *lines, f"hint: {hint}"]))
