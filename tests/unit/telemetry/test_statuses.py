# SPDX-License-Identifier: Apache-2.0
"""What the rendezvous keeps of the ranks' statuses, and what is made of them: rates, the verdict, and texts."""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from horovod.core.telemetry.samples import IN_HOROVOD, Samples, stacks
from horovod.core.telemetry.status import StatusThread
from horovod.launcher.watch import screen
from horovod.launcher.watch.facts import facts_of, ranks_in_words, since_init
from horovod.launcher.watch.stacks import _answers, grouped
from horovod.launcher.watch.summary import summary
from horovod.launcher.watch.verdict import Verdict, judge, stuck
from horovod.world.channel import MAX_FRAME_BYTES
from horovod.world.statuses import Statuses

STEP_S = 0.1


def status(seconds: float, lost: dict[int, float], **more: Any) -> dict[str, Any]:
    """Of a rank that has waited `lost[r]` of its time for rank r since init."""
    whole = sum(lost.values())
    worst = max(lost, key=lost.__getitem__, default=None)
    late = None
    if worst is not None and whole >= 0.02:
        late = {"rank": worst, "share": whole, "since_step": 3, "since_s": 0.3}
    return {
        "pid": 100,
        "host": "a",
        "local_rank": 0,
        "seconds": seconds,
        "steps": round(seconds / STEP_S),
        "bytes": round(seconds * 1e8),
        "in_flight": 0,
        "waiting_s": whole * seconds,
        "blocked_times": round(seconds / STEP_S),
        "blocked_for_ranks_s": whole * seconds,
        "blocked_for_data_s": 0.01 * seconds,
        "by_rank": {str(rank): share * seconds for rank, share in lost.items()},
        "late": late,
        "core_wait_s": 0.0,
        **more,
    }


def job(losses: list[dict[int, float]], **more: dict[int, Any]) -> dict[str, Any]:
    """A view of a job of 30 s. `losses`: for each rank, the shares of its time by the rank that it waited for."""
    statuses = Statuses()
    for second in range(1, 31):
        for rank, lost in enumerate(losses):
            own = {key: values[rank] for key, values in more.items() if rank in values}
            own = {key: value * second if isinstance(value, float) else value for key, value in own.items()}
            statuses.put(1, rank, len(losses), {**status(second, lost), **own}, float(second))
    return statuses.view(0, 30.0)


def sampled(*lines: tuple[str, str, int]) -> dict[str, Any]:
    return {"samples": sum(count for _, _, count in lines), "lines": [list(line) for line in lines]}


ONE_IS_LATE = [{1: 0.18}, {0: 0.004}, {1: 0.17, 3: 0.01}, {1: 0.18}]


def test_rates_are_those_of_the_last_seconds() -> None:
    statuses = Statuses()
    for second in range(1, 41):
        slow = min(second, 20) + max(0, second - 20) * 3  # three times as many steps a second from the 20th on
        new = status(second, {}, steps=slow)
        statuses.put(1, 0, 1, new, float(second))
    view = statuses.view(0, 41.5)
    facts = facts_of(view).ranks[0]
    assert facts.steps_per_s == pytest.approx(3.0) and 10 <= facts.span_s <= 20
    assert facts.age_s == 1.5
    assert since_init(view).ranks[0].steps_per_s == pytest.approx(2.0)


def test_the_rank_for_which_the_others_wait_is_named_with_the_cost() -> None:
    verdict = judge(facts_of(job(ONE_IS_LATE)))
    assert verdict is not None and (verdict.rank, verdict.host, verdict.since_step) == (1, "a", 3)
    assert verdict.late_s == pytest.approx(0.176 * STEP_S, rel=0.02)
    assert str(verdict) == (
        "rank 1 (host a) has been 18 ms late in each step since step 3. Without this delay the job would be 21% faster"
    )
    assert str(dataclasses.replace(verdict, share=0.8)).endswith("the job would be 5.0 times as fast")


@pytest.mark.parametrize(
    "losses",
    [
        [{1: 0.08}, {0: 0.06}],  # two that wait for each other
        [{1: 0.01}, {0: 0.001}],  # not worth a word
        [{1: 0.05, 2: 0.05}, {0: 0.05, 2: 0.05}, {0: 0.05, 1: 0.05}],  # each in turn
        [{}, {}, {}],
        [{1: 0.3}],  # one rank has said something
        [],
    ],
)
def test_there_is_no_verdict_where_no_rank_is_slow(losses: list[dict[int, float]]) -> None:
    assert judge(facts_of(job(losses))) is None


