# SPDX-License-Identifier: Apache-2.0
"""Finds the user's running jobs on this host, and connects to one of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from horovod.launcher.options.usage import UsageError
from horovod.world.channel import ChannelError
from horovod.world.job_files import JobFile, running_jobs
from horovod.world.rendezvous import Rendezvous

__all__ = ["Running", "jobs_here", "one_job", "open_job"]

_ANSWER_S = 3.0


@dataclasses.dataclass(frozen=True)
class Running:
    """A job that answers. `view`: what its ranks say (Statuses.view)."""

    file: JobFile
    view: dict[str, Any]


def jobs_here() -> list[Running]:
    """The user's jobs that have a rank on this host, or whose horovodrun is here; the newest first."""
    files = running_jobs()
    with ThreadPoolExecutor(max(1, min(8, len(files)))) as pool:
        found = list(pool.map(_asked, files))
    return [one for one in found if one is not None]


def one_job(job_id: str | None) -> JobFile:
    """The job with this id, or the only one. Raises UsageError."""
    jobs = jobs_here()
    if job_id is not None:
        fitting = [one.file for one in jobs if one.file.id.startswith(job_id)]
        if len(fitting) == 1:
            return fitting[0]
        what = "no running job of this user on this host has" if not fitting else "several jobs have"
        raise UsageError(f"{what} the id {job_id!r}\nhint: horovodrun jobs lists them", 1)
    if not jobs:
        raise UsageError(
            "no job of this user runs on this host\n"
            "hint: run this on a host of the job, as the user who has started it. A job can be seen once its ranks "
            "have called hvd.init(), unless HOROVOD_STATUS_INTERVAL_SECONDS is 0",
            1,
        )
    if len(jobs) > 1:
        listed = "\n".join(f"  {one.file.id}  {one.file.command}" for one in jobs)
        raise UsageError(f"{len(jobs)} jobs run on this host:\n{listed}\nhint: add the id of one of them", 1)
    return jobs[0].file


@contextlib.contextmanager
def open_job(file: JobFile) -> Iterator[Rendezvous]:
    """A connection to the job's rendezvous."""
    rendezvous = _rendezvous(file)
    try:
        yield rendezvous
    finally:
        rendezvous.close()


def _asked(file: JobFile) -> Running | None:
    try:
        with open_job(file) as rendezvous:
            return Running(file, rendezvous.statuses(_ANSWER_S))
    except ChannelError:  # it is about to end, or another program has the port now
        return None


def _rendezvous(file: JobFile) -> Rendezvous:
    return Rendezvous(file.address, file.port, file.secret, f"job {file.id}")
