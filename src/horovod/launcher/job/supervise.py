# SPDX-License-Identifier: Apache-2.0
"""One job from start to end, as horovodrun sees it: rendezvous, agents, events, signals, and the last words."""

from __future__ import annotations

import contextlib

from horovod.launcher.job.fixed_job import FixedJob
from horovod.launcher.job.spec import Job
from horovod.launcher.job.supervision import Keep
from horovod.world.secret import new_secret

__all__ = ["run"]


def run(job: Job, secret: bytes | None = None, keep: Keep = lambda _: None) -> int:
    """Runs the job to its end and returns horovodrun's exit code. Call it from the main thread: it handles signals.

    `secret`: the job's, if another process has to know it as well. `keep` gets the job's conclusion.
    """
    secret = secret or new_secret()
    with contextlib.ExitStack() as stack:
        if job.elastic is not None:
            from horovod.launcher.job.elastic_job import ElasticJob  # other jobs start earlier without it

            return ElasticJob(job, job.elastic, secret, stack, keep).run()
        return FixedJob(job, secret, stack, keep).run()
