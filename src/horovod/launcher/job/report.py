# SPDX-License-Identifier: Apache-2.0
"""The launcher's part of a report (horovodrun --report): what ran, how it ended, and what is in the folder.

The ranks write theirs themselves (world/report.py), each into the folder on its own host.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod.core.wording import of_system, on_one_line, plain, tell
from horovod.launcher.job import supervise
from horovod.launcher.job.output import local_time
from horovod.launcher.job.redaction import REMOVED, Redaction
from horovod.launcher.job.spec import Job
from horovod.launcher.job.supervision import Conclusion, Keep
from horovod.launcher.options.usage import UsageError
from horovod.settings import rows
from horovod.world.files.whole import write_whole
from horovod.world.network import at_port
from horovod.world.report import facts
from horovod.world.secret import new_secret

__all__ = ["LOGS", "run"]

LOGS = "logs"  # the folder of the ranks' output, as cli.py names it
_LISTED_RANKS = 20


@dataclasses.dataclass(frozen=True)
class _Run:
    """One job that has ended. `end`: what horovodrun said of it."""

    job: Job
    arguments: Sequence[str]
    started: str
    seconds: float
    code: int
    end: str


def run(folder: Path, job: Job, arguments: Sequence[str], secret: bytes | None, keep: Keep) -> int:
    """Runs the job as supervise.run does, then writes its report, and says where that is. Raises UsageError."""
    secret = secret or new_secret()
    ends: list[Conclusion] = []

    def keep_both(conclusion: Conclusion) -> None:
        ends.append(conclusion)
        keep(conclusion)

    started, started_s = local_time().strip(), time.monotonic()

    def written(code: int) -> None:
        end = "\n".join(conclusion.text for conclusion in ends)
        one = _Run(job, arguments, started, time.monotonic() - started_s, code, end)
        _write(folder, one, Redaction(secret.hex()))

    try:
        code = supervise.run(job, secret, keep_both)
    except UsageError as error:
        ends.append(Conclusion(plain(f"horovodrun: {error}")))
        written(error.exit_code)
        raise
    written(code)
    return code


def _write(folder: Path, one: _Run, redaction: Redaction) -> None:
    try:
        job = _job_file(one, redaction)
        write_whole(folder / "job.json", json.dumps(job, indent=1) + "\n")
        for path in sorted((folder / LOGS).rglob("std*")):
            redaction.file(path)
        absent = _absent_hosts(folder, one.job)
        write_whole(folder / "report.txt", "\n".join(_page(folder, one, job, absent)) + "\n")
    except OSError as error:
        tell(f"horovodrun: warning: the report cannot be written: {of_system(error)}")
        return
    tell(f"horovodrun: the report is in {folder}")
    if absent:
        tell(f"horovodrun: {_where_else(folder, absent)}")


def _job_file(one: _Run, redaction: Redaction) -> dict[str, Any]:
    environment = redaction.environment(one.job.environment)
    return {
        "command": redaction.words(["horovodrun", *one.arguments]),
        "directory": one.job.directory,
        "started": one.started,
        "seconds": round(one.seconds, 3),
        "exit_code": one.code,
        "end": redaction.text(one.end),
        "ranks": [dataclasses.asdict(rank) for rank in one.job.ranks],
        "settings": _settings(environment),
        "environment": environment,
        "launcher": facts(),
    }


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that are given; all others have their defaults."""
    known = {row.variable for row in rows()}
    return {name: value for name, value in environment.items() if name in known}


def _absent_hosts(folder: Path, job: Job) -> list[str]:
    """Other hosts whose parts are not here; those of elastic jobs are not known before."""
    hosts = dict.fromkeys(rank.hostname for rank in job.ranks)
    placements = {host: job.placement_for(host) for host in hosts}
    others = [host for host, placement in placements.items() if placement is not None and placement.remote]
    return [host for host in others if not (folder / "hosts" / f"{host}.json").is_file()]


def _where_else(folder: Path, hosts: Sequence[str]) -> str:
    named = ", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else "")
    are = f"host{'s' if len(hosts) > 1 else ''} {named}"
    theirs, them = ("their parts are", "those hosts") if len(hosts) > 1 else ("its part is", "that host")
    return f"{are}: {theirs} missing here. If its ranks called init, copy {folder} from {them} into this folder"


def _page(folder: Path, one: _Run, job: dict[str, Any], absent: Sequence[str]) -> list[str]:
    counted: dict[str, int] = {}
    for rank in one.job.ranks:
        counted[rank.hostname] = counted.get(rank.hostname, 0) + 1
    lines = [
        "Report of a job of Horovod",
        "",
        f"command    {on_one_line(shlex.join(job['command']))}",
        f"folder     {one.job.directory}",
        f"started    {one.started}, ran {one.seconds:.1f} s",
        f"exit code  {one.code}",
        f"ranks      {len(one.job.ranks) or 'elastic'}{': ' if counted else ''}"
        + ", ".join(at_port(host, slots) for host, slots in counted.items()),
        f"horovod    {job['launcher']['horovod']}",
        f"python     {job['launcher']['python']}",
        *(f"{name:<10} {version}" for name, version in job["launcher"]["packages"].items()),
        "",
        "How it ended",
        job["end"] or ("all ranks have ended well" if one.code == 0 else "horovodrun said nothing"),
        "",
        "Files",
        *_listed(folder),
    ]
    without = _without_counters(folder, one.job)
    if without:
        more = ", ..." if len(without) > _LISTED_RANKS else ""
        listed = ", ".join(map(str, without[:_LISTED_RANKS])) + more
        ranks, these = ("ranks", "these ranks were") if len(without) > 1 else ("rank", "this rank was")
        lines.append(f"the counters of {ranks} {listed} are missing: {these} killed, or never called init")
    if absent:
        lines.append(_where_else(folder, absent))
    return [
        *lines,
        "",
        f"What looks secret was removed, and is {REMOVED} now: values of variables and flags, and these values in the",
        "ranks' output. Look through the folder before you give it to others.",
        *_timeline(folder, one.job, job["settings"].get("HOROVOD_TIMELINE", "")),
    ]


def _timeline(folder: Path, job: Job, setting: str) -> Iterator[str]:
    """Where it is, and what reads it; nothing if there is none."""
    if setting.upper() == "DYNAMIC":
        yield "The timeline is not in this folder: the script names its file (HOROVOD_TIMELINE=DYNAMIC)."
    elif setting:
        path = Path(job.directory, setting)
        where = str(path) if len({rank.hostname for rank in job.ranks}) == 1 else f"{path} on each host"
        yield f"The timeline is not in this folder: the settings name {where}."
        yield f"Add it to the folder. `python -m horovod.trace summary {shlex.quote(str(path))}` reads it."
    else:
        for path in sorted(folder.glob("timeline.*"))[:1]:
            yield f"`python -m horovod.trace summary {shlex.quote(path.name)}` reads the timeline of a host."


_MEANING = {
    "job.json": "command, settings, environment, end, versions",
    LOGS: "the ranks' output",
    "statistics": "each rank's counters at its end, as hvd.statistics() has them",
    "hosts": "versions and machine of each host",
}


def _listed(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    meaning = {name: _MEANING.get(name, "timeline of the ranks of a host") for name in found if name != "report.txt"}
    return [f"{name:<20} {text}" for name, text in meaning.items()]


def _without_counters(folder: Path, job: Job) -> list[int]:
    return [rank.rank for rank in job.ranks if not (folder / "statistics" / f"rank.{rank.rank}.json").is_file()]