def test_what_has_begun_a_moment_ago_is_no_verdict_yet() -> None:
    just = {rank: {"rank": 1, "share": 0.2, "since_step": 290, "since_s": 29.0} for rank in (0, 2, 3)}
    view = job(ONE_IS_LATE, late=just)
    assert judge(facts_of(view)) is None
    assert judge(since_init(view), sustained=False) is not None  # of the whole job it is


def test_the_reason_is_the_part_of_the_step_in_which_the_late_rank_is_longer() -> None:
    late = sampled(("the data loader", "read (data.py:7)", 40), ("backward", "step (train.py:9)", 60))
    usual = sampled((IN_HOROVOD, "step (train.py:9)", 38), ("backward", "step (train.py:9)", 60), ("", "x (y.py:1)", 2))
    verdict = judge(facts_of(job(ONE_IS_LATE, sampled={1: late, 0: usual})))
    assert verdict is not None and verdict.part == "the data loader"
    assert "since step 3: it is in the data loader, read (data.py:7). Without" in str(verdict)


def test_a_line_of_no_part_is_a_reason_though_the_others_wait_in_such_a_line() -> None:
    """They wait in the call of a function that TensorFlow or JAX has compiled."""
    late = sampled(("", "decode (data.py:7)", 60), ("", "train (train.py:9)", 40))
    usual = sampled(("", "train (train.py:9)", 100))
    verdict = judge(facts_of(job(ONE_IS_LATE, sampled={1: late, 0: usual})))
    assert verdict is not None and verdict.where == "it is in decode (data.py:7)"


def test_the_losses_of_a_compiled_function_are_not_those_of_the_script() -> None:
    """A script is blocked for an average of losses in each step, and loses more in the function."""
    hardly = dict.fromkeys((0, 2, 3), 0.001)
    blocked = job(ONE_IS_LATE, blocked_for_ranks_s=hardly)
    assert judge(facts_of(blocked)) is None
    compiled = job(ONE_IS_LATE, blocked_for_ranks_s=hardly, framework_waits=dict.fromkeys(range(4), True))
    verdict = judge(facts_of(compiled))
    assert verdict is not None and verdict.late_s == pytest.approx(0.176 * STEP_S, rel=0.02)


def test_no_reason_is_given_if_the_late_rank_does_nothing_more() -> None:
    usual = sampled(("backward", "step (train.py:9)", 95), (IN_HOROVOD, "step (train.py:9)", 5))
    verdict = judge(facts_of(job(ONE_IS_LATE, sampled={1: usual, 0: usual})))
    assert verdict is not None and (verdict.part, verdict.where) == ("", "")


def test_a_rank_whose_cores_are_busy_is_told_so() -> None:
    verdict = judge(facts_of(job(ONE_IS_LATE, core_wait_s={1: 0.3})))
    assert verdict is not None and verdict.part == "core" and "it waits for a core 30% of the time" in str(verdict)


@pytest.mark.parametrize("key", [*status(1.0, {1: 0.3}), "sampled", "links", "stacks"])
@pytest.mark.parametrize("value", [None, "x", -1, [], [[1]], {"x": "y"}, {"rank": "z"}, {"1": [2]}])
def test_a_status_of_another_form_ends_nothing(key: str, value: Any) -> None:
    view = job(ONE_IS_LATE, **{key: {1: value, 2: value}})
    judge(facts_of(view))
    assert summary(view, 62.0) and screen.plain("1a2b3c", facts_of(view), 80, 20)


def test_the_late_rank_and_one_that_waits_are_sampled() -> None:
    statuses = Statuses()
    for second in (1.0, 2.0):
        answers = [statuses.put(1, rank, 4, status(10, lost), second) for rank, lost in enumerate(ONE_IS_LATE)]
    assert [answer["sample"] for answer in answers] == [True, True, False, False]


def test_a_large_job_says_less_often_how_it_does_and_is_read_in_pages() -> None:
    statuses = Statuses()
    for rank in range(1000):
        long = {"stacks": {"number": 1, "threads": ["x" * 1000] * 100}} if rank < 20 else {}
        answer = statuses.put(1, rank, 1000, status(10, {}, **long), 1.0)
    assert answer["next_s"] == 2.0
    seen, view = set(), statuses.view(0, 1.0)
    while True:
        assert len(json.dumps(view)) < MAX_FRAME_BYTES
        seen |= set(view["ranks"])
        if "next" not in view:
            break
        view = statuses.view(view["next"], 1.0)
    assert len(seen) == 1000 and "past" not in view


