# SPDX-License-Identifier: Apache-2.0
"""Which rank brought a job down, and how to say so. Pure: exits and records in, a decision and its text out."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.launcher.processes import signal_name

__all__ = ["Cause", "RankExit", "report", "root_cause"]

# Exits this close together may have been noticed in any order.
_TOGETHER_S = 0.2

_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "nobody in this job sent it: the machine may have run out of memory, see `dmesg | grep -i oom`",
    signal.SIGTERM: "something outside this job ended the process, for example a batch system at its time limit",
    signal.SIGSEGV: "a crash in native code; PYTHONFAULTHANDLER=1 prints where each thread stood",
    signal.SIGABRT: "a crash in native code; PYTHONFAULTHANDLER=1 prints where each thread stood",
    signal.SIGBUS: "a crash in native code, often a full /dev/shm or a truncated file that was mapped",
    signal.SIGILL: "native code was built for another processor",
}


@dataclasses.dataclass(frozen=True)
class RankExit:
    """`code` as Python counts it: negative for a signal. `asked`: the launcher had already told the ranks to end."""

    rank: int
    code: int
    time_s: float
    asked: bool = False

    @property
    def failed(self) -> bool:
        return self.code != 0 and not self.asked


@dataclasses.dataclass(frozen=True)
class Cause:
    """`record`: what the ranks themselves say of it, may be empty."""

    rank: int
    code: int
    record: str = ""

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code


def root_cause(exits: Sequence[RankExit], record: Mapping[str, Any] | None) -> Cause | None:
    """None: nothing failed. `exits` in the order in which they were noticed.

    What the ranks recorded decides; the first record of a generation is the only one. Without it: the first exit, where
    a death by signal goes before a nonzero exit of about the same time, which is more likely its consequence.
    """
    failed = [one for one in exits if one.failed]
    first = None
    if failed:
        together = [one for one in failed if one.time_s - failed[0].time_s <= _TOGETHER_S]
        first = next((one for one in together if one.code < 0), failed[0])
    named = record.get("rank") if record else None
    text = str(record.get("text", "")) if record else ""
    if first is None:
        return None  # a recorded failure that the script survived is none of the launcher's business
    if isinstance(named, int) and named >= 0:
        own = next((one for one in exits if one.rank == named), None)
        # The named rank may have left with 0, or hang still: the exit code is then that of the first who failed for it.
        return Cause(named, own.code if own is not None and own.failed else first.code, text)
    return Cause(first.rank, first.code, text)


def report(cause: Cause, exits: Sequence[RankExit], hostname: str, last_lines: Sequence[str]) -> str:
    """The last words of a failed job: rank, host, what happened to it, what it said last, and a hint."""
    own = next((one for one in exits if one.rank == cause.rank), None)
    hint = ""
    if own is None or own.asked:
        happened = "had stopped taking part and was ended"
    elif own.code < 0:
        happened = f"was killed by {signal_name(-own.code)}"
        hint = _SIGNAL_HINTS.get(-own.code, "")
    elif own.code == 0:
        happened = "exited with code 0 while other ranks still waited for it"
        hint = "all ranks must make the same number of steps and collective calls"
    else:
        happened = f"exited with code {own.code}"
    lines = [f"horovodrun: rank {cause.rank} on host {hostname} {happened}"]
    if cause.record:
        lines.append("  as the ranks saw it: " + cause.record.replace("\n", "\n    "))
    if last_lines:
        lines.append("  the last lines of its stderr:")
        lines += [f"    {line}" for line in last_lines]
    elif own is not None and own.code > 0:
        hint = hint or "it wrote nothing to stderr; its stdout may tell more"
    if hint and "hint:" not in cause.record:
        lines.append(f"hint: {hint}")
    return "\n".join(lines)
