# SPDX-License-Identifier: Apache-2.0
"""The other programs that start ranks: mpirun, srun, torchrun. Serves a start without horovodrun.

A launcher is a file with the function `recognise`, and a row here. The innermost comes first: torchrun runs below srun,
and mpirun's processes on other hosts see the variables of the srun that carried them there.

    job.py       the ranks find each other: rank 0 runs the rendezvous, the others get its address
    mpi.py       ... through mpi4py
    folder.py    ... through a file in a folder that all hosts share
    orphans.py   ends a rank whose launcher was killed
    ancestors.py finds a launcher whose variables have not reached this process
"""

from __future__ import annotations

import logging
from typing import Any

from horovod.core.exceptions import StartError
from horovod.core.wording import counted
from horovod.settings import Settings
from horovod.world.launchers import ancestors, hydra, open_mpi, orphans, slurm, torchrun
from horovod.world.launchers.base import Environment, Started, handed

__all__ = [
    "LAUNCHERS",
    "Started",
    "announced_world",
    "end_with_launcher",
    "recognise",
    "started_by",
    "warn_of_dropped_variables",
    "world_size",
]

_log = logging.getLogger("horovod")

LAUNCHERS = (torchrun.recognise, open_mpi.recognise, hydra.recognise, slurm.recognise)


def recognise(environment: Environment) -> Started | None:
    """The program that started this process as one of several. Raises StartError if its rank is impossible."""
    started = _innermost(environment)
    return started if started is not None and started.size > 1 else None


def _innermost(environment: Environment) -> Started | None:
    for one in LAUNCHERS:
        started = one(environment)
        if started is None:
            continue
        if started.rank >= started.size:
            text = f"{started.launcher} says that this is rank {started.rank} of {started.size}"
            raise StartError(text, "start-settings")
        return started
    return None


def started_by(settings: Settings, comm: Any) -> Started | None:
    """The program that started this rank, if not horovodrun. `comm`: the communicator that init was given, or None."""
    if comm is not None and not settings.rendezvous_address:
        return Started("a communicator given to init", comm.Get_rank(), comm.Get_size(), key="", has_mpi=True)
    if comm is not None and comm.Get_size() != settings.size:
        raise StartError(
            f"init was given a communicator of {counted(comm.Get_size(), 'process', 'processes')}, but horovodrun "
            f"started {settings.size} ranks, which MPI does not know\n"
            "hint: start the script with mpirun, or call init without a communicator",
            "start-mpi",
        )
    caller = handed()
    if caller is not None and not settings.rendezvous_address:
        return caller.started
    # HOROVOD_SIZE=1 is the user's word that independent processes are meant.
    if settings.rendezvous_address or settings.size == 1:
        return None
    return recognise(settings.launch_environment)


def end_with_launcher(settings: Settings) -> None:
    """From now on, this rank ends if what has started it is killed, unless horovodrun sees to that."""
    started = recognise(settings.launch_environment)
    if settings.end_with_launcher and started is not None:
        orphans.watch(started, recognise, settings.termination_grace_s)


def world_size(environment: Environment) -> int:
    """The number of processes that were started together; 1 if the environment names no others."""
    started = recognise(environment)
    return 1 if started is None else started.size


def announced_world(environment: Environment) -> tuple[str, str] | None:
    """The word of a launcher that is not known here that this process is one of several, as (variable, value)."""
    candidates = ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"]
    started = _innermost(environment)
    # Not if mpirun has started one process inside of a job with several tasks.
    if (started is None or started.size > 1) and (slurm.is_step(environment) or "PMIX_RANK" in environment):
        candidates.append("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS")
    found = [(variable, environment.get(variable, "").strip()) for variable in candidates]
    several = [(variable, value) for variable, value in found if value.isdecimal() and int(value) > 1]
    # A count that is not a number may mean several processes; to run alone then needs HOROVOD_SIZE=1.
    unreadable = [(variable, value) for variable, value in found if value and not value.isdecimal()]
    return next(iter(several + unreadable), None)


def warn_of_dropped_variables(settings: Settings) -> None:
    """If this process runs alone below a launcher, none of whose variables it has."""
    if settings.size == 1:
        return
    found = ancestors.launcher_above()
    # A batch script, say, is below a launcher, but is not one of several processes.
    if found is not None and (found[0] == "horovodrun" or not settings.launch_environment):
        _log.warning(
            "horovod: warning: this process trains alone (size 1): %s (process %d) has started it, but none of the "
            "variables that name its rank has reached it\n"
            "hint: let the wrapper between them keep the environment: no env -i, sudo -E, su -m; HOROVOD_SIZE=1 says "
            "that one process is meant",
            *found,
        )
