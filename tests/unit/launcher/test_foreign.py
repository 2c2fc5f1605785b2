# SPDX-License-Identifier: Apache-2.0
"""The command lines with which --mpi and --jsrun start a job, word for word."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from horovod.launcher import cli
from horovod.launcher.external.base import ExternalJob
from horovod.launcher.external.jsrun import jsrun_command
from horovod.launcher.external.mpirun import command_of
from horovod.launcher.options.usage import UsageError

# What `mpirun --version` begins with.
VERSIONS = {
    "Open MPI 4": "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
    "Open MPI 5": "mpirun (Open MPI) 5.0.11\n",
    "Spectrum": "mpirun (IBM Spectrum MPI) 10.4.0.03rtm4\n",
    "MPICH": "HYDRA build details:\n    Version:                                 4.2.3\n",
    "Intel": "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n",
}
PLAIN = ExternalJob(
    ["python", "train.py"],
    {"a": 2, "b": 2},
    {"PATH": "/bin", "WORD": "x y", "OLDPWD": "/", "SSH_TTY": "t", "OMPI_MCA_x": "1", "BASH_FUNC_f%%": "() { }"},
)
FULL = dataclasses.replace(
    PLAIN,
    arguments="--mca a 'b c'",
    binding="-bind-to core",
    interfaces="eth0",
    ssh_port=2222,
    ssh_identity_file="my key",
    output_directory="out",
    timestamps=True,
    tcp=True,
)
ALIVE = "-o ServerAliveInterval=2 -o ServerAliveCountMax=3"
SSH = f"'-p 2222 -i '\"'\"'my key'\"'\"' {ALIVE}'"


@pytest.mark.parametrize(
    ("mpi", "job", "line"),
    [
        (
            "Open MPI 4",
            PLAIN,
            "--allow-run-as-root --tag-output -np 4 -H a:2,b:2 --bind-to none --map-by slot -x PATH -x WORD",
        ),
        (
            "Open MPI 4",
            FULL,
            f"--allow-run-as-root --tag-output -np 4 -H a:2,b:2 -bind-to core --mca plm_rsh_args {SSH} "
            "--timestamp-output --output-filename out --mca btl_tcp_if_include eth0 -x PATH -x WORD --mca a 'b c'",
        ),
        (
            "Open MPI 5",
            PLAIN,
            "--allow-run-as-root --output tag -np 4 -H a:2,b:2 --bind-to none --map-by slot -x PATH -x WORD",
        ),
        (
            "Open MPI 5",
            FULL,
            "--allow-run-as-root --output tag,timestamp,file=out/rank -np 4 -H a:2,b:2 -bind-to core "
            f"--prtemca plm_ssh_args {SSH} --mca btl_tcp_if_include eth0 -x PATH -x WORD --mca a 'b c'",
        ),
        (
            "Spectrum",
            dataclasses.replace(PLAIN, tcp=True),
            "-tcp --allow-run-as-root --tag-output -np 4 -H a:2,b:2 --bind-to socket --map-by socket --rank-by core "
            "-x PATH -x WORD",
        ),
        ("MPICH", PLAIN, "-l -np 4 -genvall -hosts a:2,b:2"),
        (
            "MPICH",
            dataclasses.replace(FULL, timestamps=False),
            "-l -np 4 -genvall -iface eth0 -outfile-pattern out/rank.%r.stdout -errfile-pattern out/rank.%r.stderr "
            "-hosts a:2,b:2 -bind-to core --mca a 'b c'",
        ),
        ("Intel", PLAIN, "-l -np 4 -genvall -ppn 2 -hosts a,b"),
    ],
)
def test_mpiruns_command_line(mpi: str, job: ExternalJob, line: str) -> None:
    made = command_of(job, VERSIONS[mpi])
    assert made.shown() == f"mpirun {line} python train.py"
    assert made.environment.items() >= PLAIN.environment.items()


def test_many_hosts_are_reached_without_a_tree() -> None:
    job = dataclasses.replace(PLAIN, shares={f"h{number}": 1 for number in range(64)})
    old, new = (command_of(job, VERSIONS[mpi]).shown() for mpi in ("Open MPI 4", "Open MPI 5"))
    assert "--mca plm_rsh_no_tree_spawn true --mca plm_rsh_num_concurrent 64" in old
    assert "--prtemca plm_ssh_no_tree_spawn 1 --prtemca plm_ssh_num_concurrent 64" in new
    assert "tree" not in command_of(PLAIN, VERSIONS["Open MPI 4"]).shown()


@pytest.mark.parametrize("mpi", ["MPICH", "Intel"])
def test_hydra_gets_the_arguments_of_ssh_through_its_environment(mpi: str) -> None:
    made = command_of(dataclasses.replace(PLAIN, ssh_port=2222, ssh_identity_file="key"), VERSIONS[mpi])
    variables = ("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")
    assert {made.environment[name] for name in variables} == {f"-p 2222 -i key {ALIVE}"}
    assert made.environment["HYDRA_LAUNCHER"] == made.environment["I_MPI_HYDRA_BOOTSTRAP"] == "ssh"


@pytest.mark.parametrize("job", ["SLURM_JOB_ID", "LSB_JOBID"])
def test_srun_and_blaunch_do_not_get_the_arguments_of_ssh(job: str) -> None:
    def extra(**own: str) -> str | None:
        environment = {**PLAIN.environment, job: "7", **own}
        made = command_of(dataclasses.replace(PLAIN, environment=environment), VERSIONS["MPICH"])
        return made.environment.get("HYDRA_LAUNCHER_EXTRA_ARGS")

    assert (extra(), extra(HYDRA_LAUNCHER="ssh"), extra(HYDRA_LAUNCHER="slurm")) == (None, ALIVE, None)


def test_mpiruns_daemons_notice_a_lost_host_unless_the_user_has_said_when() -> None:
    own = {**PLAIN.environment, "OMPI_MCA_oob_tcp_keepalive_time": "300", "HYDRA_LAUNCHER_EXTRA_ARGS": "-4"}
    made = command_of(dataclasses.replace(PLAIN, environment=own), VERSIONS["MPICH"]).environment
    assert made.items() >= own.items()
    assert (made["PRTE_MCA_oob_tcp_keepalive_time"], made["PRTE_MCA_plm_ssh_args"]) == ("1", ALIVE)


@pytest.mark.parametrize(
    ("mpi", "change", "said"),
    [
        ("Intel", {"shares": {"a": 2, "b": 1}}, "mpirun of Intel MPI needs the same number of ranks on each host, got"),
        ("MPICH", {"interfaces": "eth0,ib0"}, "takes one network interface, got eth0,ib0"),
        ("MPICH", {"timestamps": True}, "cannot put the time in front of lines"),
        ("MPICH", {"arguments": "it's"}, '"it\'s": No closing quotation'),
    ],
)
def test_what_an_mpirun_cannot_do_is_an_error(mpi: str, change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        command_of(dataclasses.replace(PLAIN, **change), VERSIONS[mpi])  # type: ignore[arg-type]
    assert said in str(error.value)


def test_mpich_takes_unequal_hosts() -> None:
    assert (
        "-hosts a:2,b:1" in command_of(dataclasses.replace(PLAIN, shares={"a": 2, "b": 1}), VERSIONS["MPICH"]).shown()
    )


def test_an_unknown_mpirun_is_named() -> None:
    with pytest.raises(UsageError, match="mpirun --version says 'LAM 7.1': expected Open MPI"):
        command_of(PLAIN, "LAM 7.1\n")


def tool(folder: Path, name: str, text: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; it has a program `train`."""
    tool(tmp_path, "train")
    monkeypatch.setattr(cli, "current_environment", lambda: {"PATH": str(tmp_path), "LSB_JOBID": "3", "LANG": "C"})
    return tmp_path