def test_ranks_that_others_wait_for_in_vain_are_named() -> None:
    view = job([{}, {}, {}], stuck_s={0: 0.4, 2: 0.4}, in_flight={0: 1, 2: 1})
    said = "2 ranks (0, 2) have waited 12 s for rank 1, which has not called the same operation"
    assert screen.words(facts_of(view)) == [f"{said}; horovodrun stacks prints where they are"]
    assert summary(view, 62.0)[-1] == f"at the end, {said}"
    assert stuck(facts_of(job([{}, {}], in_flight={0: 1, 1: 1}, stuck_s={0: 0.4, 1: 0.4}))) == ""  # data moves


def test_a_narrow_screen_leaves_columns_out() -> None:
    lines = screen.plain("1a2b3c", facts_of(job(ONE_IS_LATE)), 40, 30).splitlines()
    header = next(line for line in lines if line.strip().startswith("RANK"))
    assert header.split() == ["RANK", "HOST", "STEPS/S", "WAITS", "DATA", "LATE"] and max(map(len, lines)) <= 40


def test_samples_take_nothing_of_the_scripts_random_numbers() -> None:
    """Keras draws its seeds from them."""
    thread = object.__new__(StatusThread)
    thread._ended, thread._samples = threading.Event(), Samples()
    before = random.getstate()
    assert not thread._sleep(0.15)
    assert thread._samples.summary() and random.getstate() == before


def in_file(path: str, code: str) -> Any:
    """A function that calls what it is given, as if it were in this file."""
    space: dict[str, Any] = {}
    exec(compile(f"def {code}(then, *rest):\n    then(*rest)", path, "exec"), space)
    return space[code]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_loader_that_a_compiled_function_calls_on_another_thread_is_found(is_compiled: bool) -> None:
    """As TensorFlow's data pipelines do in Keras' fit."""
    package = "/x/site-packages/tensorflow/python"
    pipeline = in_file(f"{package}/data/ops/from_generator_op.py", "generator_py_func")
    decode = in_file("/y/data.py", "decode")
    step = in_file(f"{package}/eager/execute.py" if is_compiled else "/y/train.py", "step")
    over = threading.Lock()
    over.acquire()
    threads = [threading.Thread(target=pipeline, args=(decode, over.acquire))]
    threads.append(threading.Thread(target=step, args=(over.acquire,)))
    for thread, place in zip(threads, ("decode", "step"), strict=True):
        thread.start()
        while sys._current_frames()[thread.ident or 0].f_code.co_name != place:
            time.sleep(0.001)
    found = Samples()
    found._main = threads[1].ident
    found.take()
    for _ in threads:  # each takes the lock, and leaves it so
        over.release()
        while not over.locked():
            time.sleep(0.001)
    line = ["the data loader", "decode (data.py:2)", 1] if is_compiled else ["", "step (train.py:2)", 1]
    assert found.summary() == {"samples": 1, "lines": [line]}


def test_stacks_keep_nothing_alive() -> None:
    class Held:
        pass

    def hold(ready: threading.Event, over: threading.Event, gone: list[Any]) -> None:
        held = Held()
        gone.append(weakref.ref(held))
        ready.set()
        over.wait()

    ready, over, gone = threading.Event(), threading.Event(), list[Any]()
    holder = threading.Thread(target=hold, args=(ready, over, gone))
    gc.disable()
    try:
        holder.start()
        ready.wait()
        assert any(" in hold" in frame for one in stacks() for frame in one["frames"])
        over.set()
        holder.join()
        assert gone[0]() is None
    finally:
        gc.enable()


def test_generations_are_summed_up() -> None:
    statuses = Statuses()
    statuses.put(1, 0, 3, status(10, {}), 1.0)
    statuses.put(2, 0, 2, status(5, {}), 2.0)
    statuses.put(1, 2, 3, status(11, {}), 2.1)  # a rank that is late to notice
    view = statuses.view(0, 3.0)
    assert view["generation"] == 2 and view["size"] == 2 and set(view["ranks"]) == {"0"}
    assert view["past"][0]["size"] == 3 and view["past"][0]["steps"] == 100
    assert "150 steps" in summary(view, 16.0)[0]


def test_stacks_are_asked_for_a_while() -> None:
    statuses = Statuses()
    assert "stacks" not in statuses.put(1, 0, 1, status(1, {}), 1.0)
    number = statuses.ask_stacks(2.0)
    assert statuses.put(1, 0, 1, status(1, {}), 3.0)["stacks"] == number
    assert "stacks" not in statuses.put(1, 0, 1, status(1, {}), 60.0)


