# SPDX-License-Identifier: Apache-2.0
"""Slurm on the hosts of a cluster (support/cluster.py): its controller on the first one, its daemon on all.

    with Slurm(made, made.hosts) as slurm:
        slurm.run("srun", "-n4", "hostname")

Each host's state is in its private /run. Everything ends with the hosts.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from support.cluster import Cluster, Host
from support.extent import SLACK_S
from support.patience import wait_until

__all__ = ["Slurm", "lacking", "wait_for_steps"]

_TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol", "sinfo")
_CONFIG = """\
ClusterName=test
SlurmctldHost=host0
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName=host[0-{last}] CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str | None:
    """What is missing of Slurm on this machine; None if it is there."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"Slurm's {', '.join(missing)} (Debian's package slurm-wlm)" if missing else None


def wait_for_steps(hosts: Sequence[Host]) -> None:
    """Until Slurm's own process of each step has ended. Without the daemons, which it reports to, it would stay."""
    wait_until(lambda: not [words for host in hosts for words in host.processes().values() if "slurmstepd" in words])


class Slurm:
    """From `with` to its end."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host]) -> None:
        self._folder = cluster.folder / "slurm"
        self.hosts = hosts
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Slurm:
        self._folder.mkdir()
        (self._folder / "slurm.conf").write_text(_CONFIG.format(last=len(self.hosts) - 1))
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        with self._stack:
            for host in self.hosts:
                host.run("mount", "--bind", str(self._folder), "/etc/slurm", check=True)
                host.run("mkdir", "/run/slurmctld", "/run/slurmd", check=True)
            self._start(self.hosts[0], "slurmctld")
            for host in self.hosts:
                self._start(host, "slurmd")
            self._wait_until_idle()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command on the first host."""
        return self.hosts[0].run(*words, **options)

    def assert_idle(self) -> None:
        """No process of a job is left on any host."""

        def left() -> list[str]:
            return [words for host in self.hosts for words in host.processes().values() if "slurm" not in words]

        wait_until(lambda: not left(), lambda: f"left behind: {left()}", 3.0 + SLACK_S)

    def wait_for_job(self, number: str) -> str:
        """Waits until this job has ended; its state."""

        def ended() -> str | None:
            shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout
            state = dict(word.split("=", 1) for word in shown.split() if "=" in word).get("JobState", "?")
            return None if state in ("PENDING", "RUNNING", "COMPLETING") else state

        return wait_until(ended)

    def _start(self, host: Host, daemon: str) -> None:
        with open(self._folder / f"{daemon}.{host.name}", "w") as out:
            process = host.popen(daemon, "-D", stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _wait_until_idle(self) -> None:
        def states() -> list[str]:
            return self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()

        wait_until(
            lambda: states() == ["idle"] * len(self.hosts),
            lambda: "\n".join(path.read_text()[-2000:] for path in self._folder.glob("slurm*.host*")),
        )
