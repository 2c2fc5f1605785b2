# SPDX-License-Identifier: Apache-2.0
"""mpirun, whichever it is: Open MPI 4 and 5, Spectrum MPI, MPICH or Intel MPI.

The command line says only what the job needs. How MPI moves data stays mpirun's own choice, and the user's
(--mpi-args): Horovod's flags that pinned Open MPI to TCP would keep it off the networks that it is used for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping

from horovod.core.wording import of_system, on_one_line
from horovod.launcher.external.base import ExternalCommand, ExternalJob
from horovod.launcher.options.usage import UsageError

__all__ = ["command_of", "mpirun_command"]

_MANY_HOSTS = 64
_VERSION_TIMEOUT_S = 30.0
# By itself mpirun waits for ever for a host that was switched off. The ranks notice it after 5 s.
_SSH_LOSES_HOSTS = "-o ServerAliveInterval=2 -o ServerAliveCountMax=3"
_SSH_OF_OPEN_MPI = ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args")
_SSH_OF_HYDRA = ("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")
_HYDRA_LAUNCHERS = ("HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP")
_BATCH_JOBS = ("SLURM_JOB_ID", "LSB_JOBID")
# Open MPI notices it only while it has nothing to send there: so before the ranks do. It ends them, and names the host.
_OPEN_MPI_LOSES_HOSTS = {
    f"{prefix}_MCA_oob_tcp_keepalive_{name}": value
    for prefix in ("OMPI", "PRTE")
    for name, value in (("time", "1"), ("intvl", "1"), ("probes", "3"))
}

Arguments = Callable[[ExternalJob], list[str]]


def mpirun_command(job: ExternalJob) -> ExternalCommand:
    """Asks mpirun which one it is. Raises UsageError if there is none, or it is none of these."""
    path = shutil.which("mpirun", path=job.environment.get("PATH"))
    if path is None:
        raise UsageError(
            "--mpi: there is no mpirun on PATH\n"
            "hint: install Open MPI or MPICH, or leave --mpi out: horovodrun needs no MPI"
        )
    try:
        said = subprocess.run(
            [path, "--version"],
            env=job.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--mpi: {on_one_line(path)} --version: {of_system(error)}") from None
    return command_of(job, said.stdout + said.stderr)


def command_of(job: ExternalJob, version: str) -> ExternalCommand:
    """The command line for the mpirun that says `version` of itself. Raises UsageError."""
    for pattern, arguments in _FLAVOURS:
        if re.search(pattern, version):
            words = [*arguments(job), *job.words(job.arguments), *job.command]
            return ExternalCommand(["mpirun", *words], _environment(job), tuple(job.shares))
    first = (version.strip().splitlines() or ["nothing"])[0]
    raise UsageError(
        f"--mpi: mpirun --version says {first!r}: expected Open MPI, Spectrum MPI, MPICH or Intel MPI\n"
        "hint: put one of these first on PATH, or leave --mpi out: horovodrun needs no MPI"
    )


def _environment(job: ExternalJob) -> dict[str, str]:
    """Variables for every MPI, whichever it is. The user's own go before, but not before the flags for ssh."""
    flags: dict[str, str] = {}
    if job.ssh_arguments():
        flags = {**dict.fromkeys(_SSH_OF_HYDRA, _ssh(job)), **dict.fromkeys(_HYDRA_LAUNCHERS, "ssh")}
    hydra = _SSH_OF_HYDRA if _hydra_uses_ssh(job.environment) else ()
    defaults = dict.fromkeys((*_SSH_OF_OPEN_MPI, *hydra), _SSH_LOSES_HOSTS)
    return {**defaults, **_OPEN_MPI_LOSES_HOSTS, **job.environment, **flags}


def _hydra_uses_ssh(environment: Mapping[str, str]) -> bool:
    """Inside of a batch system's job it uses srun or blaunch, whose options are others."""
    chosen = next((environment[name] for name in _HYDRA_LAUNCHERS if environment.get(name)), "")
    return chosen == "ssh" if chosen else not any(name in environment for name in _BATCH_JOBS)


