# SPDX-License-Identifier: Apache-2.0
"""`caffe train`, whatever starts its ranks, and run_intelcaffe.sh over hosts: the weights are the same, bit for bit."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.caffe import small_training
from support.cluster import MakeCluster
from support.jobs import run_job
from support.schedulers.launchers import LAUNCHERS, command_lines, ready_for
from support.schedulers.slurm import wait_for_steps
from support.started import MPI_SLOTS, Folder, end_of, environment, mpi

for module in ("torch", "google", "h5py", "lmdb"):  # not imported: only the ranks need them
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"not run: {module} is not installed", allow_module_level=True)

CAFFE = [sys.executable, "-m", "horovod.caffe"]
# An MPI's Python lacks PyTorch: this one's packages come behind its own.
WITH_PACKAGES = """
import runpy, sys
sys.path += sys.argv.pop(1).split(":")
runpy.run_module("horovod.caffe", run_name="__main__", alter_sys=True)
"""
BATCH = 3  # of each rank


@functools.cache
def expected(ranks: int, pretended: str = "") -> bytes:
    """The weights that horovodrun's ranks on this host come to. `pretended`: the ranks of each pretended host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {"OMP_NUM_THREADS": "1", "TMPDIR": name, **({"HOROVOD_PRETEND_HOSTS": pretended} if pretended else {})}
        command = [*CAFFE, "train", f"--solver={small_training(folder, BATCH)}"]
        done = run_job(folder, "-np", str(ranks), command, env=env)
        assert done.code == 0, done
        return weights(folder)


def weights(folder: Path) -> bytes:
    """What a training has written: the weights alone, without the net, which names the folder."""
    from horovod.caffe.files import read_weights

    found = read_weights(str(folder / f"s{BATCH}_iter_20.caffemodel"))
    return b"".join(blob.tobytes() for name in sorted(found) for blob in found[name])


def assert_trained(said: str, ranks: int) -> None:
    assert len(re.findall(rf"\] {ranks} rank\(s\) train together", said)) == 1, f"one world, and one rank talks\n{said}"
    assert len(re.findall(r"\] Iteration 20, Testing net \(#0\)", said)) == 1, said


@pytest.mark.thorough
def test_mpirun_starts_caffe(tmp_path: Path) -> None:
    """On this host, by MPICH."""
    mpirun, _ = mpi("mpich")
    solver = small_training(tmp_path, BATCH)
    command = [*mpirun, "-n", "2", *CAFFE, "train", f"--solver={solver}"]
    env = environment(Folder(tmp_path).home, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done
    assert_trained(done.stdout + done.stderr, 2)
    assert weights(tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", MPI_SLOTS)
def test_every_mpirun_starts_the_command_of_the_page(tmp_path: Path, name: str) -> None:
    """mpirun -n 4 caffe train --solver=..., with the installed command."""
    mpirun, _ = mpi(name)
    command = Path(sys.executable).with_name("caffe")
    assert command.exists()
    words = [*mpirun, "-n", "4", str(command), "train", f"--solver={small_training(tmp_path, BATCH)}"]
    done = subprocess.run(words, env=environment(Folder(tmp_path).home), capture_output=True, text=True)
    assert done.returncode == 0, done
    assert_trained(done.stdout + done.stderr, 4)
    assert weights(tmp_path) == expected(4)


@pytest.mark.thorough
@pytest.mark.timeout(700)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_trains_over_two_hosts(cluster: MakeCluster, tmp_path: Path, launcher: str) -> None:
    made, folder = cluster(2), Folder(tmp_path)
    script = tmp_path / "with_packages.py"
    script.write_text(WITH_PACKAGES)
    packages = ":".join(path for path in sys.path if path.endswith("site-packages"))
    job = [str(script), packages, "train", f"--solver={small_training(tmp_path, BATCH)}"]
    with ready_for(launcher, made):
        runs = []
        for host, words, more in command_lines(launcher, made.hosts, job):
            pipe, env = subprocess.PIPE, environment(folder.home, TMPDIR="/tmp", **more)
            runs.append(host.popen(*words, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True))
        ends = end_of(runs)
        wait_for_steps(made.hosts)
    assert {code for code, _ in ends} == {0}, ends
    assert_trained("".join(said for _, said in ends), 4)
    assert weights(tmp_path) == expected(4, "2,2")


@pytest.mark.thorough
@pytest.mark.timeout(700)
def test_intels_script_trains_on_the_hosts_of_a_file(cluster: MakeCluster, tmp_path: Path) -> None:
    made, folder = cluster(2), Folder(tmp_path)
    made.trust()
    (tmp_path / "hosts").write_text("host1\nhost0\n")
    words = f"--hostfile {tmp_path}/hosts --network tcp --netmask eth0 --ppn 2 --num_omp_threads 1 --output {tmp_path}"
    words += f" --solver {small_training(tmp_path, BATCH)}"
    script = [sys.executable, "-m", "horovod.caffe.run_intelcaffe"]
    done = made.hosts[0].run(*script, *words.split(), env=environment(folder.home, TMPDIR="/tmp"))
    assert done.returncode == 0, done
    assert_trained(done.stdout + done.stderr, 4)
    assert weights(tmp_path) == expected(4, "2,2")
    (results,) = tmp_path.glob("result-*")
    assert (results / "nodeconfig-cpu-2.txt").read_text() == "host0\nhost1\n"
    assert "4 rank(s) train together" in (results / "outputCluster-cpu-2.txt").read_text()
