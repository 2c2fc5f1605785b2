# SPDX-License-Identifier: Apache-2.0
"""jsrun, the launcher of LSF's jobs on clusters with Spectrum MPI: one resource set, a whole host, for each host."""

from __future__ import annotations

import shutil

from horovod.launcher.external.base import ExternalCommand, ExternalJob
from horovod.launcher.options.usage import UsageError

__all__ = ["jsrun_command"]


def jsrun_command(job: ExternalJob) -> ExternalCommand:
    """Raises UsageError outside of LSF, without jsrun, or for hosts with unequal numbers of ranks."""
    if "LSB_JOBID" not in job.environment:
        raise UsageError("--jsrun works inside a job of LSF alone\nhint: bsub, or leave --jsrun out")
    if shutil.which("jsrun", path=job.environment.get("PATH")) is None:
        raise UsageError("--jsrun: there is no jsrun on PATH\nhint: --mpi, or leave --jsrun out")
    if job.timestamps:
        raise UsageError("jsrun cannot put the time in front of lines\nhint: leave -prefix-timestamp out")
    share = job.equal_share("jsrun")
    words = ["--nrs", str(len(job.shares)), "--rs_per_host", "1", "--tasks_per_rs", str(share)]
    words += ["--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS"]
    words += job.words(job.binding) or ["--bind", "none"]
    if job.output_directory:
        words += ["--stdio_stdout", f"{job.output_directory}/stdout", "--stdio_stderr"]
        words += [f"{job.output_directory}/stderr"]
    words += ["--smpiargs", job.arguments] if job.arguments else []
    return ExternalCommand(["jsrun", *words, *job.command], job.environment, tuple(job.shares))
