# SPDX-License-Identifier: Apache-2.0
"""The out-of-memory killer's counters, in both layouts of control groups, and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.launcher.host import memory


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


VERSION_2 = {"proc/self/cgroup": "0::/job/7\n", "sys/fs/cgroup/job/7/memory.events": "low 0\noom 3\noom_kill 2\n"}
VERSION_1 = {
    "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/job\n0::/elsewhere\n",
    "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}
MACHINE = {"proc/vmstat": "nr_free_pages 1\noom_kill 9\n"}


@pytest.mark.parametrize("layout", [VERSION_2, VERSION_1], ids=["version 2", "version 1"])
def test_a_kill_within_the_jobs_limit_is_told_from_one_elsewhere(tmp_path: Path, layout: dict[str, str]) -> None:
    write(tmp_path, {**layout, **MACHINE})
    counter = memory.KillCounter(tmp_path)
    assert counter.scope_of_kill() == memory.NO_PROCESS
    write(tmp_path, {"proc/vmstat": "oom_kill 10\n"})
    assert counter.scope_of_kill() == memory.ON_MACHINE
    name = next(name for name in layout if name.startswith("sys"))
    write(tmp_path, {name: layout[name].replace("oom_kill 2", "oom_kill 3"), "proc/vmstat": "oom_kill 11\n"})
    assert counter.scope_of_kill() == memory.IN_CGROUP
    assert counter.scope_of_kill() == memory.NO_PROCESS, "one kill, one process"


def test_a_kernel_that_shows_no_counter_is_not_taken_for_one_that_counted_none(tmp_path: Path) -> None:
    assert memory.KillCounter(tmp_path).scope_of_kill() == memory.UNKNOWN
    write(tmp_path, {**VERSION_2, "sys/fs/cgroup/job/7/memory.events": "low 0\n", "proc/vmstat": "oom_kill many\n"})
    assert memory.KillCounter(tmp_path).scope_of_kill() == memory.UNKNOWN


def test_a_counter_that_disappears_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, VERSION_2)
    counter = memory.KillCounter(tmp_path)
    (tmp_path / "sys/fs/cgroup/job/7/memory.events").unlink()
    assert counter.scope_of_kill() == memory.UNKNOWN
