# SPDX-License-Identifier: Apache-2.0
"""`horovodrun jobs`: the user's jobs that run on this host."""

from __future__ import annotations

import datetime
import shutil
import sys
import time

from horovod.core.wording import on_one_line
from horovod.launcher.watch.door import Running, jobs_here
from horovod.launcher.watch.facts import facts_of

__all__ = ["jobs"]


def jobs() -> str:
    """Return the table of jobs as text. Raises UsageError."""
    found = jobs_here()
    if not found:
        return "no job of this user runs on this host"
    rows = [("JOB", "RANKS", "HOSTS", "FOR", "STEPS/S", "COMMAND"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return "\n".join(line[:room] for line in lines)


def _row(job: Running) -> tuple[str, ...]:
    facts = facts_of(job.view)
    hosts = {one.host for one in facts.ranks.values()}
    rates = [one.steps_per_s for one in facts.ranks.values()]
    began = datetime.timedelta(seconds=round(max(0.0, time.time() - job.file.began_s)))
    return (
        job.file.id,
        str(facts.size or "?"),
        str(len(hosts) or "?"),
        str(began),
        f"{max(rates):.1f}" if rates else "-",
        on_one_line(job.file.command),
    )
