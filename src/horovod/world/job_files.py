# SPDX-License-Identifier: Apache-2.0
"""The files by which the user finds running jobs on this host: `horovodrun jobs`, `top` and `stacks` read them.

A file has the address of the job's rendezvous and the job's secret, so it is this user's alone. The lowest rank of each
host writes one, and horovodrun where it runs; all files of a job have the same id in their names. The file of a process
that was killed is removed when the folder is next read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import time
from pathlib import Path

from horovod.world.files.private import NotPrivateError, own_folder, own_folders, read_private, write_private
from horovod.world.secret import SECRET_BYTES

__all__ = ["JobFile", "running_jobs", "write"]

_LONGEST_BYTES = 1 << 16
_LONGEST_COMMAND = 200
_BASE = "/tmp"  # not a folder that the environment names: batch systems and logins set different ones
_log = logging.getLogger("horovod")


@dataclasses.dataclass(frozen=True)
class JobFile:
    """A job as this host knows it. `pid`: the process that wrote the file. `began_s`: seconds since 1970."""

    address: str
    port: int
    secret: bytes = dataclasses.field(repr=False)
    pid: int
    command: str
    began_s: float
    pid_space: str = ""
    path: Path | None = None

    @property
    def id(self) -> str:
        """The same on all hosts of the job."""
        return hashlib.sha256(b"job" + self.secret + str(self.port).encode()).hexdigest()[:6]

    def remove(self) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):  # no reason for a job to end with an error
                self.path.unlink(missing_ok=True)
                running_jobs()

    def has_ended(self) -> bool:
        """True if the process that wrote the file is known to have ended. It may be in another container."""
        if self.pid_space != _pid_space():
            return False
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text(errors="replace")
        except OSError:
            return True
        return status.rpartition(")")[2].split()[0] == "Z"


def write(address: str, port: int, secret: bytes, command: str) -> JobFile | None:
    """Announces the job on this host. If there can be no file, says so and returns None: the job runs without."""
    job = JobFile(
        address, port, secret, os.getpid(), " ".join(command.split())[:_LONGEST_COMMAND], time.time(), _pid_space()
    )
    name = f"{job.id}-{job.pid}"
    fields = {
        "address": address,
        "port": port,
        "secret": secret.hex(),
        "pid": job.pid,
        "command": job.command,
        "began_s": job.began_s,
        "pid_space": job.pid_space,
    }
    try:
        folder, path = own_folder(_BASE, f"horovod-{os.geteuid()}")
        try:
            write_private(folder, name, json.dumps(fields).encode())
        finally:
            os.close(folder)
    except OSError as error:
        _log.warning(
            "horovod: warning: horovodrun jobs, top and stacks will not find this job on this host: cannot write in "
            "%s: %s; the job itself goes on",
            _BASE,
            error.strerror,
        )
        return None
    return dataclasses.replace(job, path=Path(path, name))


def running_jobs() -> list[JobFile]:
    """The user's jobs of which this host has a file, the newest first; of the files of one job the oldest one.

    Removes files of processes that have ended. Other users' folders and files do not count.
    """
    jobs: dict[str, JobFile] = {}
    for folder, path in own_folders(_BASE, f"horovod-{os.geteuid()}"):
        for name in sorted(os.listdir(folder)):
            job = None
            with contextlib.suppress(NotPrivateError):
                job = _parsed(read_private(folder, name, _LONGEST_BYTES), Path(path, name))
            if job is not None and job.has_ended():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
            elif job is not None and (job.id not in jobs or job.began_s < jobs[job.id].began_s):
                jobs[job.id] = job
    return sorted(jobs.values(), key=lambda job: -job.began_s)


def _pid_space() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _parsed(data: bytes | None, path: Path) -> JobFile | None:
    """None for anything that is not such a file."""
    try:
        fields = json.loads(data or b"")
        secret = bytes.fromhex(fields["secret"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    match fields:
        case {
            "address": str(address),
            "port": int(port),
            "pid": int(pid),
            "command": str(command),
            "began_s": float(began_s),
            "pid_space": str(pid_space),
        } if 0 < port < 1 << 16 and len(secret) >= SECRET_BYTES:
            return JobFile(address, port, secret, pid, command, began_s, pid_space, path)
    return None