def _ssh(job: ExternalJob) -> str:
    return f"{job.ssh_arguments()} {_SSH_LOSES_HOSTS}"


def _hosts(job: ExternalJob) -> str:
    return ",".join(f"{host}:{count}" for host, count in job.shares.items())


def _open_mpi_4(job: ExternalJob, binding: tuple[str, ...] = ("--bind-to", "none", "--map-by", "slot")) -> list[str]:
    words = ["--allow-run-as-root", "--tag-output", "-np", str(job.size), "-H", _hosts(job)]
    words += job.words(job.binding) or binding
    if job.ssh_arguments():
        words += ["--mca", "plm_rsh_args", _ssh(job)]
    if len(job.shares) >= _MANY_HOSTS:
        words += ["--mca", "plm_rsh_no_tree_spawn", "true", "--mca", "plm_rsh_num_concurrent", str(len(job.shares))]
    words += ["--timestamp-output"] if job.timestamps else []
    words += ["--output-filename", job.output_directory] if job.output_directory else []
    return words + _interfaces_and_variables(job)


def _open_mpi_5(job: ExternalJob) -> list[str]:
    """Its run time is another one (PRRTE), with names of its own."""
    output = ["tag", *(["timestamp"] if job.timestamps else [])]
    # Not dir=, whose folders Open MPI 5.0.11 makes twice, which fails.
    output += [f"file={job.output_directory}/rank"] if job.output_directory else []
    words = ["--allow-run-as-root", "--output", ",".join(output), "-np", str(job.size), "-H", _hosts(job)]
    words += job.words(job.binding) or ["--bind-to", "none", "--map-by", "slot"]
    if job.ssh_arguments():
        words += ["--prtemca", "plm_ssh_args", _ssh(job)]
    if len(job.shares) >= _MANY_HOSTS:
        words += ["--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "plm_ssh_num_concurrent"]
        words += [str(len(job.shares))]
    return words + _interfaces_and_variables(job)


def _spectrum(job: ExternalJob) -> list[str]:
    words = _open_mpi_4(job, ("--bind-to", "socket", "--map-by", "socket", "--rank-by", "core"))
    return (["-tcp"] if job.tcp else []) + words


def _interfaces_and_variables(job: ExternalJob) -> list[str]:
    words = ["--mca", "btl_tcp_if_include", job.interfaces] if job.interfaces else []
    return words + [word for name in job.forwarded() for word in ("-x", name)]


def _mpich(job: ExternalJob) -> list[str]:
    return [*_hydra(job, "MPICH"), "-hosts", _hosts(job), *job.words(job.binding)]


def _intel(job: ExternalJob) -> list[str]:
    share = job.equal_share("mpirun of Intel MPI")
    return [*_hydra(job, "Intel MPI"), "-ppn", str(share), "-hosts", ",".join(job.shares), *job.words(job.binding)]


def _hydra(job: ExternalJob, name: str) -> list[str]:
    if job.timestamps:
        raise UsageError(f"mpirun of {name} cannot put the time in front of lines\nhint: leave -prefix-timestamp out")
    if "," in job.interfaces:
        raise UsageError(f"mpirun of {name} takes one network interface, got {job.interfaces}")
    words = ["-l", "-np", str(job.size), "-genvall"]
    words += ["-iface", job.interfaces] if job.interfaces else []
    if job.output_directory:
        words += ["-outfile-pattern", f"{job.output_directory}/rank.%r.stdout"]
        words += ["-errfile-pattern", f"{job.output_directory}/rank.%r.stderr"]
    return words


# The first pattern that stands in what `mpirun --version` says.
_FLAVOURS: tuple[tuple[str, Arguments], ...] = (
    (r"IBM Spectrum MPI", _spectrum),
    (r"(Open MPI|OpenRTE)\)? v?([1-4])\.", _open_mpi_4),
    (r"(Open MPI|OpenRTE|PRRTE|prterun)", _open_mpi_5),
    (r"Intel\(R\) MPI", _intel),
    (r"(?i)HYDRA|MPICH", _mpich),
)
