# SPDX-License-Identifier: Apache-2.0
"""The job files and command lines of docs/guides run as they stand there, with our hosts' names for theirs.

LSF and Kubernetes have no server here: programs stand for theirs (support/schedulers/stand_ins.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import Cluster, MakeCluster
from support.jobs import python, run_job
from support.pages import ROOT, fenced
from support.schedulers.stand_ins import kubernetes, lsf, pbs

TRAIN = """
import os, sys
import numpy as np
import horovod.core as hvd
hvd.init()
hvd.allreduce(np.ones(3), name="ones")
print(os.uname().nodename, hvd.rank(), hvd.size(), os.environ.get("OMP_NUM_THREADS"))
"""


def blocks(guide: str) -> list[str]:
    return fenced(ROOT / "docs" / "guides" / f"{guide}.md")


def run(made: Cluster, folder: Path, words: list[str], environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """On the first host, with horovodrun and python on PATH; the ranks' lines in order, and what was said."""
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(sys.executable)
    (folder / "bin" / "horovodrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m horovod.launcher "$@"\n')
    (folder / "bin" / "horovodrun").chmod(0o755)
    for name in ("train.py", "cnn-distributed.py"):
        (folder / name).write_text(TRAIN)
    own = {
        "HOME": os.environ["HOME"],
        "PATH": f"{folder}/bin:{folder}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TMPDIR": "/tmp",
    }
    done = subprocess.run(
        made.hosts[0].command(*words, directory=folder),
        env={**own, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    lines = sorted(done.stdout.splitlines(), key=lambda line: int(line[1 : line.index("]")]))
    return [line.partition(":")[2] for line in lines], done.stderr.splitlines()


def ranks(size: int, share: int, threads: str | None = None) -> list[str]:
    if threads is None and share > 1:  # horovodrun divides the cores
        threads = str(max(1, len(os.sched_getaffinity(0)) // share))
    return [f"host{rank // share} {rank} {size} {threads}" for rank in range(size)]


def submitted(folder: Path, script: str) -> list[str]:
    (folder / "job.sh").write_text(script)
    return ["sh", str(folder / "job.sh")]


def test_pbs(cluster: MakeCluster, tmp_path: Path) -> None:
    (script,) = blocks("pbs")
    chunks = re.search(r"^#PBS -l select=(\d+):ncpus=68:mpiprocs=(\d+):ompthreads=(\d+)$", script, re.MULTILINE)
    assert chunks is not None and chunks.groups() == ("4", "1", "68")
    made = cluster(4)
    # What PBS makes of this line: a line of the file for each process, and the threads.
    environment = {**pbs(tmp_path, [host.name for host in made.hosts]), "OMP_NUM_THREADS": chunks[3]}
    out, said = run(made, tmp_path, submitted(tmp_path, script), environment)
    assert out == ranks(4, 1, "68")
    assert said[0] == "horovodrun: hosts host0:1,host1:1,host2:1,host3:1, from PBS job 1.server (PBS_NODEFILE)"


def test_lsf(cluster: MakeCluster, tmp_path: Path) -> None:
    (script,) = blocks("lsf")
    assert "#BSUB -n 8\n" in script and "span[ptile=4]" in script
    out, said = run(cluster(2), tmp_path, submitted(tmp_path, script), lsf(tmp_path, ["host0"] * 4 + ["host1"] * 4))
    assert out == ranks(8, 4) and "horovodrun: other hosts are reached by blaunch" in said


@pytest.mark.parametrize("old", [False, True], ids=["ssh", "kubexec"])
def test_kubernetes(cluster: MakeCluster, tmp_path: Path, old: bool) -> None:
    (manifest,) = blocks("kubernetes")
    spec = yaml.safe_load(manifest)["spec"]
    pod = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    workers, slots = spec["mpiReplicaSpecs"]["Worker"]["replicas"], spec["slotsPerWorker"]
    made = cluster(1 + workers)  # the launcher's pod comes last: it runs no rank
    made.hosts.insert(0, made.hosts.pop())
    names = [host.name for host in made.hosts[1:] for _ in range(slots)]
    out, said = run(made, tmp_path, ["/usr/bin/env", *pod["command"]], kubernetes(tmp_path, names, old))
    assert out == ranks(workers * slots, slots)
    assert f"horovodrun: other hosts are reached by {'rsh-agent' if old else 'ssh'}" in said


@pytest.mark.parametrize(("guide", "name", "port"), [("ssh", "server", None), ("raspberry-pi", "pi", 2222)])
def test_ssh(cluster: MakeCluster, tmp_path: Path, guide: str, name: str, port: int | None) -> None:
    hosts, command = blocks(guide)
    made = cluster(3)
    if port is not None:
        for host in made.hosts[1:]:
            (tmp_path / host.name).mkdir()
            made.second_sshd(host, port, tmp_path / host.name / "key")
        keys = "".join(f"IdentityFile {tmp_path / host.name / 'key'}\n" for host in made.hosts[1:])
        (made.folder / "ssh" / "config").write_text(keys)
    (tmp_path / "hosts").write_text(
        re.sub(rf"^{name}(\d)", lambda match: f"host{int(match[1]) - 1}", hosts, flags=re.M)
    )
    out, _ = run(made, tmp_path, ["sh", "-c", command], {})
    size = int(re.search(r"-np (\d+)", command)[1])  # type: ignore[index]
    assert out == ranks(size, size // 3)


def cluster_file(name: str) -> Any:
    return yaml.safe_load((ROOT / "examples" / "clusters" / name).read_text(encoding="utf-8"))


def test_kubeflow_trainer(cluster: MakeCluster, tmp_path: Path) -> None:
    trainer = cluster_file("kubeflow-trainjob.yaml")["spec"]["trainer"]
    assert cluster_file("kubeflow-runtime.yaml")["spec"]["mlPolicy"]["mpi"]["runLauncherAsNode"]
    made = cluster(trainer["numNodes"])  # the launcher's pod is the first one
    names = [host.name for host in made.hosts for _ in range(trainer["numProcPerNode"])]
    command = ["/usr/bin/env", *trainer["command"]]
    out, _ = run(made, tmp_path, command, kubernetes(tmp_path, names, old=False))
    assert out == ranks(len(names), trainer["numProcPerNode"])


@pytest.mark.parametrize(
    ("file", "system", "node_ips"),
    [("skypilot.yaml", "SKYPILOT", "NODE_IPS"), ("train.dstack.yml", "DSTACK", "NODES_IPS")],
    ids=["skypilot", "dstack"],
)
def test_scripts_that_run_on_each_node(
    cluster: MakeCluster, tmp_path: Path, file: str, system: str, node_ips: str
) -> None:
    job = cluster_file(file)
    script = job["run"] if "run" in job else job["commands"][-1]
    made = cluster(job.get("num_nodes") or job["nodes"])
    share = "NUM_GPUS_PER_NODE" if system == "SKYPILOT" else "GPUS_PER_NODE"
    told = {node_ips: "\n".join(host.address for host in made.hosts), "NODE_RANK": "0", share: "2"}
    told.update({"NUM_NODES": str(len(made.hosts)), "GPUS_NUM": str(2 * len(made.hosts))})
    environment = {f"{system}_{name}": value for name, value in told.items()}
    out, _ = run(made, tmp_path, submitted(tmp_path, script), environment)
    assert out == ranks(2 * len(made.hosts), 2)


DIES = """
import horovod.core as hvd
hvd.init()
if rank == 3: os.kill(os.getpid(), 9)
signal.pause()
"""


@pytest.mark.parametrize(("make", "way"), [(lsf, "blaunch"), (kubernetes, "rsh-agent")], ids=["lsf", "kubernetes"])
def test_a_rank_that_dies_under_a_batch_system_is_named_and_nothing_stays(
    cluster: MakeCluster, tmp_path: Path, make: Callable[[Path, list[str]], dict[str, str]], way: str
) -> None:
    one, two = cluster(2).hosts
    environment = make(tmp_path, ["host0", "host1", "host0", "host1"])
    environment["PATH"] = f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"
    done = run_job(tmp_path, "--verbose", python(DIES), env=environment, on=one)
    assert done.code == 137, done
    assert f"horovodrun: other hosts are reached by {way}\n" in done.stderr
    assert "horovodrun: rank 3 on host host1 was killed by SIGKILL" in done.stderr
    two.assert_empty()
