# SPDX-License-Identifier: Apache-2.0
"""Allocations of batch systems are read from the environments that these give to a job."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from horovod.launcher.allocations import find_allocation
from horovod.launcher.allocations.slurm import expand_nodes, expand_tasks
from horovod.launcher.options.host_list import HostList, choose_hosts
from horovod.launcher.options.hosts import HostsError
from horovod.launcher.options.usage import UsageError


def found(environment: dict[str, str]) -> tuple[str, list[tuple[str, int]]]:
    allocation = find_allocation(environment)
    assert allocation is not None
    return str(allocation), [(host.name, host.slots) for host in allocation.hosts]


SLURM = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "host[0-1],big", "SLURM_TASKS_PER_NODE": "2(x2),4"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("host0", ["host0"]),
        ("host[0-3,7],b[01-02]", ["host0", "host1", "host2", "host3", "host7", "b01", "b02"]),
        ("a[08-11]", ["a08", "a09", "a10", "a11"]),
        ("r[1-2]n[0,3].x", ["r1n0.x", "r1n3.x", "r2n0.x", "r2n3.x"]),
        ("login,node-[2]", ["login", "node-2"]),
    ],
)
def test_slurms_lists_of_nodes(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize(
    "text", ["", "a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a,,b", "a,", "b[0-99999999]", "a[[1]]"]
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(HostsError, match=f"^SLURM_JOB_NODELIST='{re.escape(text)}' is not a list of nodes"):
        expand_nodes(text)


def test_slurms_lists_of_tasks() -> None:
    assert (expand_tasks("2(x2),4"), expand_tasks("1")) == ([2, 2, 4], [1])
    for text in ("", "2(x)", "0", "2(x0)", "two", "1(x99999999)"):
        with pytest.raises(HostsError, match="is not a list of numbers"):
            expand_tasks(text)


def test_slurm() -> None:
    assert found(SLURM) == ("Slurm job 12 (SLURM_JOB_NODELIST)", [("host0", 2), ("host1", 2), ("big", 4)])
    without_tasks = {name: value for name, value in SLURM.items() if name != "SLURM_TASKS_PER_NODE"}
    assert found(without_tasks)[1] == [("host0", 1), ("host1", 1), ("big", 1)]
    with pytest.raises(HostsError, match="names 3 hosts, but SLURM_TASKS_PER_NODE=1 is for 1"):
        found({**SLURM, "SLURM_TASKS_PER_NODE": "1"})


def test_pbs_counts_the_lines_of_a_host_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1.site\nn2.site\nn1.site\nn3.site\n")
    environment = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "7.server"}
    assert found(environment) == ("PBS job 7.server (PBS_NODEFILE)", [("n1.site", 2), ("n2.site", 1), ("n3.site", 1)])
    with pytest.raises(HostsError, match="PBS_NODEFILE=/none: No such file or directory\nhint: -H"):
        find_allocation({"PBS_NODEFILE": "/none"})


def test_lsf(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\na\nb\nb\n")
    from_file = {"LSB_JOBID": "3", "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts"), "LSB_MCPU_HOSTS": "x 1"}
    assert found(from_file) == ("LSF job 3 (LSB_DJOB_HOSTFILE)", [("a", 2), ("b", 2)])
    pairs = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "a 4 none 0 b 2"}
    assert found(pairs) == ("LSF job 3 (LSB_MCPU_HOSTS)", [("a", 4), ("b", 2)])
    # The batch script's host is not one for tasks if the cluster has jsrun.
    jsrun = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "batch1 1 a 42 b 42", "CSM_ALLOCATION_ID": "9"}
    assert found(jsrun)[1] == [("a", 42), ("b", 42)]
    with pytest.raises(HostsError, match="LSB_MCPU_HOSTS='a 4 b': expected pairs"):
        find_allocation({"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "a 4 b"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OMPI_MCA_orte_default_hostfile", "job-worker-0 slots=2\njob-worker-1 slots=2\n"),
        ("PRTE_MCA_prte_default_hostfile", "job-worker-0 slots=2\njob-worker-1 slots=2\n"),
        ("HYDRA_HOST_FILE", "job-worker-0:2\njob-worker-1:2\n"),
        ("I_MPI_HYDRA_HOST_FILE", "job-worker-0:2\njob-worker-1:2\n"),
    ],
)
def test_the_mpi_operators_hostfile_in_both_formats(tmp_path: Path, variable: str, text: str) -> None:
    (tmp_path / "hostfile").write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", variable: str(tmp_path / "hostfile")}
    assert found(environment) == (f"Kubernetes ({variable})", [("job-worker-0", 2), ("job-worker-1", 2)])
    assert find_allocation({variable: str(tmp_path / "hostfile")}) is None  # somebody's own default for mpirun


def test_no_batch_system() -> None:
    assert find_allocation({}) is None
    assert find_allocation({"SLURM_CONF": "/etc/slurm.conf", "LSB_JOBID": "3", "PBS_NODEFILE": ""}) is None


def chosen(environment: dict[str, str], **given: object) -> HostList:
    flags = {
        "hosts": None,
        "hostfile": None,
        "num_proc": None,
        "max_np": None,
        "spares": None,
        "start_with": None,
        "command": ["python", "train.py"],
        **given,
    }
    return choose_hosts(argparse.Namespace(**flags), environment)


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An srun on PATH."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_the_allocation_gives_hosts_slots_and_the_way(srun: None) -> None:
    whole = chosen(SLURM)
    assert (whole.size, len(whole.hosts), whole.start_with) == (8, 3, "srun")
    assert whole.origin == "Slurm job 12 (SLURM_JOB_NODELIST)"
    assert chosen(SLURM, num_proc=3).size == 3
    assert chosen(SLURM, start_with="ssh").start_with == "ssh"


def test_named_hosts_win_over_the_allocation(srun: None, tmp_path: Path) -> None:
    some = chosen(SLURM, hosts="host1:2", num_proc=2)
    assert ([host.name for host in some.hosts], some.origin, some.start_with) == (["host1"], "-H", "srun")
    # A host that the allocation does not have is not reached by its means.
    assert chosen(SLURM, hosts="host1:2,else:1", num_proc=2).start_with == "ssh"
    (tmp_path / "hosts").write_text("host0 slots=3\n", encoding="utf-8-sig")  # as editors of Windows do
    assert chosen(SLURM, hostfile=str(tmp_path / "hosts"), num_proc=3).hosts[0].slots == 3
    with pytest.raises(UsageError, match="-np, the number of processes, is missing"):
        chosen(SLURM, hosts="host1:2")


def test_without_the_batch_systems_program_it_is_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chosen(SLURM).start_with == "ssh"


def test_more_ranks_than_the_allocation_has_name_it() -> None:
    with pytest.raises(HostsError, match="(?s)9 ranks were asked for.*hint: Slurm job 12 .* has 8 slots: ask it for"):
        chosen(SLURM, num_proc=9)


def test_one_of_several_horovodruns_starts_nothing() -> None:
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(
        UsageError, match="srun has started horovodrun 8 times in Slurm job 12 .*\nhint: start the script"
    ):
        chosen(step)
    assert chosen(step, hosts="localhost:2", num_proc=2).size == 2  # a job of its own in each task
    assert chosen({**step, "SLURM_PTY_PORT": "40000"}).size == 8  # srun --pty: only the first task goes on
    assert chosen({**step, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}).size == 8


def test_an_allocation_that_cannot_be_read_matters_only_if_it_is_needed() -> None:
    broken = {"PBS_NODEFILE": "/none"}
    assert chosen(broken, hosts="localhost:2", num_proc=2).size == 2
    with pytest.raises(HostsError, match="PBS_NODEFILE=/none"):
        chosen(broken, num_proc=2)


def test_without_an_allocation_it_is_this_machine() -> None:
    here = chosen({}, num_proc=3)
    assert ([(host.name, host.slots) for host in here.hosts], here.start_with) == ([("localhost", 3)], "ssh")
    assert here.here() == 3