def test_the_summary_says_who_was_slow() -> None:
    lines = summary(job(ONE_IS_LATE), 62.0)
    assert lines[0] == "0:01:02, 300 steps, 3.0 GB reduced on each rank"
    assert lines[1] == "a typical rank spent 18% of its time waiting for other ranks and 1% waiting for data"
    assert lines[2].startswith("the others waited longest for rank 1 (host a): 9")
    assert lines[3].startswith("rank 1 (host a) has been 18 ms late in each step")
    assert summary(Statuses().view(0, 0.0), 62.0) == []


def test_the_summary_blames_nobody_for_little_and_counts_in_units_that_fit() -> None:
    little = [{1: 0.01}, {}, {1: 0.01}]
    assert len(summary(job(little), 62.0)) == 2
    for moved, said in ((0, "0 bytes"), (999, "999 bytes"), (31_000, "31.0 KB"), (45_000_000, "45.0 MB")):
        first = summary(job(little, steps=dict.fromkeys(range(3), 1), bytes=dict.fromkeys(range(3), moved)), 62.0)[0]
        assert first == f"0:01:02, 1 step, {said} reduced on each rank"


@pytest.mark.parametrize("width", [80, 200])
def test_the_screen_fits_its_width_and_height(width: int) -> None:
    losses = [{5: 0.2} if rank != 5 else {} for rank in range(50)]
    text = screen.plain("1a2b3c", facts_of(job(losses)), width, 20)
    lines = text.splitlines()
    assert len(lines) <= 20 and all(len(line) <= width for line in lines)
    assert any(line.split()[:1] == ["5"] for line in lines)  # the late one is among those that are shown
    assert any(line.endswith("more ranks") for line in lines) and "rank 5 (host a) has been 20 ms late" in text.replace(
        "\n", " "
    )


def test_equal_stacks_are_one_group() -> None:
    trains = [{"thread": "main", "frames": ["/x/train.py:5 in <module>", "/x/train.py:88 in step"]}]
    loads = [{"thread": "main", "frames": ["/x/train.py:5 in <module>", "/x/loader.py:31 in read"]}]
    text = grouped({0: trains, 1: loads, 2: trains, 3: trains}, {4: "has sent no status yet"})
    assert text.splitlines()[0] == "3 ranks (0, 2-3) at train.py:88"
    assert "rank 1 at loader.py:31" in text and text.splitlines()[-1] == "rank 4 has sent no status yet"


@pytest.mark.parametrize(
    ("ranks", "words"), [([3], "rank 3"), ([0, 4], "2 ranks (0, 4)"), ([1, 0, 2, 7], "4 ranks (0-2, 7)")]
)
def test_ranks_in_words(ranks: list[int], words: str) -> None:
    assert ranks_in_words(ranks) == words


def test_a_verdict_of_seconds_reads_well() -> None:
    assert "has been 12 s late" in str(Verdict(0, "h", 12.2, None, 0.5, "", ""))


@pytest.mark.parametrize(
    ("worlds", "line"),
    [
        (1, "workers left or joined once, and training went on in a new world"),
        (3, "workers left or joined 3 times, and training went on in a new world each time"),
    ],
)
def test_the_summary_counts_the_worlds_of_an_elastic_job(worlds: int, line: str) -> None:
    past = [{"size": 3, "steps": 10, "bytes": 10}] * worlds
    assert summary({**job(ONE_IS_LATE), "past": past}, 62.0)[-1] == line


@pytest.mark.parametrize(
    ("size", "line"),
    [(5, "rank 4 has sent no status yet"), (8, "4 of 8 ranks have sent no status yet, such as rank 4")],
)
def test_ranks_without_a_status_are_named(size: int, line: str) -> None:
    assert line in screen.words(facts_of({**job(ONE_IS_LATE), "size": size}))


def test_a_rank_that_does_not_answer_is_said_with_its_process() -> None:
    newest = {"pid": 7, "host": "a", "stacks": {"number": 1, "threads": []}}
    found, silent = _answers({"size": 2, "ranks": {"0": {"newest": newest, "age_s": 9.0}}}, 2)
    assert found == {} and silent[1] == "has sent no status yet"
    assert silent[0].startswith("has not answered (pid 7 on a, last status 9 s ago): it is frozen or unreachable")


def test_the_view_explains_its_columns() -> None:
    text = screen.plain("1a2b3c", facts_of(job(ONE_IS_LATE)), 80, 20)
    assert screen.LEGEND.split() == " ".join(text.splitlines()[-2:]).split()
