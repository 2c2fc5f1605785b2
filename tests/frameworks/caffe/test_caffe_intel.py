# SPDX-License-Identifier: Apache-2.0
"""run_intelcaffe.sh: the options of Intel Caffe's script, and what it starts."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from support.caffe import write

for module in ("torch", "google.protobuf"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

from horovod.caffe.run_intelcaffe import caffe_arguments, command_of, parse


def echo(folder: Path) -> str:
    """A program in caffe's place, which prints its arguments and threads."""
    path = Path(write(folder, "caffe", '#!/bin/sh\necho "got $* with $OMP_NUM_THREADS $PSM2_KIND"\n'))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_line_of_the_manual_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from horovod.caffe.run_intelcaffe import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSM2_KIND", "passed")
    hosts = write(tmp_path, "hosts", "localhost\nlocalhost\n")
    arguments = f"--hostfile {hosts} --caffe_bin {echo(tmp_path)} --solver models/solver.prototxt --network opa --ppn 1"
    assert main([*arguments.split(), "--num_omp_threads", "60"]) == 0
    assert "got train --solver=models/solver.prototxt with 60 passed" in capfd.readouterr().out
    (folder,) = tmp_path.glob("result-*")
    assert (folder / "nodeconfig-cpu-1.txt").read_text() == "localhost\n"
    assert "got train" in (folder / "outputCluster-cpu-1.txt").read_text()


def test_several_ranks_are_started_by_horovodrun(tmp_path: Path) -> None:
    hosts = write(tmp_path, "hosts", "n2\nn1\n\nn2\n")
    options = parse(["--hostfile", hosts, "--ppn", "2", "--network", "tcp", "--netmask", "eth0"])
    launched = [sys.executable, "-m", "horovod.launcher", "-np", "4", "-H", "n1:2,n2:2"]
    assert command_of(options, ["caffe"]) == [*launched, "--network-interface", "eth0", "caffe"]


def test_timing_is_one_processs_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from horovod.caffe.run_intelcaffe import main

    monkeypatch.chdir(tmp_path)
    options = f"--caffe_bin {echo(tmp_path)} --ppn 2 --mode time --model_file bench/net --debug on"
    assert main(options.split()) == 0
    assert "horovod.launcher" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("time", ["time", "--model=net", "--iterations=7"]),
        ("inf_time", ["time", "--forward_only", "--phase=TEST", "--model=net", "--iterations=7"]),
    ],
)
def test_modes_choose_caffes_command(mode: str, expected: list[str]) -> None:
    assert caffe_arguments(parse(["--mode", mode, "--model_file", "net", "--iteration", "7"])) == expected


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ("", 0, "usage:"),
        ("--help", 0, "usage:"),
        ("--solvr x", 1, "unknown option '--solvr'\nhint: did you mean '--solver'?"),
        ("--solver x --ppn", 1, "--ppn needs a value"),
        ("--ppn two --solver x", 1, "--ppn: expected a number"),
        ("--ppn 0 --solver x", 1, "--ppn: expected at least 1"),
        ("--mode tran --solver x", 1, "--mode: expected one of train"),
        ("--network tcp --solver x", 1, "needs --netmask"),
        ("--mode train --ppn 1", 1, "--mode train needs --solver"),
        ("--hostfile missing --solver x", 1, "cannot be read"),
    ],
)
def test_wrong_options_are_named(
    arguments: str,
    status: int,
    expected: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from horovod.caffe.run_intelcaffe import main

    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == status
    printed = capfd.readouterr()
    assert expected in printed.out + printed.err and not list(tmp_path.iterdir())
