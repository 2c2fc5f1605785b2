# SPDX-License-Identifier: Apache-2.0
"""The meaning of horovodrun's last lines: a part of the table in table.py. Imports nothing of ours."""

from __future__ import annotations

import dataclasses

__all__ = ["EXPLANATIONS_OF_JOBS", "Explanation"]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """`messages`: what identifies the error on a terminal; `...` stands for what differs from case to case.

    `comes_as`: how the error arrives: an exception's name, or who prints it. `actions`: what to do, likeliest first.
    """

    code: str
    title: str
    comes_as: str
    messages: tuple[str, ...]
    why: str
    actions: tuple[str, ...]


_LAUNCHER = "the last lines of horovodrun"

EXPLANATIONS_OF_JOBS = (
    Explanation(
        "rank-failed",
        "A rank's script ended with an error",
        _LAUNCHER,
        ("exited with code",),
        "The script of one rank ended with a nonzero exit code, and the launcher ended the other ranks. In the "
        "terminal, the rank's own last lines come just before horovodrun's, and its whole output before them.",
        (
            "Read the rank's own error. Run the script alone to see if it fails there, too: `python train.py`.",
            "`--output-filename DIR` keeps each rank's output in a file of its own.",
        ),
    ),
    Explanation(
        "rank-killed",
        "A rank was killed by a signal that horovodrun did not send",
        _LAUNCHER,
        ("was killed by SIGKILL", "was killed by SIGTERM"),
        "Another program sent the signal, or the process itself. Batch systems send SIGTERM and then SIGKILL at a "
        "time limit; administrators and scripts use `kill`.",
        (
            "Check the batch system's limits for time and memory.",
            "`dmesg | grep -i oom` shows if the kernel ended it for lack of memory.",
        ),
    ),
    Explanation(
        "rank-out-of-memory",
        "A rank was killed because memory ran out",
        _LAUNCHER,
        ("was killed by SIGKILL: out of memory", "ended a process of this machine for lack of memory"),
        "The kernel's out-of-memory killer ended the process: the job reached its memory limit, or the machine had no "
        "memory left.",
        (
            "Start fewer ranks on this host, use smaller batches, or fewer DataLoader workers.",
            "Raise the memory limit of the container or of the batch job.",
        ),
    ),
    Explanation(
        "rank-crashed",
        "A rank crashed in native code",
        _LAUNCHER,
        ("was killed by SIGSEGV", "was killed by SIGABRT", "was killed by SIGBUS", "was killed by SIGILL"),
        "A library, not Python code, made the process end. SIGBUS often means a full /dev/shm, which PyTorch's "
        "DataLoader uses; SIGILL means that a library was built for another processor.",
        (
            "Set PYTHONFAULTHANDLER=1: it prints where each thread was.",
            "Check /dev/shm: `df -h /dev/shm`.",
        ),
    ),
    Explanation(
        "rank-stopped",
        "A rank was stopped by a signal and not continued",
        _LAUNCHER,
        ("and not continued",),
        "A signal such as SIGSTOP stopped one rank. The others waited for HOROVOD_FROZEN_TIMEOUT_SECONDS and then "
        "gave up. If a debugger has stopped a rank, the other ranks of its host wait for it. But if it is the lowest "
        "rank of its host, other hosts take it for lost after HOROVOD_LOST_TIMEOUT_SECONDS.",
        (
            "To suspend a whole job, press Ctrl-Z in horovodrun's terminal; `fg` lets it go on.",
            "To stop one rank for longer, set HOROVOD_FROZEN_TIMEOUT_SECONDS=0. Then all ranks wait for the stopped "
            "one, for as long as its host answers.",
        ),
    ),
    Explanation(
        "agent-lost",
        "The launcher lost its agent on a host",
        _LAUNCHER,
        ("the agent that holds the ranks of", "the agent that held the ranks of"),
        "horovodrun starts one agent on each host; the agent starts and ends the ranks there. This agent was killed "
        "or stopped, or does not answer, so the job was ended.",
        (
            "To suspend a job, press Ctrl-Z in horovodrun's terminal.",
            "Check whether the agent reached a limit of the host (memory, number of processes).",
        ),
    ),
    Explanation(
        "hosts-not-ready",
        "Some hosts cannot run their ranks",
        _LAUNCHER,
        (
            "not ready; nothing was started",
            "not ready; it gets no workers",
            "cannot be reached by",
            "has no Python at",
            "cannot import horovod",
            "has no folder",
            "cannot reach this host at",
        ),
        "Before any rank starts, horovodrun checks each host: ssh works without a password, the same Python is at the "
        "same path, with the same version of hvd; the working directory and the program exist; and all hosts reach "
        "the same network address of the machine that runs horovodrun. The report lists every host that is not ready.",
        (
            "Follow the hint below each host. `ssh HOST true` must work without a password.",
            "In a job of Slurm, LSF or an older MPI operator of Kubernetes, horovodrun uses srun, blaunch or kubectl "
            "instead of ssh; `--start-with ssh` forces ssh.",
            "Use a shared folder for the Python and the working directory, or the same paths on all hosts.",
            "If several networks connect the hosts, choose one: `--network-interface eth0`. If the name differs "
            "between hosts, list all: `--network-interface eth0,ib0`.",
        ),
    ),
    Explanation(
        "host-lost",
        "horovodrun has lost contact with a machine of the job",
        _LAUNCHER,
        ("was lost: its agent",),
        "The agent on each host sends a sign of life every second. This host's agent has sent none for "
        "HOROVOD_LOST_TIMEOUT_SECONDS (5 s), or its connection (ssh, srun) has ended. The ranks there end by "
        "themselves. If the job is not elastic, horovodrun has ended all others.",
        (
            "Check that the machine and its network are up. Read its logs.",
            "If hosts are silent for a good reason, raise HOROVOD_LOST_TIMEOUT_SECONDS; with 0, no host is given up.",
        ),
    ),
)
