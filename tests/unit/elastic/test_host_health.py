# SPDX-License-Identifier: Apache-2.0
"""What makes a host unfit for workers of an elastic job."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path

import pytest

from horovod.core.temporary_files import memory_file
from horovod.launcher.host import host_health


def texts(root: Path, time_s: float | None = None) -> list[str]:
    now = time.time() if time_s is None else time_s
    return [text for text, _ in host_health.problems(now, str(root / "tmp"), root)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 1 GB of free memory, and no limit."""
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
    return tmp_path


def test_a_machine_without_limits_is_fit(root: Path) -> None:
    assert texts(root) == []
    assert texts(root / "nothing") == []


def test_a_host_with_too_little_memory(root: Path) -> None:
    (root / "proc/meminfo").write_text("MemAvailable: 102400 kB\n")
    assert texts(root) == ["has only 100 MB of free memory"]


def test_a_limit_counts_without_what_the_kernel_would_give_up(root: Path) -> None:
    group = root / "sys/fs/cgroup/job"
    (group / "memory.max").write_text(f"{500 << 20}\n")
    (group / "memory.current").write_text(f"{450 << 20}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {300 << 20}\n")
    assert texts(root) == []
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {10 << 20}\n")
    assert texts(root) == ["has only 60 MB of free memory"]
    (group / "memory.max").write_text("max\n")
    assert texts(root) == []


@pytest.mark.parametrize(("offset_s", "said"), [(-4000.0, "4000 s ahead of"), (4000.0, "4000 s behind"), (200.0, "")])
def test_a_clock_that_is_wrong(root: Path, offset_s: float, said: str) -> None:
    found = texts(root, time.time() + offset_s)
    assert found == ([f"has a clock that is {said} this host's"] if said else [])


def test_a_folder_for_temporary_files_that_is_full(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(root / "gone"))
    assert texts(root) == [f"cannot write temporary files in {root / 'gone'}: No such file or directory"]
    (root / "tmp").mkdir()
    assert texts(root) == [], "the workers' own folder is there"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'GPU 0: H100 (UUID: a)'; echo 'GPU 1: H100 (UUID: b)'", ""),
        ("echo 'NVIDIA-SMI could not find libnvidia-ml.so' >&2; exit 12", ""),  # a container without GPUs
        (
            "echo 'Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.' >&2; exit 15",
            "has a GPU that has failed: Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.",
        ),
        ("exec sleep 20", "has GPUs that hang: nvidia-smi gave no answer within 0.5 s"),
    ],
)
def test_gpus_that_have_failed(root: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    """A script stands for the driver's tool."""
    tool = root / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(root), prepend=os.pathsep)
    if "sleep" in script:
        monkeypatch.setattr(host_health, "_NVIDIA_SMI_S", 0.5)
    assert texts(root) == ([said] if said else [])


def test_a_file_that_is_no_program_is_not_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "nvidia-smi").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(root))
    assert texts(root) == []


def test_a_file_without_a_name_is_made_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container that refuses memfd_create and has no /dev/shm."""
    make = tempfile.mkstemp

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(
        tempfile, "mkstemp", lambda prefix, dir: refuse() if dir == "/dev/shm" else make("", prefix, dir)
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptor = memory_file("secret")
    found = os.fstat(descriptor)
    os.close(descriptor)
    assert (found.st_nlink, found.st_mode & 0o777, found.st_dev) == (0, 0o600, tmp_path.stat().st_dev)
    assert list(tmp_path.iterdir()) == []
