# SPDX-License-Identifier: Apache-2.0
"""One job from start to end, as horovodrun sees it: rendezvous, agents, events, signals, and the last words."""

from __future__ import annotations

import contextlib

from horovod.core.secret import new_secret
from horovod.launcher.elastic_job import ElasticJob
from horovod.launcher.fixed_job import FixedJob
from horovod.launcher.job import Job
from horovod.launcher.supervision import KeepWords

__all__ = ["run"]


def run(job: Job, secret: bytes | None = None, keep_words: KeepWords = lambda _: None) -> int:
    """Runs the job to its end and returns horovodrun's exit code. Call it from the main thread: it handles signals.

    `secret`: the job's, if somebody else has to know it as well. `keep_words` gets the cause of a failure as it stands
    on the terminal.
    """
    secret = secret or new_secret()
    with contextlib.ExitStack() as stack:
        if job.elastic is not None:
            return ElasticJob(job, job.elastic, secret, stack, keep_words).run()
        return FixedJob(job, secret, stack, keep_words).run()
