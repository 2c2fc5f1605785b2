# SPDX-License-Identifier: Apache-2.0
"""What the system allows on this machine, in stand-ins for its files and limits."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from horovod.launcher.options.room import NoRoomError, allow_open_files, check_room

UNLIMITED = {resource.RLIMIT_NOFILE: resource.RLIM_INFINITY, resource.RLIMIT_NPROC: resource.RLIM_INFINITY}
USER = {"proc/self/status": "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n"}
VERSION_2 = {"proc/self/cgroup": "0::/job/7\n"}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The soft limits that this process seems to have."""
    seeming = dict(UNLIMITED)
    monkeypatch.setattr(resource, "getrlimit", lambda number: (seeming[number], resource.RLIM_INFINITY))
    return seeming


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def refused(ranks: int, root: Path) -> str:
    """The error for that many ranks; one fewer is allowed."""
    check_room(ranks - 1, root)
    with pytest.raises(NoRoomError) as caught:
        check_room(ranks, root)
    return str(caught.value)


def test_a_machine_that_tells_no_limit_allows_everything(tmp_path: Path, limits: dict[int, int]) -> None:
    check_room(10**12, tmp_path)


@pytest.mark.parametrize("name", ["pid_max", "threads-max"])
def test_the_kernels_limits(tmp_path: Path, limits: dict[int, int], name: str) -> None:
    write(tmp_path, {f"proc/sys/kernel/{name}": "32768\n"})
    assert refused(32769, tmp_path) == (
        f"32769 ranks on this machine were asked for, but it allows at most 32768: kernel.{name} is 32768\n"
        f"hint: start fewer ranks, or raise the limit: sysctl kernel.{name}"
    )


def test_the_lowest_limit_is_the_one_that_is_named(tmp_path: Path, limits: dict[int, int]) -> None:
    write(tmp_path, {"proc/sys/kernel/pid_max": "32768\n", "proc/sys/kernel/threads-max": "500\n"})
    assert "kernel.threads-max is 500" in refused(501, tmp_path)
    with pytest.raises(NoRoomError, match=r"kernel\.threads-max is 500"):
        check_room(100000, tmp_path)


def test_the_agent_holds_two_descriptors_for_each_rank(tmp_path: Path, limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_NOFILE] = 1024
    text = refused(513, tmp_path)
    assert "each rank needs 2 of the 1024 open files" in text and text.endswith("ulimit -n")


@pytest.mark.parametrize(
    ("status", "is_held"),
    [
        ("Uid:\t1000\t1000\nCapEff:\t0000000000000000\n", True),
        ("Uid:\t0\t0\nCapEff:\t0000000000000000\n", False),
        ("Uid:\t1000\t1000\nCapEff:\t0000000000200000\n", False),
        ("Uid:\t1000\t1000\nCapEff:\t0000000001000000\n", False),
        ("Uid:\t1000\t1000\nCapEff:\t0000000000400000\n", True),
    ],
    ids=["user", "root", "admin", "resource", "other capability"],
)
def test_the_users_limit_does_not_hold_those_whom_the_kernel_exempts(
    tmp_path: Path, limits: dict[int, int], status: str, is_held: bool
) -> None:
    limits[resource.RLIMIT_NPROC] = 100
    write(tmp_path, {"proc/self/status": status})
    if is_held:
        assert "a user may have 100 processes (RLIMIT_NPROC)" in refused(101, tmp_path)
    else:
        check_room(101, tmp_path)


@pytest.mark.parametrize(
    ("group", "folder"),
    [("0::/job/7\n", "sys/fs/cgroup"), ("8:pids:/job/7\n0::/\n", "sys/fs/cgroup/pids")],
    ids=["version 2", "version 1"],
)
def test_a_container_and_what_is_around_it(tmp_path: Path, limits: dict[int, int], group: str, folder: str) -> None:
    write(tmp_path, {"proc/self/cgroup": group, f"{folder}/job/7/pids.max": "max\n", f"{folder}/job/pids.max": "60\n"})
    text = refused(61, tmp_path)
    assert "its control group may have 60 processes" in text and text.endswith(f"{folder}/job/pids.max")
    write(tmp_path, {f"{folder}/job/7/pids.max": "1\n"})
    assert "2 ranks on this machine were asked for, but it allows at most 1:" in refused(2, tmp_path)


def test_a_group_outside_of_what_this_process_sees_ends_the_search(tmp_path: Path, limits: dict[int, int]) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/../../other\n"})
    check_room(10**6, tmp_path)


def test_what_runs_already_is_counted(tmp_path: Path, limits: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    limits[resource.RLIMIT_NPROC] = 100
    write(tmp_path, USER)
    for pid, user, threads in ((7, 1000, 30), (8, 1000, 5), (9, 2000, 60)):
        write(tmp_path, {f"proc/{pid}/status": f"Name:\tx\nUid:\t{user}\t{user}\nThreads:\t{threads}\n"})
    assert "it allows at most 65: a user may have 100 processes (RLIMIT_NPROC), of which 35 are in use" in refused(
        66, tmp_path
    )


def test_what_a_control_group_has_already_is_counted(tmp_path: Path, limits: dict[int, int]) -> None:
    folder = "sys/fs/cgroup/job/7"
    write(tmp_path, {**VERSION_2, f"{folder}/pids.max": "40\n", f"{folder}/pids.current": "1\n"})
    assert "at most 39: its control group may have 40 processes, of which 1 is in use" in refused(40, tmp_path)


def test_the_launchers_limit_of_open_files_is_raised_for_a_job_that_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    for soft, hard in ((1024, 4096), (1024, 1500), (1024, resource.RLIM_INFINITY), (resource.RLIM_INFINITY,) * 2):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        allow_open_files(hosts=100, ranks=800)
        allow_open_files(hosts=4, ranks=32)
    assert raised == [(2464, 4096), (1500, 1500), (2464, resource.RLIM_INFINITY)]
