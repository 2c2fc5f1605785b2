# SPDX-License-Identifier: Apache-2.0
"""The contract, process sets: how they are made and removed, what they say of themselves, and what is refused."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import frameworks
from support.frameworks import loaded
from support.world import WorldPool

WORLDS = [(3, "shm"), (4, "tcp"), (4, "2+2"), (4, "3+1")]


def ones(framework: Any, *shape: int) -> Any:
    return framework.tensor(np.ones(shape, np.float32))


def dynamic(transport: str) -> dict[str, str]:
    return {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def total(framework: Any, tensor: Any) -> float:
    return float(framework.array(tensor).sum())


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_a_set_knows_its_members(worlds: WorldPool, framework: str, size: int, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        world = hvd.global_process_set
        assert (world.process_set_id, world.size(), world.rank()) == (0, hvd.size(), hvd.rank())
        assert world.ranks == list(range(hvd.size())) and world.included()
        pair = hvd.ProcessSet([2, 1])
        assert (pair.process_set_id, pair.size(), pair.rank()) == (None, None, None)
        assert hvd.add_process_set(pair) is pair
        other = hvd.add_process_set([0, 2])
        number = pair.process_set_id
        assert number not in (None, other.process_set_id)
        assert pair.ranks == [1, 2] and pair.size() == 2 and pair.included() == (hvd.rank() in (1, 2))
        assert str(pair) == f"ProcessSet(process_set_id={number}, ranks=[1, 2], mpi_comm=None)"
        if pair.included():
            assert pair.rank() == hvd.rank() - 1
            assert total(framework, hvd.allreduce(ones(framework, 2), op=hvd.Sum, process_set=pair)) == 4
            hvd.barrier(process_set=pair)
        else:
            with pytest.raises(ValueError, match=rf"rank {hvd.rank()} is not in"):
                pair.rank()
        assert hvd.remove_process_set(pair) is True
        assert (pair.process_set_id, pair.size()) == (None, None)
        assert hvd.remove_process_set(pair) is False
        assert hvd.remove_process_set(world) is False
        assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
        again = hvd.add_process_set(hvd.ProcessSet([hvd.size() - 1]))
        # A compiled function may hold the number of a set that is removed: it must not reach other ranks.
        assert again.process_set_id not in (number, other.process_set_id)
        assert hvd.add_process_set(pair).process_set_id == number and hvd.remove_process_set(pair)
        if again.included():
            assert total(framework, hvd.allreduce(ones(framework, 2), process_set=again)) == 2
        assert hvd.remove_process_set(other) and hvd.remove_process_set(again)
        return True

    assert worlds(size, dynamic(transport)).run(loaded(run), framework) == [True] * size


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_overlapping_sets_in_flight_at_once(worlds: WorldPool, framework: str, size: int, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        rank, size = hvd.rank(), hvd.size()
        sets = [hvd.add_process_set([r, (r + 1) % size]) for r in range(size)]  # a circle
        sets.append(hvd.global_process_set)
        random = np.random.default_rng(rank)
        for step in range(20):
            calls = [(s, i) for s in range(len(sets)) if sets[s].included() for i in range(3)]
            random.shuffle(calls)
            handles = {}
            for s, i in calls:
                tensor = framework.tensor(np.full(1 + 1000 * i, rank + step, np.float32))
                handles[s, i] = hvd.allreduce_async(tensor, name=f"t{i}", op=hvd.Sum, process_set=sets[s])
            random.shuffle(calls)
            for s, i in calls:
                seen = framework.array(hvd.synchronize(handles[s, i]))
                assert np.all(seen == sum(sets[s].ranks) + step * len(sets[s].ranks)), (s, i, step)
        for process_set in sets[:-1]:
            assert hvd.remove_process_set(process_set)
        return True

    assert worlds(size, dynamic(transport)).run(loaded(run), framework) == [True] * size


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_objects_travel_in_a_set(worlds: WorldPool, framework: str, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        rank = hvd.rank()
        pair = hvd.add_process_set([0, 2])
        if pair.included():
            assert hvd.broadcast_object({"rank": rank}, root_rank=2, process_set=pair) == {"rank": 2}
            assert hvd.allgather_object([rank] * rank, process_set=pair) == [[], [2, 2]]
        assert hvd.allgather_object(rank) == [0, 1, 2]
        return hvd.remove_process_set(pair)

    assert worlds(3, dynamic(transport)).run(loaded(run), framework) == [True] * 3


# name: (what every rank calls; members of the set are ranks 0 and 2), exception, text
REFUSED: dict[str, tuple[Callable[[Any, Any, Any], Any], type[Exception], str]] = {
    "twice": (lambda hvd, f, s: hvd.add_process_set([2, 0]), ValueError, r"process set \d has these ranks already"),
    "object twice": (lambda hvd, f, s: hvd.add_process_set(s), ValueError, "is registered already"),
    "all": (lambda hvd, f, s: hvd.add_process_set([]), ValueError, "process set 0 has these ranks already"),
    "outside": (lambda hvd, f, s: hvd.add_process_set([0, 99]), ValueError, "expected ranks from 0 to 2"),
    "negative": (lambda hvd, f, s: hvd.add_process_set([-1]), ValueError, "expected ranks from 0 to 2"),
    "repeated": (lambda hvd, f, s: hvd.add_process_set([1, 1]), ValueError, "each rank once"),
    "text": (lambda hvd, f, s: hvd.add_process_set(["one"]), ValueError, "expected ints, got"),
    "no list": (lambda hvd, f, s: hvd.add_process_set(1), TypeError, "expected a list, got 1"),
    "list removed": (lambda hvd, f, s: hvd.remove_process_set([0, 2]), ValueError, "expected a ProcessSet, got"),
    "ranks": (
        lambda hvd, f, s: hvd.barrier(process_set=[0, 2]),
        ValueError,
        r"process_set: expected a ProcessSet, got \[0, 2\]\nhint: hvd.add_process_set\(\[0, 2\]\) makes one",
    ),
    "objects": (
        lambda hvd, f, s: hvd.allgather_object(1, name="objects", process_set=[0, 2]),
        ValueError,
        r"process_set: expected a ProcessSet, got \[0, 2\]",
    ),
    "unregistered": (
        lambda hvd, f, s: hvd.allreduce(ones(f, 2), process_set=hvd.ProcessSet([0, 2])),
        ValueError,
        "is not registered",
    ),
    "number": (lambda hvd, f, s: hvd.allreduce(ones(f, 2), process_set=1), ValueError, "expected a ProcessSet, got 1"),
    "root": (
        lambda hvd, f, s: hvd.broadcast(ones(f, 2), 1, process_set=s if s.included() else None),
        ValueError,
        r"root_rank=1: expected one of the ranks \[0, 2\]",
    ),
    "splits": (
        lambda hvd, f, s: hvd.alltoall(ones(f, 3), [1, 1, 1], process_set=s),
        ValueError,
        "one split for each of 2 members, got 3|is not in ProcessSet",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_is_refused_on_all_ranks(worlds: WorldPool, framework: str, transport: str, case: str) -> None:
    call, kind, pattern = REFUSED[case]

    def run(framework: Any, hvd: Any) -> str:
        pair = hvd.add_process_set([0, 2])
        text = pattern
        if case != "root" or pair.included():
            with pytest.raises((kind, *framework.wrong_here)) as caught:
                call(hvd, framework, pair)
            text = str(caught.value)
        assert total(framework, hvd.allreduce(ones(framework, 1), op=hvd.Sum)) == 3
        if pair.included():
            assert total(framework, hvd.allreduce(ones(framework, 1), op=hvd.Sum, process_set=pair)) == 2
        assert hvd.remove_process_set(pair)
        return text

    for text in worlds(3, dynamic(transport)).run(loaded(run), framework):
        assert text == pattern or re.search(pattern, text), text


def test_a_rank_that_is_no_member_is_refused_alone(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        pair = hvd.add_process_set([0, 2])
        calls: list[Callable[[], Any]] = [
            lambda: hvd.allreduce(ones(framework, 2), name="x", process_set=pair),
            lambda: hvd.grouped_allreduce([ones(framework, 2)], name="x", process_set=pair),
            lambda: hvd.allgather(ones(framework, 2), name="x", process_set=pair),
            lambda: hvd.broadcast(ones(framework, 2), 0, name="x", process_set=pair),
            lambda: hvd.alltoall(ones(framework, 2), name="x", process_set=pair),
            lambda: hvd.reducescatter(ones(framework, 2), name="x", process_set=pair),
            lambda: hvd.barrier(process_set=pair),
        ]
        for call in calls:
            if pair.included():
                call()
            else:
                with pytest.raises(ValueError, match="rank 1 is not in ProcessSet"):
                    call()
        # Nothing of it has stayed under those names.
        assert total(framework, hvd.allreduce(ones(framework, 1), name="x", op=hvd.Sum)) == 3
        return hvd.remove_process_set(pair)

    assert worlds(3, dynamic("shm")).run(loaded(run), framework) == [True] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_errors_in_a_set_reach_its_members(worlds: WorldPool, framework: str, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        pair = hvd.add_process_set([1, 2])
        texts = []
        if pair.included():
            for _ in range(2):
                with pytest.raises(hvd.HorovodInternalError) as caught:
                    hvd.allreduce(ones(framework, hvd.rank()), name="shape", process_set=pair)
                texts.append(str(caught.value))
                right = hvd.allreduce(ones(framework, 1), name="shape", op=hvd.Sum, process_set=pair)
                assert total(framework, right) == 2
            with pytest.raises(ValueError if hvd.rank() == 2 else hvd.HorovodInternalError) as caught:
                hvd.allreduce(ones(framework, 2), name="op", op=17 if hvd.rank() == 2 else hvd.Sum, process_set=pair)
            texts.append(str(caught.value))
        assert total(framework, hvd.allreduce(ones(framework, 1), name="op", op=hvd.Sum)) == 3
        assert hvd.remove_process_set(pair)
        return texts

    outcomes = worlds(3, dynamic(transport)).run(loaded(run), framework)
    assert outcomes[0] == [] and outcomes[1][:2] == outcomes[2][:2]
    for text in outcomes[1][:2]:
        assert re.search(r"`allreduce.shape` of process set \d.*rank 2.*expected shape \[1\], got \[2\]", text), text
    assert "rank 2 could not call `allreduce.op` of process set" in outcomes[1][2] and "op=17" in outcomes[2][2]


def test_ranks_that_disagree_about_a_set_are_told(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        texts = []
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.add_process_set([0, 1] if hvd.rank() == 1 else [0, 2])
        texts.append(str(caught.value))
        with pytest.raises(ValueError if hvd.rank() == 1 else hvd.HorovodInternalError) as caught:
            hvd.add_process_set([0, 7] if hvd.rank() == 1 else [0, 2])
        texts.append(str(caught.value))
        pair, other = hvd.add_process_set([0, 2]), hvd.add_process_set([0, 1])
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.remove_process_set(pair if hvd.rank() == 0 else other)
        texts.append(str(caught.value))
        if hvd.rank() == 2:
            handle = hvd.allreduce_async(ones(framework, 1), name="late", op=hvd.Sum, process_set=pair)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.remove_process_set(pair)
        texts.append(str(caught.value))
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(ones(framework, 1), name="late", op=hvd.Sum, process_set=pair)
        if pair.included():
            assert total(framework, hvd.synchronize(handle)) == 2
        assert hvd.remove_process_set(pair) and hvd.remove_process_set(other)
        return texts

    for texts in worlds(3, dynamic("shm")).run(loaded(run), framework):
        assert "ranks of the set" in texts[0] and "rank 1" in texts[0]
        assert "rank 1" in texts[1] and "expected ranks from 0 to 2" in texts[1]
        assert "process set" in texts[2] and "rank 0" in texts[2]
        assert "cannot be removed while `allreduce.late` is in flight in it on rank 2" in texts[3]


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_sets_given_to_init(worlds: WorldPool, framework: str, size: int, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 2])]
        for _ in range(2):
            hvd.shutdown()
            assert [process_set.process_set_id for process_set in sets] == [None, None]
            hvd.init(process_sets=sets)
            assert [process_set.process_set_id for process_set in sets] == [1, 2]
            for process_set in sets:
                if process_set.included():
                    seen = hvd.allreduce(ones(framework, 1), op=hvd.Sum, process_set=process_set)
                    assert total(framework, seen) == 2
            with pytest.raises(ValueError, match="the process sets of this job are fixed"):
                hvd.add_process_set([0])
            with pytest.raises(ValueError, match="the process sets of this job are fixed"):
                hvd.remove_process_set(sets[0])
            hvd.barrier()
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        assert hvd.add_process_set([0]).process_set_id == 1
        for wrong, pattern in [
            ([hvd.ProcessSet([0, 99])], "expected ranks from 0 to"),
            ([hvd.ProcessSet([0]), hvd.ProcessSet([0])], "process set 1 has these ranks already"),
            ([hvd.ProcessSet([])], "process set 0 has these ranks already"),
            ([hvd.ProcessSet([hvd.rank() // 2])], "disagree about the process sets given to init"),
            ([[0, 1]], "expected a list of ProcessSet"),
            ("static", "expected a list of ProcessSet"),
        ]:
            hvd.shutdown()
            with pytest.raises(ValueError, match=pattern):
                hvd.init(process_sets=wrong)
            assert not hvd.is_initialized()
        hvd.init()
        assert total(framework, hvd.allreduce(ones(framework, 1), op=hvd.Sum)) == hvd.size()
        return True

    assert worlds(size, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework) == [True] * size


@pytest.mark.thorough
def test_a_set_of_followers_does_not_wait_until_their_leaders_look_around(worlds: WorldPool) -> None:
    """A leader that sleeps wakes for its followers at once, although it has no part in their set."""

    def run() -> float:
        hvd = frameworks.load("core").hvd
        followers = hvd.add_process_set([1, 3])
        times = []
        for _ in range(21):
            if followers.included():
                begin = time.monotonic()
                hvd.allreduce(np.ones(5, np.float32), name="a", process_set=followers)
                times.append(time.monotonic() - begin)
        hvd.barrier()
        hvd.remove_process_set(followers)
        return sorted(times)[3] if times else 0.0  # a machine that is busy delays most of them, but not all

    fast_s = max(worlds(4, dynamic("2+2")).run(run))
    assert fast_s < 0.05, fast_s  # until the next look around it is 100 ms, in every one
