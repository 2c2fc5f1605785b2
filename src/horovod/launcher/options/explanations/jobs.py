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
        "The script of one rank ended with a nonzero exit code, and the launcher ended the other ranks. The rank's own "
        "last lines are above; its whole output is further up.",
        (
            "Read the rank's own error. Run the script alone to see if it fails there, too: `python train.py`.",
            "`--output-filename DIR` keeps each rank's output in a file of its own.",
        ),
    ),
    Explanation(
        "rank-killed",
        "A rank was killed from outside",
        _LAUNCHER,
        ("was killed by SIGKILL", "was killed by SIGTERM"),
        "A signal ended the process. It did not come from the launcher. Batch systems send SIGTERM and then SIGKILL at "
        "a time limit; administrators and scripts use `kill`.",
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
        "DataLoader uses (Horovod does not); SIGILL means that a library was built for another processor.",
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
        "A signal such as SIGSTOP stopped one rank. The others waited for HOROVOD_FROZEN_TIMEOUT_SECONDS and then gave "
        "up. A rank that a debugger holds is not given up by the other ranks of its host. If it is the host's lowest "
        "rank, other hosts give it up after HOROVOD_LOST_TIMEOUT_SECONDS.",
        (
            "To suspend a whole job, press Ctrl-Z in horovodrun's terminal, and `fg` to go on.",
            "To stop one rank for longer, set HOROVOD_FROZEN_TIMEOUT_SECONDS=0. Then all ranks wait for the stopped "
            "one, for as long as its host answers.",
        ),
    ),
    Explanation(
        "agent-lost",
        "The launcher lost the process that holds a host's ranks",
        _LAUNCHER,
        ("the agent that holds the ranks of host", "the agent that held the ranks of host"),
        "horovodrun starts one agent on each host; the agent starts and ends the ranks there. It was killed, stopped, "
        "or does not answer, so the job was ended.",
        (
            "To suspend a job, stop horovodrun itself (Ctrl-Z).",
            "Look for a limit of the host (memory, processes) that ended the agent.",
        ),
    ),
    Explanation(
        "hosts-not-ready",
        "Some hosts cannot hold their ranks",
        _LAUNCHER,
        (
            "not ready; nothing was started",
            "is not ready; it gets no workers",
            "cannot be reached by",
            "has no Python at",
            "cannot import horovod",
            "has no folder",
            "cannot reach this host at",
        ),
        "Before any rank starts, horovodrun checks each host: ssh works without a password, the same Python is at the "
        "same path, with the same version of hvd; the working directory and the program exist; and one network address "
        "of this host is reached by all. The report lists every host that is not.",
        (
            "Follow the hint below each host. `ssh HOST true` must work without a question.",
            "In a batch system's job, horovodrun uses srun, blaunch or kubectl instead; `--start-with ssh` forces ssh.",
            "Use a shared folder for the Python and the working directory, or the same paths on all hosts.",
            "If several networks connect the hosts, choose one: `--network-interface eth0`. If the name differs "
            "between hosts, list all: `--network-interface eth0,ib0`.",
        ),
    ),
    Explanation(
        "host-lost",
        "Another machine of the job cannot be heard any more",
        _LAUNCHER,
        ("was lost: its agent",),
        "horovodrun hears from its agent on each host every second. From this one it has heard nothing for "
        "HOROVOD_LOST_TIMEOUT_SECONDS (5 s), or its connection (ssh, srun) has ended. Ranks there then end by "
        "themselves. If the job is not elastic, all others have been ended.",
        (
            "Check that the machine and its network are up. Read its logs.",
            "If hosts are silent for a good reason, raise HOROVOD_LOST_TIMEOUT_SECONDS; with 0, no host is given up.",
        ),
    ),
)