def shown(*arguments: str) -> str:
    command = cli.check(arguments)
    assert not isinstance(command, cli.Job)
    return command.shown()


def test_the_whole_way_from_horovodruns_flags(folder: Path) -> None:
    tool(folder, "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    expected = (
        "mpirun --allow-run-as-root --tag-output -np 3 -H a:2,b:1 --bind-to none --map-by slot "
        "-x HOROVOD_CYCLE_TIME -x LANG -x LSB_JOBID -x PATH --display-map train --epochs 3"
    )
    flags = ["-np", "3", "-H", "a:2,b:2,c:2", "--cycle-time-ms", "2", "--mpi-args", "--display-map"]
    assert shown("--mpi", *flags, "train", "--epochs", "3") == expected
    (folder / "config.yaml").write_text("controller: mpi\n")
    file = ["--config-file", str(folder / "config.yaml")]
    assert shown(*file, *flags, "train", "--epochs", "3") == expected
    assert isinstance(cli.check([*file, "--gloo", "-np", "1", "train"]), cli.Job)  # the flag wins


def test_without_mpirun_the_error_says_what_to_do(folder: Path) -> None:
    with pytest.raises(ValueError, match="--mpi: there is no mpirun on PATH\nhint: install Open MPI"):
        cli.check(["--mpi", "-np", "2", "train"])


def test_jsrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--jsrun: there is no jsrun on PATH"):
        cli.check(["--jsrun", "-np", "2", "train"])
    tool(folder, "jsrun")
    assert shown("--jsrun", "-np", "84", "-H", "a:42,b:42", "--mpi-args", "-gpu -x", "train") == (
        "jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 42 --cpu_per_rs ALL_CPUS --gpu_per_rs ALL_GPUS --bind none "
        "--smpiargs '-gpu -x' train"
    )
    flags = ["-np", "4", "-H", "a:2,b:2", "--output-filename", "out", "--binding-args", "--bind packed:1"]
    assert shown("--jsrun", *flags, "train") == (
        "jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 2 --cpu_per_rs ALL_CPUS --gpu_per_rs ALL_GPUS --bind packed:1 "
        "--stdio_stdout out/stdout --stdio_stderr out/stderr train"
    )
    # The slots of such clusters are cores.
    cores = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "batch 1 a 42 b 42", "CSM_ALLOCATION_ID": "9", "PATH": str(folder)}
    monkeypatch.setattr(cli, "current_environment", lambda: cores)
    assert "--nrs 2 --rs_per_host 1 --tasks_per_rs 4 " in shown("--jsrun", "-np", "8", "train")
    with pytest.raises(ValueError, match="jsrun needs the same number of ranks on each host, got a:2, b:1"):
        cli.check(["--jsrun", "-np", "3", "-H", "a:2,b:2", "train"])


def test_jsrun_needs_lsf() -> None:
    with pytest.raises(UsageError, match="--jsrun works inside a job of LSF alone"):
        jsrun_command(PLAIN)


def test_the_words_of_a_command_line_can_be_pasted_into_a_shell() -> None:
    made = command_of(FULL, VERSIONS["Open MPI 4"])
    assert shlex.split(made.shown()) == made.command
