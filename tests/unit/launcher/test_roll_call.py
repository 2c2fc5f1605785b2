# SPDX-License-Identifier: Apache-2.0
"""Which address all hosts reach, and the report of those that are not ready."""

from __future__ import annotations

from horovod import __version__
from horovod.launcher.job.roll_call import RollCall
from horovod.launcher.job.spec import Terms


def prepared(reached: list[str], problems: list[list[str]] | None = None, **unreached: str) -> dict[str, object]:
    return {
        "problems": problems or [],
        "reached": reached,
        "unreached": {f"10.0.0.{n[1:]}": w for n, w in unreached.items()},
    }


def test_the_first_address_that_all_reach_is_taken() -> None:
    call = RollCall(["a", "b"], ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    call.answers("a", prepared(["10.0.0.2", "10.0.0.3"], _1="refused"))
    assert not call.is_complete and call.is_awaited("b")
    call.answers("b", prepared(["10.0.0.1", "10.0.0.3"], _2="no answer"))
    assert call.is_complete and call.report() is None
    assert call.address() == "10.0.0.3"


def test_without_other_machines_no_address_is_sought() -> None:
    call = RollCall(["a"], [])
    call.answers("a", prepared([]))
    assert (call.report(), call.address()) == (None, None)


def test_no_common_address_says_who_could_not_reach_which() -> None:
    call = RollCall(["a", "b", "c"], ["10.0.0.1", "10.0.0.2"])
    call.answers("a", prepared(["10.0.0.2"], _1="refused"))
    call.answers("b", prepared(["10.0.0.1"], _2="no answer"))
    call.answers("c", prepared(["10.0.0.1", "10.0.0.2"]))
    report = call.report()
    assert report is not None
    assert "2 of 3 hosts are not ready" in report
    assert "  a cannot reach this host at 10.0.0.1 (refused)\n" in report
    assert "  b cannot reach this host at 10.0.0.2 (no answer)\n" in report
    assert "  c " not in report


def test_a_late_host_is_reported_with_what_came_from_it() -> None:
    call = RollCall(["a"], [])
    call.is_late("a", 2.0, "Welcome\nchecking your quota ...\n\n")
    report = call.report()
    assert report is not None
    lines = report.splitlines()
    assert lines[0] == "host a is not ready; nothing was started"
    assert lines[1] == "  a did not answer within 2 s; the last that came from it was: checking your quota ..."
    assert str(call.report("it gets no workers")).startswith("host a is not ready; it gets no workers\n")
    assert lines[2].startswith("    hint: look on that host for a file system or a shell start file")
    assert lines[2].endswith("--start-timeout gives hosts more time")


def test_hints_have_the_names_of_the_caller() -> None:
    call = RollCall(["a", "b"], ["10.0.0.1"], terms=Terms("tasks", "start_timeout", "HOROVOD_START_TIMEOUT", "nics"))
    for host in "ab":
        call.answers(host, prepared([], _1="refused"))
    report = call.report() or ""
    assert report.startswith("2 of 2 tasks are not ready") and "choose a network with nics, or look" in report
    call = RollCall(["a"], [], terms=Terms("tasks", "start_timeout"))
    call.is_late("a", 2.0)
    assert "; start_timeout gives tasks more time" in (call.report() or "")


def test_all_problems_of_all_hosts_are_in_one_report() -> None:
    call = RollCall(["a", "b", "c", "d"], ["10.0.0.1"])
    assert call.greets("a", __version__)
    call.answers("a", prepared([], [["has no folder /x", "copy it"], ["has no program y", "copy that"]], _1="refused"))
    call.fails("b", "cannot be reached by ssh: refused", "is sshd there?")
    assert not call.greets("c", "0.0.1")
    call.is_late("d", 30.0)
    assert call.is_complete
    report = call.report()
    assert report is not None
    lines = report.splitlines()
    assert lines[0] == "4 of 4 hosts are not ready; nothing was started"
    assert lines[1:5] == ["  a has no folder /x", "    hint: copy it", "  a has no program y", "    hint: copy that"]
    assert f"  c has hvd 0.0.1, but this host has {__version__}" in lines
    assert "  d did not answer within 30 s" in lines
    assert lines[-1] == "more: horovodrun --explain hosts-not-ready"


def test_what_a_host_reaches_is_known_once_it_has_answered() -> None:
    call = RollCall(["a"], ["10.0.0.1", "10.0.0.2"])
    assert not call.reaches("a", "10.0.0.2")
    call.answers("a", prepared(["10.0.0.2"], _1="refused"))
    assert [call.reaches("a", one) for one in ("10.0.0.1", "10.0.0.2")] == [False, True]
