# SPDX-License-Identifier: Apache-2.0
"""Which rank brought a job down, and how to say so. Pure: exits and records in, a decision and its text out."""

from __future__ import annotations

import dataclasses
import itertools
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.core.exceptions import (
    NOT_REACHED,
    AbortedError,
    PeerRefusedError,
    RankLeftError,
    RankLostError,
    StartError,
    explain_command,
)
from horovod.launcher.host import memory
from horovod.launcher.host.processes import shell_code, signal_name

__all__ = [
    "LATE",
    "REJOINED",
    "Cause",
    "Line",
    "RankExit",
    "describe_end",
    "last_exception",
    "last_words",
    "report",
    "root_cause",
    "waited_in_init",
    "was_refused_by_a_peer",
]

LATE = "start-timeout"  # the code of a record of ranks that have not called init in time

REJOINED = "rejoined"  # of a record of a rank that has called shutdown and init while others waited for it

# A rank that a signal ended has not explained itself: older lines of its stderr are not about its end.
_RECENT_S = 2.0
# Lines older than this are shown with their age.
_OLD_S = 10.0

# Exits this close together may have been noticed in any order.
_TOGETHER_S = 0.2

# Lines that TensorFlow and XLA log in normal runs (devices found, libraries registered twice), in glog's form and
# theirs. Lines of level F are why a process ends.
_FRAMEWORK_LOG = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] |WARNING: All log messages before absl::"
)

_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGTERM: "something outside this job ended the process, for example a batch system at its time limit",
    signal.SIGSEGV: "a crash in native code; PYTHONFAULTHANDLER=1 prints where each thread stood",
    signal.SIGABRT: "a crash in native code; PYTHONFAULTHANDLER=1 prints where each thread stood",
    signal.SIGBUS: "a crash in native code, often a full /dev/shm or a truncated file that was mapped",
    signal.SIGILL: "native code was built for another processor",
}

_KINDS = ("RANK_LEFT", "ABORTED", LATE, REJOINED)
_EQUAL_STEPS = "all ranks must make the same number of steps and collective calls"

_FRAME = re.compile(r'  File ".*", line \d+')
_STALL = "horovod: warning: stall: "  # the first line of a report
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(:|$)")
_NOT_FATAL = ("Exception ignored", "Exception in thread")  # in front of a traceback

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

