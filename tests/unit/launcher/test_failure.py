# SPDX-License-Identifier: Apache-2.0
"""Which rank is the cause: exits and records in, one answer out."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from horovod.core.exceptions import NOT_REACHED
from horovod.launcher.host import memory
from horovod.launcher.job.failure import (
    LATE,
    Cause,
    Line,
    RankExit,
    describe_end,
    last_exception,
    report,
    root_cause,
    waited_in_init,
)


def said(*texts: str, at_s: float = 1.0) -> list[Line]:
    return [Line(text, at_s) for text in texts]


RECORD = {"rank": 1, "code": 5, "text": "rank 1 died"}


@pytest.mark.parametrize(
    ("exits", "record", "expected"),
    [
        ([RankExit(0, 0, 1.0), RankExit(1, 0, 2.0)], None, None),
        # A recorded failure that the script handled.
        ([RankExit(0, 0, 1.0), RankExit(1, 0, 2.0)], RECORD, None),
        ([RankExit(2, 3, 1.0), RankExit(0, 1, 1.1)], None, Cause(2, 3)),
        # A death by signal of about the same time goes first, a later one does not.
        ([RankExit(2, 1, 1.0), RankExit(0, -9, 1.1)], None, Cause(0, -9)),
        ([RankExit(2, 1, 1.0), RankExit(0, -6, 1.5)], None, Cause(2, 1)),
        # What died of the launcher's own SIGTERM is no cause.
        ([RankExit(2, 3, 1.0), RankExit(0, -15, 1.1, asked=True)], None, Cause(2, 3)),
        ([RankExit(0, -15, 1.1, asked=True)], None, None),
        # The call of rank 1 was wrong; rank 0, which waited for it, ended first.
        ([RankExit(0, 1, 1.0, blames_a_peer=True), RankExit(1, 3, 1.9)], None, Cause(1, 3)),
        ([RankExit(0, 1, 1.0, blames_a_peer=True), RankExit(2, 1, 1.1, blames_a_peer=True)], None, Cause(0, 1)),
        # The ranks' record decides.
        ([RankExit(0, 1, 1.0), RankExit(1, 4, 1.1)], RECORD, Cause(1, 4, "rank 1 died")),
        # The named rank left with 0, hangs, or was ended with the others: the code is that of the first who failed.
        ([RankExit(1, 0, 0.5), RankExit(0, 7, 1.0)], RECORD, Cause(1, 7, "rank 1 died")),
        ([RankExit(0, 7, 1.0)], RECORD, Cause(1, 7, "rank 1 died")),
        ([RankExit(0, 7, 1.0), RankExit(1, -15, 2.1, asked=True)], RECORD, Cause(1, 7, "rank 1 died")),
        # No single rank: the first that failed speaks for all.
        ([RankExit(0, 7, 1.0)], {"rank": -1, "text": "a stall"}, Cause(0, 7, "a stall")),
    ],
)
def test_root_cause(exits: list[RankExit], record: dict[str, Any] | None, expected: Cause | None) -> None:
    assert root_cause(exits, record) == expected


@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), (-9, 137), (-11, 139)])
def test_exit_codes_are_the_shells(code: int, exit_code: int) -> None:
    assert Cause(0, code).exit_code == exit_code


def test_a_report_ends_with_the_cause_and_what_to_do() -> None:
    lines = said("Epoch 3", "loss nan", at_s=0.5)
    text = report(Cause(1, -9, "allreduce: rank 1 died"), [RankExit(1, -9, 1.0)], "h1", lines)
    assert text.splitlines()[:5] == [
        "horovodrun: the last lines of rank 1's stderr:",
        "    Epoch 3",
        "    loss nan",
        "horovodrun: rank 1 on host h1 was killed by SIGKILL",
        "  as the ranks saw it: allreduce: rank 1 died",
    ]
    assert text.splitlines()[5].startswith("hint: ")


def test_old_lines_of_a_killed_rank_are_left_out() -> None:
    lines = [*said("a warning at the start", at_s=1.0), *said("terminate called", at_s=59.9)]
    text = report(Cause(1, -6), [RankExit(1, -6, 60.0)], "h1", lines)
    assert "a warning" not in text and "terminate called" in text
    # So are those of a rank that stands still.
    text = report(Cause(1, -19, "", 19), [RankExit(1, -15, 60.0, asked=True)], "h1", lines[:1])
    assert "a warning" not in text


def test_old_lines_of_a_rank_that_exits_are_shown_with_their_age() -> None:
    text = report(Cause(1, 3), [RankExit(1, 3, 60.0)], "h1", said("a warning", at_s=20.0))
    assert text.splitlines()[0] == "horovodrun: the last lines of rank 1's stderr, written 40 s before its end:"


@pytest.mark.parametrize(
    ("ended", "how"),
    [
        (RankExit(1, -9, 1.0), "was killed by SIGKILL"),
        (RankExit(1, -15, 1.0, asked=True), "was ended by horovodrun"),
        (RankExit(1, 3, 1.0, asked=True), "exited with code 3"),
    ],
)
def test_the_end_of_a_rank_in_words(ended: RankExit, how: str) -> None:
    assert describe_end(ended, 77) == f"rank 1 (process 77) {how}"


def test_a_record_with_a_hint_of_its_own_is_the_last_word() -> None:
    text = report(Cause(1, 2, "a\nhint: do b"), [RankExit(1, 2, 1.0)], "h1", [])
    assert text == "horovodrun: rank 1 on host h1 exited with code 2\n  as the ranks saw it: a\n    hint: do b\n" + (
        "more: horovodrun --explain rank-failed"
    )


def test_the_last_line_is_the_code_of_what_the_rank_said_and_nothing_is_said_twice() -> None:
    """A deadlock: the stall report and the error stand on the terminal already, and the error is the record."""
    record = "`a` failed: rank 0 waited 3 s\nhint: call it"
    more = "more: horovodrun --explain deadlock"
    stall = said("horovod: warning: stall: rank 0 waited 2 s", "  rank 1 stands at", "more: horovodrun --explain stall")
    error = said("horovod.core.exceptions.DeadlockError: `a` failed: rank 0 waited 3 s", "hint: call it", more)
    text = report(Cause(0, 1, record), [RankExit(0, 1, 1.0)], "h", [*said("epoch 3"), *stall, *error])
    assert text.splitlines() == [
        "horovodrun: the last lines of rank 0's stderr:",
        "    epoch 3",
        "    horovod.core.exceptions.DeadlockError: `a` failed: rank 0 waited 3 s",
        "    hint: call it",
        "horovodrun: rank 0 on host h exited with code 1",
        more,
    ]
    # A report that nothing follows may be why the rank was killed. One whose beginning is lost ends where it ends.
    assert "stands at" in report(Cause(0, -9), [RankExit(0, -9, 1.0)], "h", stall)
    assert "stands at" not in report(Cause(0, 1), [RankExit(0, 1, 1.0)], "h", [*stall[1:], *error])


@pytest.mark.parametrize(
    ("known", "happened", "hint", "code"),
    [
        (memory.IN_CGROUP, "was killed by SIGKILL: out of memory", "the job's memory limit", "rank-out-of-memory"),
        (memory.ON_MACHINE, "was killed by SIGKILL", "for lack of memory", "rank-out-of-memory"),
        (
            memory.NO_PROCESS,
            "was killed by SIGKILL",
            "memory did not run out, and horovodrun did not send SIGKILL",
            "rank-killed",
        ),
        (memory.UNKNOWN, "was killed by SIGKILL", "who sent it is not known", "rank-killed"),
    ],
)
def test_a_kill_says_what_is_known_of_its_sender(known: str, happened: str, hint: str, code: str) -> None:
    lines = report(Cause(1, -9), [RankExit(1, -9, 1.0, memory=known)], "h1", []).splitlines()
    assert lines[0] == f"horovodrun: rank 1 on host h1 {happened}"
    assert hint in lines[-2]
    assert lines[-1] == f"more: horovodrun --explain {code}"


STOPPED = {1: int(signal.SIGSTOP)}


@pytest.mark.parametrize(
    ("exits", "record", "expected"),
    [
        # The others failed because of it, or were ended with it.
        ([RankExit(0, 1, 1.0)], RECORD, Cause(1, 1, "rank 1 died", 19)),
        ([RankExit(0, -15, 1.0, asked=True)], None, Cause(1, -19, "", 19)),
        ([RankExit(0, -15, 1.0, asked=True)], RECORD, Cause(1, -19, "rank 1 died", 19)),
        # Another one is named, or failed without a word about this one.
        ([RankExit(0, 1, 1.0)], {"rank": 0, "text": "a"}, Cause(0, 1, "a")),
        ([RankExit(0, 3, 1.0)], None, Cause(0, 3)),
    ],
)
def test_a_stopped_rank_is_the_cause_of_what_it_caused(
    exits: list[RankExit], record: dict[str, Any] | None, expected: Cause
) -> None:
    assert root_cause(exits, record, STOPPED) == expected


def test_a_stopped_rank_is_reported_as_stopped() -> None:
    text = report(Cause(1, -19, "", 19), [RankExit(1, -15, 1.0, asked=True)], "h1", [])
    assert text.startswith("horovodrun: rank 1 on host h1 was stopped by SIGSTOP and not continued\nhint: ")
    assert Cause(1, -19, "", 19).exit_code == 147


@pytest.mark.parametrize(
    ("code", "explained", "text", "said"),
    [
        ("ABORTED", "aborted", "rank 0 waited 4 s", "did not make a call that others waited for"),
        ("RANK_LEFT", "rank-left", "rank 1 has left the job", "shut down while other ranks still waited for it"),
        ("RANK_LOST", "start-connection", f"no route\n{NOT_REACHED} may", "could not be reached by another rank"),
    ],
)
def test_a_rank_that_others_could_not_work_with_is_not_called_lost(
    code: str, explained: str, text: str, said: str
) -> None:
    exits = [RankExit(0, 1, 1.0), RankExit(1, -15, 2.1, asked=True)]
    cause = root_cause(exits, {"rank": 1, "code": code, "text": text})
    assert cause is not None
    lines = report(cause, exits, "h", []).splitlines()
    assert lines[0] == f"horovodrun: rank 1 on host h {said}, and was ended"
    assert lines[-1] == f"more: horovodrun --explain {explained}"
    if code == "RANK_LEFT":
        assert lines[1:-1] == [
            "  as the ranks saw it: rank 1 has left the job",
            "hint: all ranks must make the same number of steps and collective calls",
        ]


WAITED = "horovod.core.exceptions.StartError: rank 0 waited 2 s in init for rank 1 of 2, which has not called init"
CODE = "more: horovodrun --explain start-timeout"


def test_what_a_rank_said_of_its_wait_in_init_is_found() -> None:
    assert waited_in_init(said("KeyError: 'not called init'", CODE)) == ""
    assert waited_in_init(said(WAITED, "hint: x")) == ""
    assert waited_in_init(said("loads", WAITED, CODE)) == WAITED.partition(": ")[2]


FRAMES = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()"]
EXPLAINED = "horovod.core.exceptions.StartError: no memory"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([*FRAMES, "ValueError: bad", "hint: another"], "ValueError: bad"),
        ([*FRAMES, EXPLAINED, "hint: less", "more: horovodrun --explain start-resources"], EXPLAINED),
        ([*FRAMES, "__main__.main.<locals>.Boom", "a library says goodbye"], "__main__.main.<locals>.Boom"),
        ([*FRAMES[1:], "queue.Empty"], "queue.Empty"),  # the tail begins in the midst of the traceback
        ([*FRAMES, "KeyError: 1", "During handling of the above exception, ...", *FRAMES, "OSError"], "OSError"),
        ([*FRAMES, "KeyError: 1", "Exception ignored in: <f>", *FRAMES, "OSError"], "KeyError: 1"),
        (["Exception in thread Thread-1:", *FRAMES, "OSError", "sys.exit(3)"], ""),
        (["ValueError: said, but not raised"], ""),
        ([], ""),
    ],
)
def test_the_exception_that_a_script_has_died_of_is_found(lines: list[str], found: str) -> None:
    assert last_exception(said(*lines), 1.0) == found
    assert last_exception(said(*lines), 60.0) == "", "that is long ago"


def test_a_rank_that_exits_before_init_is_not_called_late() -> None:
    record = {"rank": 1, "code": LATE, "text": "a"}
    own = [RankExit(0, 1, 1.0), RankExit(1, 3, 2.0)]
    cause = root_cause(own, record)
    assert cause == Cause(1, 3, "a", kind=LATE)
    assert report(cause, own, "h", []).splitlines()[0] == "horovodrun: rank 1 on host h exited with code 3"


def test_the_hint_for_a_late_rank_names_the_limit_as_the_caller_knows_it() -> None:
    cause = Cause(1, 1, "a", kind=LATE)
    assert "; --start-timeout lets the others wait longer" in report(cause, [], "h", [])
    assert "; HOROVOD_START_TIMEOUT lets the others" in report(cause, [], "h", [], "HOROVOD_START_TIMEOUT")


def test_an_unknown_signal_is_shown_by_number() -> None:
    assert "was killed by signal 99" in report(Cause(0, -99), [RankExit(0, -99, 1.0)], "h", [])


def test_of_a_traceback_the_report_has_the_exception() -> None:
    frames = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    step()"]
    stderr = ["epoch 1", *frames, "KeyError: 'x'", "", *frames, "ValueError: two", "  lines", "hint: none"]
    text = report(Cause(0, 1), [RankExit(0, 1, 1.0)], "h", said(*stderr))
    shown = ["epoch 1", "KeyError: 'x'", "", "ValueError: two", "  lines", "hint: none"]
    assert text.splitlines()[1:-2] == [f"    {line}" for line in shown]
    # Its beginning may be cut off.
    cut = report(Cause(0, 1), [RankExit(0, 1, 1.0)], "h", said("    call()", *frames[1:], "KeyError: 'x'"))
    assert cut.splitlines()[1:-2] == ["    KeyError: 'x'"]
    # There may be nothing else.
    cut = report(Cause(0, 1), [RankExit(0, 1, 1.0)], "h", said(*frames))
    assert cut.splitlines()[1:-2] == [f"    {line}" for line in frames]


def test_what_a_framework_logs_as_it_goes_is_not_shown_as_the_end() -> None:
    logged = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "E0000 00:00:1732222222.123456  1234 cuda_platform.cc:51] failed call to cuInit: UNKNOWN ERROR (303)",
        "2026-01-02 03:04:05.678901: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary",
    ]
    fatal = "F0000 00:00:1732222222.123456  1234 tensor.cc:844] Check failed: dtype"
    text = report(Cause(0, -9), [RankExit(0, -9, 1.0, memory=memory.NO_PROCESS)], "h", said(*logged))
    assert "stderr" not in text and "cuInit" not in text
    text = report(Cause(0, -6), [RankExit(0, -6, 1.0)], "h", said(*logged, fatal))
    assert text.splitlines()[:2] == ["horovodrun: the last lines of rank 0's stderr:", f"    {fatal}"]
    assert "wrote nothing" not in report(Cause(0, 1), [RankExit(0, 1, 1.0)], "h", said(*logged))


def test_harmless_last_lines_of_a_rank_that_ended_well_are_not_shown() -> None:
    exits = [RankExit(1, 0, 2.0), RankExit(0, 1, 2.1)]
    cause = Cause(1, 1, "rank 1 left")
    harmless = report(cause, exits, "a", said("UserWarning: old", "saved", at_s=2.0))
    assert "horovodrun: rank 1 on host a exited with code 0" in harmless and "last lines" not in harmless
    error = said("Traceback (most recent call last):", '  File "t.py", line 1, in f', "ValueError: bad", at_s=2.0)
    assert "    ValueError: bad" in report(cause, exits, "a", error)
