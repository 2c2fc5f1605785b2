# SPDX-License-Identifier: Apache-2.0
"""srun of Slurm: plain, with PMIx or with PMI-2; also in sbatch and salloc."""

from __future__ import annotations

from horovod.world.launchers.base import Environment, Started, numbers

__all__ = ["is_step", "recognise"]

_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # the steps of a batch script, an interactive shell and the like


def is_step(environment: Environment) -> bool:
    """True if srun started this process. A batch script has variables of tasks as well, but is not a task."""
    found = numbers(environment, "SLURM_STEP_ID", "SLURM_PROCID")
    return found is not None and found[0] < _FIRST_SPECIAL_STEP


def recognise(environment: Environment) -> Started | None:
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    found = numbers(environment, "SLURM_PROCID", size_name)
    if found is None or not is_step(environment):
        return None
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    key = " ".join(environment[name] for name in names if environment.get(name))
    has_mpi = "PMIX_RANK" in environment or "PMI_RANK" in environment  # not with --mpi=none
    return Started("srun", *found, key=key, has_mpi=has_mpi)