# Hints for a SIGKILL, by the counters of the out-of-memory killer; the kernel does not tell the sender.
_KILL_HINTS = {
    memory.IN_CGROUP: "the job's memory limit (cgroup) was reached: fewer ranks, smaller batches, fewer DataLoader "
    "workers, or a higher limit",
    memory.ON_MACHINE: "the kernel ended a process of this machine for lack of memory at that time, most likely this "
    "one: fewer ranks, smaller batches, fewer DataLoader workers",
    memory.NO_PROCESS: "memory did not run out, and horovodrun did not send SIGKILL: perhaps a batch system did, "
    "at a limit, or the process itself",
    memory.UNKNOWN: "who sent it is not known; if memory ran out, `dmesg | grep -i oom` says so",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a rank's stderr, and when it came, on the clock of RankExit."""

    text: str
    time_s: float


@dataclasses.dataclass(frozen=True)
class RankExit:
    """`code` as Python counts it: negative for a signal.

    `asked`: the launcher had already told the ranks to end. `memory`: for SIGKILL, what the out-of-memory killer's
    counters say (launcher/host/memory.py). `blames_a_peer`: its last words are that another rank's call was wrong.
    """

    rank: int
    code: int
    time_s: float
    asked: bool = False
    memory: str = memory.UNKNOWN
    blames_a_peer: bool = False

    @property
    def failed(self) -> bool:
        return self.code != 0 and not self.asked

    @property
    def exit_code(self) -> int:
        return shell_code(self.code)

    @property
    def how(self) -> str:
        """In words that follow the name of the process."""
        return f"was killed by {signal_name(-self.code)}" if self.code < 0 else f"exited with code {self.code}"


@dataclasses.dataclass(frozen=True)
class Cause:
    """`record`: what the ranks themselves say of it, may be empty.

    `stopped_by`: a signal that stopped the rank, which has not been continued. `kind`: what the ranks call it, if not a
    loss: RANK_LEFT; REJOINED; ABORTED if they gave up waiting for it, at the stall limit for example, although it may
    be alive; LATE if it has not called init in time.
    """

    rank: int
    code: int
    record: str = ""
    stopped_by: int = 0
    kind: str = ""

    @property
    def exit_code(self) -> int:
        return shell_code(self.code)


def root_cause(
    exits: Sequence[RankExit], record: Mapping[str, Any] | None, stopped: Mapping[int, int] | None = None
) -> Cause | None:
    """None: nothing failed. `exits` in the order in which they were noticed.

    The ranks' record decides; a generation has only one, the first. Without a record, the first exit counts. A death by
    signal is preferred to a nonzero exit at about the same time, because the exit is more likely its consequence. An
    exit that blames a peer is a consequence, however long the peer took to end.
    `stopped`: ranks that stood still too long, with the signals that stopped them, in order.
    """
    stopped = stopped or {}
    failed = [one for one in exits if one.failed]
    first = None
    if failed:
        together = [one for one in failed if one.time_s - failed[0].time_s <= _TOGETHER_S]
        own_fault = [one for one in failed if not one.blames_a_peer]
        first = next((one for one in together if one.code < 0), next(iter(own_fault), failed[0]))
    named = record.get("rank") if record else None
    text = str(record.get("text", "")) if record else ""
    if first is None and stopped:
        rank, number = next(iter(stopped.items()))
        return Cause(rank, -number, text if named == rank else "", number)
    if first is None:
        return None  # a recorded failure that the script survived is none of the launcher's business
    if isinstance(named, int) and named >= 0:
        own = next((one for one in exits if one.rank == named), None)
        # The named rank may have left with 0, or hang still: the exit code is then that of the first who failed for it.
        code = own.code if own is not None and own.failed else first.code
        kind = record.get("code") if record else None
        return Cause(named, code, text, stopped.get(named, 0), kind if kind in _KINDS else "")
    return Cause(first.rank, first.code, text)


def was_refused_by_a_peer(last_lines: Sequence[Line]) -> bool:
    """True if a rank's last words are that another rank's call was wrong."""
    return any(explain_command(PeerRefusedError.code) in line.text for line in last_lines)


def waited_in_init(last_lines: Sequence[Line]) -> str:
    """The last words of a rank that waited in init for ranks that did not call it; else empty."""
    if not any(explain_command(LATE) in line.text for line in last_lines):
        return ""
    said = (line.text.partition(f"{StartError.__name__}: ")[2] for line in last_lines)
    return next((text for text in said if "not called init" in text), "")


def describe_end(ended: RankExit, pid: int) -> str:
    """How a rank ended: for the ranks that wait for it, and for --verbose."""
    how = "was ended by horovodrun" if ended.asked and ended.code < 0 else ended.how
    return f"rank {ended.rank} (process {pid}) {how}"


def report(
    cause: Cause,
    exits: Sequence[RankExit],
    hostname: str,
    last_lines: Sequence[Line],
    init_timeout: str = "--start-timeout",
) -> str:
    """The last words of a failed job: what the rank said last, which rank it was and where, what happened, and a hint.

    The cause comes last, so that it is what the user reads first on the terminal. `init_timeout`: the limit's name.
    """
    own = next((one for one in exits if one.rank == cause.rank), None)
    happened, hint, code = _happened(cause, own, init_timeout)
    ended_well = own is not None and own.code == 0 and not last_exception(last_lines, own.time_s)
    lines = [] if ended_well else last_words(cause.rank, own, last_lines)
    said = [line.text for line in last_lines if line.text.startswith(explain_command(""))]
    if code == "rank-failed" and said:  # an exception of ours, which the rank did not catch, has a code of its own
        more = said[-1]
        lines = [line for line in lines if line.strip() != more]
    else:
        more = explain_command(code)
    record = cause.record.splitlines()
    is_said = any(line.endswith(record[0]) for line in lines) if record else True
    lines.append(f"horovodrun: rank {cause.rank} on host {hostname} {happened}")
    if not is_said:
        lines.append("  as the ranks saw it: " + "\n    ".join(record))
    if not last_lines and own is not None and own.code > 0:
        hint = hint or "it wrote nothing to stderr; its stdout may tell more"
    if hint and "hint:" not in cause.record:
        lines.append(f"hint: {hint}")
    return "\n".join([*lines, more])


def _happened(cause: Cause, own: RankExit | None, init_timeout: str) -> tuple[str, str, str]:
    """The rank's end in words, a hint, which may be empty, and the code that is explained."""
    if cause.stopped_by and (own is None or own.asked):
        hint = "Ctrl-Z suspends a whole job; HOROVOD_FROZEN_TIMEOUT_SECONDS=0 lets ranks wait for one that is stopped"
        return f"was stopped by {signal_name(cause.stopped_by)} and not continued", hint, "rank-stopped"
    if cause.kind == REJOINED:
        hint = "call shutdown() and init() on all ranks, after the same collectives"
        return "called shutdown() and init() while other ranks still waited for it", hint, RankLeftError.code
    if own is None or own.asked:
        if cause.kind == "RANK_LEFT":
            return "shut down while other ranks still waited for it, and was ended", _EQUAL_STEPS, RankLeftError.code
        if cause.kind == LATE:
            hint = (
                f"look at its output for what it did instead of hvd.init(); {init_timeout} lets the others wait longer"
            )
            return "did not call init in time, and was ended", hint, LATE
        if cause.kind == "ABORTED" and "HOROVOD_NCCL_TIMEOUT_SECONDS" in cause.record:
            hint = "a kernel of its script hangs or is slow: CUDA_LAUNCH_BLOCKING=1 shows which"
            return "waited too long for its GPU, and was ended", hint, "gpu-stall"
        if cause.kind == "ABORTED":
            hint = "all ranks must call the same collectives: look for a branch on the rank, or uneven data"
            return "did not make a call that others waited for, and was ended", hint, AbortedError.code
        if NOT_REACHED in cause.record:
            return "could not be reached by another rank, and was ended", "", RankLostError(cause.record).code
        return "had stopped taking part and was ended", "", RankLostError.code
    if own.code == -signal.SIGKILL:
        in_cgroup = own.memory == memory.IN_CGROUP
        code = "rank-out-of-memory" if in_cgroup or own.memory == memory.ON_MACHINE else "rank-killed"
        return f"was killed by SIGKILL{': out of memory' if in_cgroup else ''}", _KILL_HINTS[own.memory], code
    if own.code < 0:
        code = "rank-crashed" if -own.code in _CRASHES else "rank-killed"
        return f"was killed by {signal_name(-own.code)}", _SIGNAL_HINTS.get(-own.code, ""), code
    if own.code == 0:
        return "exited with code 0 while other ranks still waited for it", _EQUAL_STEPS, RankLeftError.code
    return f"exited with code {own.code}", "", "rank-failed"


def last_words(rank: int, own: RankExit | None, last_lines: Sequence[Line], name: str = "rank") -> list[str]:
    """The end of the rank's stderr, as far as it is about the rank's end. `name`: what the number is of.

    Left out: what frameworks log, frames of tracebacks, stall reports that an error follows, and old lines.
    """
    end_s = own.time_s if own is not None else max((line.time_s for line in last_lines), default=0.0)
    recent = [line for line in last_lines if own is None or own.code >= 0 or end_s - line.time_s <= _RECENT_S]
    telling = [line for line in recent if not _FRAMEWORK_LOG.match(line.text)]
    if not telling:
        return []
    age_s = end_s - telling[-1].time_s
    age = f", written {age_s:.0f} s before its end" if age_s > _OLD_S else ""
    texts = _without_stall(_without_frames([line.text for line in telling]))
    return [f"horovodrun: the last lines of {name} {rank}'s stderr{age}:", *(f"    {text}" for text in texts)]


def last_exception(last_lines: Sequence[Line], end_s: float) -> str:
    """The exception that ended a Python script: the line after the last traceback's frames. Empty if there is none.

    Its text may go on in further lines, and other lines may follow it. Old tracebacks do not count, nor those of
    threads and of what the interpreter ignores.
    """
    found, in_frames, is_fatal = "", False, True
    for before, line in itertools.pairwise([Line("", 0.0), *last_lines]):
        if line.text.startswith("Traceback (most recent"):
            is_fatal = not before.text.startswith(_NOT_FATAL)
        elif _FRAME.match(line.text):
            in_frames = True
        elif in_frames and not line.text.startswith(" "):
            in_frames = False
            if is_fatal and _EXCEPTION.match(line.text) and end_s - line.time_s <= _OLD_S:
                found = line.text
    return found


def _without_frames(lines: Sequence[str]) -> Sequence[str]:
    """Keeps only the exceptions of tracebacks: the frames stand further up, where the rank wrote them."""
    # The lines that are kept may begin in the middle of a traceback.
    in_frames = any(_FRAME.match(line) for line in itertools.takewhile(lambda line: line.startswith(" "), lines))
    kept = []
    for line in lines:
        in_frames = line.startswith("Traceback (most recent") or (in_frames and line.startswith(" "))
        if not in_frames:
            kept.append(line)
    return kept or lines


def _without_stall(lines: Sequence[str]) -> Sequence[str]:
    """Without reports that stand further up as well, if the error that came of them follows."""
    end = next((at for at in reversed(range(len(lines))) if lines[at] == explain_command("stall")), -1)
    begin = next((at for at, line in enumerate(lines[: end + 1]) if _STALL in line), 0)
    return [*lines[:begin], *lines[end + 1 :]] if end + 1 < len(lines) else lines
