# SPDX-License-Identifier: Apache-2.0
"""Runs the drills one after the other, each as a job of horovodrun with the user's own flags, and prints the table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from horovod.core.wording import counted, tell
from horovod.launcher.drill import verdicts
from horovod.launcher.drill.links import Link
from horovod.launcher.drill.rank import LATE_S, MARK
from horovod.launcher.drill.verdicts import Row
from horovod.launcher.host.processes import die_with_parent, shell_code
from horovod.settings import Settings
from horovod.world.interpreter import python_command

__all__ = ["run"]

JOB_S = 100.0  # then a job is ended
LINK_ROUND_S = 5.0  # more, for each round of pairs
NOTICED_S = 0.5
_END_S = 10.0
_interrupted = threading.Event()


@dataclasses.dataclass
class Ended:
    """A job: what its ranks told, its stderr, its exit code (None: it had to be ended), and when the fault was."""

    told: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    stderr: str = ""
    code: int | None = None
    fault_s: float = 0.0
    end_s: float = 0.0

    def said(self, key: str) -> dict[str, Any] | None:
        return next((one for one in self.told if key in one), None)

    @property
    def after_fault_s(self) -> float:
        return self.end_s - self.fault_s

    def failure(self) -> str:
        """For a job that should have worked: why not, in its own words."""
        if self.code is None:
            return "the job did not end"
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        cause = next((line for line in reversed(lines) if line.startswith("horovodrun: ")), "it said nothing")
        return f"exit code {self.code}: {cause}"


def run(flags: Sequence[str], hosts: Sequence[str]) -> int:
    """Return 0 if every drill that ran went as expected. `flags`: horovodrun's, of the user. `hosts`: by rank."""
    try:
        with _interrupts_wait():
            rows = _all(flags, hosts)
    except KeyboardInterrupt:  # the job that ran has ended
        tell("horovodrun: drill: interrupted")
        return shell_code(-signal.SIGINT)
    tell(verdicts.table(rows), sys.stdout)
    failed = [row.drill for row in rows if not row.held]
    tell(
        f"horovodrun: drill: {', '.join(failed)}: not as expected"
        if failed
        else "horovodrun: drill: every drill that ran went as expected"
    )
    return 1 if failed else 0


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C is kept for _job's loop. Raised in the middle of a fork, Python would only print the exception."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGINT, lambda *_: _interrupted.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _all(flags: Sequence[str], hosts: Sequence[str]) -> list[Row]:
    settings, size = Settings.from_environment(), len(hosts)
    rows = _checked(flags)
    if all(row.drill != "start" for row in rows):
        rows += [_killed(flags, size, settings), _stopped(flags, size, settings), _late(flags, size)]
        rows.append(_elastic(flags, hosts))
    return rows


def _checked(flags: Sequence[str]) -> list[Row]:
    ended = _job("checks", flags)
    facts = ended.said("hosts")
    if ended.code != 0 or facts is None:
        return [Row("start", "a job starts", ended.failure(), (f"no job starts with these flags\n{ended.stderr}",))]
    hosts = facts["hosts"]
    names = [host["name"] for host in hosts]
    links = [Link(**{**link, "hosts": tuple(link["hosts"])}) for link in facts["links"]]
    return [
        verdicts.of_links(links, names),
        *([verdicts.of_clocks(links, names)] if len(hosts) > 1 else []),
        verdicts.of_memory(hosts),
        verdicts.of_gpus(hosts),
    ]


def _killed(flags: Sequence[str], size: int, settings: Settings) -> Row:
    within_s = NOTICED_S + max(3.0, settings.termination_grace_s)
    return _ended_by("kill", "a rank is killed", within_s, _job("kill", flags), size - 1)


def _stopped(flags: Sequence[str], size: int, settings: Settings) -> Row:
    if not settings.frozen_timeout_s:
        return Row("freeze", "a rank freezes", "not run: HOROVOD_FROZEN_TIMEOUT_SECONDS is 0", ran=False)
    within_s = settings.frozen_timeout_s + 1.0 + max(3.0, settings.termination_grace_s)
    return _ended_by("freeze", "a rank freezes", within_s, _job("freeze", flags), size - 1)


