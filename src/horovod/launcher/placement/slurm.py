# SPDX-License-Identifier: Apache-2.0
"""The agent of a node of a Slurm job, started by srun: a step of one task, where sshd may be closed to users.

The step shares all that the job has on the node with other steps (--overlap, Slurm 20.11 and later) and is bound to no
core, because the ranks are its children. Its environment is only what the agent needs: the job's own goes through the
pipes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from horovod.launcher.placement.base import PlacementOptions
from horovod.launcher.placement.remote import NEEDED_BY_PYTHON, REMOTE_AGENT_COMMAND, RemotePlacement

__all__ = ["SlurmPlacement"]

# Not SLURM_*, which srun would take as options of the step, and of which it sets its own.
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "SLURM_CONF", *NEEDED_BY_PYTHON)


class SlurmPlacement(RemotePlacement):
    name = "srun"
    program = "srun"
    test = "srun --overlap --nodes=1 --ntasks=1 --nodelist={host} true"
    hints = {
        "unrecognized option": "this Slurm is older than 20.11; --start-with ssh may work",
        "Invalid job id": "the allocation has ended, or belongs to another user",
    }

    def command(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
        step = [f"--jobid={environment.get('SLURM_JOB_ID', '')}", f"--nodelist={host}", "--nodes=1", "--ntasks=1"]
        shared = ["--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"]
        quiet = ["--export=ALL", "--chdir=/", "--job-name=horovodrun", "--quiet"]
        return ["srun", *step, *shared, *quiet, *REMOTE_AGENT_COMMAND]

    def own_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: environment[name] for name in _KEPT if name in environment}

    def is_unreached(self, code: int, said: str) -> bool:
        # A command that cannot be executed there is srun's error as well.
        return "srun: error:" in said and sys.executable not in said and "No module named" not in said
