# SPDX-License-Identifier: Apache-2.0
"""torchrun of PyTorch, by itself or as srun or mpirun starts it on each host."""

from __future__ import annotations

from horovod.world.launchers.base import Environment, Started, numbers
from horovod.world.network import machine

__all__ = ["recognise"]


def recognise(environment: Environment) -> Started | None:
    """On one host the name of the master may be localhost, and the job's name `none`, for any number of jobs."""
    found = numbers(environment, "RANK", "WORLD_SIZE")
    if found is None or "TORCHELASTIC_RUN_ID" not in environment:
        return None
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    key = " ".join(environment.get(name, "") for name in names)
    if environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        key += " " + machine()
    return Started("torchrun", *found, key=key, has_mpi=False)