def _ended_by(drill: str, what: str, within_s: float, ended: Ended, victim: int) -> Row:
    fault = "was killed" if drill == "kill" else "froze"
    promised = f"{what}: the job ends within {within_s:g} s, and names it"
    if ended.said("fault") is None:
        return Row(
            drill, promised, ended.failure(), (f"{drill}: the job failed before the rank {fault}\n{ended.stderr}",)
        )
    if ended.code is None:
        return Row(drill, promised, "the job went on", (f"{drill}: processes may be left on the hosts: check there",))
    mend = []
    names = re.search(rf"\brank {victim}\b", ended.stderr) is not None
    if ended.code == 0:
        mend.append(f"{drill}: the job ended with exit code 0, as if nothing had been lost. Report this")
    if not names:
        mend.append(f"{drill}: the message does not name rank {victim}. Report this, with the output\n{ended.stderr}")
    if ended.after_fault_s > within_s:
        mend.append(f"{drill}: the job took {ended.after_fault_s:.0f} s to end. Check whether the hosts are overloaded")
    return Row(
        drill, promised, f"{ended.after_fault_s:.1f} s, rank {victim} {'named' if names else 'not named'}", tuple(mend)
    )


def _late(flags: Sequence[str], size: int) -> Row:
    promised = f"a rank is {LATE_S:g} s late: it is reported, and the job goes on"
    ended = _job("late", [*flags, "--stall-check", "--stall-check-warning-time-seconds", "1"])
    seen = ended.said("late")
    if ended.code != 0 or seen is None:
        return Row("late", promised, ended.failure(), (f"late: the job failed\n{ended.stderr}",))
    reported = "stall" in ended.stderr
    mend = [] if reported else ["late: horovodrun did not report the stall. Report this fault"]
    if seen["late"] != size - 1 or seen["waited_s"] < LATE_S / 2:
        mend.append(
            f"late: rank {seen['late']} was waited for longest, not rank {size - 1}. Find out what slows its host"
        )
    happened = (
        f"{'reported' if reported else 'not reported'}; rank {seen['late']} was waited for, {seen['waited_s']:.1f} s"
    )
    return Row("late", promised, happened, tuple(mend))


def _elastic(flags: Sequence[str], hosts: Sequence[str]) -> Row:
    promised = "a worker of an elastic job is killed: the others go on, no step is lost"
    size = len(hosts)
    # A host with a failed worker is not used any more, if there are others.
    least = size - hosts.count(hosts[-1]) or size - 1
    ended = _job("elastic", [*flags, "-np", str(size), "--min-np", str(least)])
    seen = ended.said("steps")
    if ended.code != 0 or seen is None:
        return Row("elastic", promised, ended.failure(), (f"elastic: the job failed\n{ended.stderr}",))
    if ended.said("fault") is None:
        return Row("elastic", promised, "no worker was killed", ("elastic: the loss did not happen. Report this",))
    mend = () if seen["right"] else ("elastic: the sums are wrong, a step was lost or done twice. Report this",)
    return Row(
        "elastic", promised, f"{counted(seen['steps'], 'step')}, the last with {counted(seen['size'], 'worker')}", mend
    )


def _job(name: str, flags: Sequence[str]) -> Ended:
    """One job of horovodrun, to its end."""
    tell(f"horovodrun: drill: {name}")
    process = subprocess.Popen(
        [
            *python_command("horovod.launcher"),
            *flags,
            "--no-prefix",
            *python_command("horovod.launcher.drill.rank"),
            name,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    ended = Ended(end_s=time.monotonic() + JOB_S)
    readers = [
        threading.Thread(target=_read, args=(process.stdout, lambda line: _heard(line, ended)), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, lambda line: _noted(line, ended)), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        while process.poll() is None and time.monotonic() < ended.end_s:
            if _interrupted.wait(0.01):
                raise KeyboardInterrupt
        ended.code = process.returncode
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    ended.end_s = time.monotonic()
    for reader in readers:
        reader.join(_END_S)
    return ended


def _read(stream: Any, hear: Callable[[str], None]) -> None:
    for line in stream:
        hear(line)


def _heard(line: str, ended: Ended) -> None:
    _, mark, text = line.partition(MARK)  # a time may be in front
    if not mark:
        return
    told = json.loads(text)
    if "fault" in told:
        ended.fault_s = time.monotonic()
    if "progress" in told:
        ended.end_s += LINK_ROUND_S
        tell(f"horovodrun: drill: {told['progress']}")
    ended.told.append(told)


def _noted(line: str, ended: Ended) -> None:
    ended.stderr += line
