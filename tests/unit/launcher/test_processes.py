# SPDX-License-Identifier: Apache-2.0
"""The walk over all descendants of a process, and how one has ended."""

from __future__ import annotations

import pytest

from horovod.launcher.host import processes


def test_children_of_a_process_that_ends_during_the_walk_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 was read while its parent 11 still lived; when 11 was read, it had ended."""
    read = {10: ("S", 1), 12: ("S", 11), 11: ("Z", 10), 13: ("Z", 10), 20: ("S", 1)}
    monkeypatch.setattr(processes.os, "listdir", lambda _: ["cpuinfo", *map(str, read)])

    def stat(pid: int) -> list[bytes]:
        state, parent = read[pid]
        return [state.encode(), str(parent).encode(), *[b"0"] * 17, b"99"]

    monkeypatch.setattr(processes, "_stat", stat)
    assert processes.descendants(10) == {12: 99}
    assert processes.descendants(20) == {}


def test_an_exit_code_is_as_a_shell_gives_it() -> None:
    assert [processes.shell_code(code) for code in (0, 3, 255, -2, -9)] == [0, 3, 255, 130, 137]
