# SPDX-License-Identifier: Apache-2.0
"""The contract, uneven data: join and uneven_data, and what the other ranks can do while a rank has joined."""

from __future__ import annotations

import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import loaded
from support.world import WorldPool

WORLDS = [(1, "auto"), (2, "shm"), (2, "tcp"), (3, "shm"), (4, "tcp"), (4, "2+2"), (4, "3+1")]


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_every_allreduce_gets_zeros_from_who_has_joined(
    worlds: WorldPool, framework: str, size: int, transport: str
) -> None:
    def run(framework: Any, hvd: Any) -> list[Any]:
        rank, size = hvd.rank(), hvd.size()

        def ones(*shape: int) -> Any:
            return framework.tensor(np.full(shape, rank + 1.0, np.float32))

        def first(tensor: Any) -> float:
            return float(framework.array(tensor).reshape(-1)[0])

        seen = []
        for step in range(2 * rank + 1):  # rank 0 has one step, the last rank most
            left = range(-(-step // 2), size)
            total = float(sum(r + 1 for r in left))
            nobody_lacks = len(left) == size
            seen += [
                first(hvd.allreduce(ones(3), name="sum", op=hvd.Sum)) == total,
                abs(first(hvd.allreduce(ones(3), name="average")) - total / size) < 1e-6,
                first(hvd.allreduce(ones(3), name="min", op=hvd.Min)) == (1.0 if nobody_lacks else 0.0),
                first(hvd.allreduce(ones(3), name="max", op=hvd.Max)) == size,
                first(hvd.allreduce(ones(1), op=hvd.Sum)) == total,
                first(hvd.allreduce(ones(70001), name=f"new.{step}", op=hvd.Sum, prescale_factor=2.0)) == 2 * total,
                [first(t) for t in hvd.grouped_allreduce([ones(2), ones(5), ones(0)], op=hvd.Sum)[:2]] == [total] * 2,
            ]
            if "async" in framework.forms:
                handle = hvd.allreduce_async(ones(4), name="async", op=hvd.Sum)
                seen.append(first(hvd.synchronize(handle)) == total)
            if "in_place" in framework.forms:
                seen.append(first(hvd.allreduce_(ones(3), name="in place", op=hvd.Sum)) == total)
        last = hvd.join()
        # All count alike again, with and without names.
        seen += [first(hvd.allreduce(ones(2), name=name, op=hvd.Max)) == size for name in ("sum", None, None)]
        return [last, all(seen), type(last)]

    assert worlds(size, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework) == [[size - 1, True, int]] * size


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), (3, "2+1")])
def test_what_needs_every_rank_fails_on_those_who_call_it(
    worlds: WorldPool, framework: str, size: int, transport: str
) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        tensor = framework.tensor(np.ones((4 * hvd.size(), 2), np.float32))
        calls = {
            "allgather": lambda: hvd.allgather(tensor, name="x"),
            "grouped_allgather": lambda: hvd.grouped_allgather([tensor], name="x"),
            "broadcast": lambda: hvd.broadcast(tensor, 0, name="x"),
            "alltoall": lambda: hvd.alltoall(tensor, name="x"),
            "reducescatter": lambda: hvd.reducescatter(tensor, name="x"),
            "barrier": hvd.barrier,
            "broadcast_object": lambda: hvd.broadcast_object("x", 0),
            "allgather_object": lambda: hvd.allgather_object("x"),
            "add_process_set": lambda: hvd.add_process_set([0]),
        }
        texts = []
        for repeated in (False, True):
            for name, call in calls.items():
                if repeated and name != "add_process_set":
                    call()  # over the fast way, next time
                if hvd.rank() != hvd.size() - 1:
                    with pytest.raises(hvd.HorovodInternalError) as raised:
                        call()
                    texts.append(str(raised.value))
                    total = framework.array(hvd.allreduce(tensor, name="y", op=hvd.Sum))
                    assert total[0, 0] == hvd.size() - 1  # the job lives on
                assert hvd.join() >= 0
        return texts

    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    *seen, of_joined = worlds(size, env).run(loaded(run), framework)
    assert of_joined == []
    for texts in seen:
        assert len(texts) == 18
        for text in texts:
            assert f"rank {size - 1} has joined and gives no data" in text and "hint:" in text, text
            assert "\nmore: horovodrun --explain joined" in text, text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sets_follow_the_same_rule(worlds: WorldPool, framework: str, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> list[float]:
        pair, others = hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])
        one = framework.tensor(np.ones(2, np.float32))
        seen = []
        if hvd.rank() == 0:
            seen.append(framework.array(hvd.allreduce(one, op=hvd.Sum, process_set=pair))[0])
            with pytest.raises(hvd.HorovodInternalError, match="rank 1 has joined"):
                hvd.allgather(one, process_set=pair)
        if hvd.rank() != 1:  # a set that the rank is not in
            seen.append(framework.array(hvd.allreduce(one, op=hvd.Sum, process_set=others))[0])
            seen.append(framework.array(hvd.allgather(one, process_set=others)).size)
        hvd.join()
        seen.append(framework.array(hvd.allgather(one)).size)
        assert hvd.remove_process_set(pair) and hvd.remove_process_set(others)
        return [float(value) for value in seen]

    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert worlds(3, env).run(loaded(run), framework) == [[1.0, 2.0, 4.0, 6.0], [6.0], [2.0, 4.0, 6.0]]


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (3, "shm"), (3, "tcp"), (3, "2+1")])
def test_uneven_data_is_a_block_that_joins_at_its_end(
    worlds: WorldPool, framework: str, size: int, transport: str
) -> None:
    def run(framework: Any, hvd: Any) -> list[Any]:
        seen: list[Any] = []
        for _ in range(3):
            with hvd.uneven_data() as data:
                assert data.last_rank is None
                for _ in range(3 * (hvd.size() - hvd.rank())):
                    hvd.allreduce(framework.tensor(np.ones(3, np.float32)), name="gradient")
            seen.append(data.last_rank)
        try:
            with hvd.uneven_data() as data:
                raise ValueError("left by an error")
        except ValueError:
            seen.append(data.last_rank)
        return seen

    assert worlds(size, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework) == [[0, 0, 0, None]] * size


def test_join_before_init_and_while_joined_are_errors(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        texts = []
        if hvd.rank() == 0:
            last: list[int] = []
            thread = threading.Thread(target=lambda: last.append(hvd.join(device="cpu")))
            thread.start()
            one = framework.tensor(np.ones(1, np.float32))
            while not texts:
                try:
                    hvd.allreduce(one, name="until joined", op=hvd.Sum)
                except ValueError as error:
                    texts.append(str(error))
            with pytest.raises(ValueError) as raised:
                hvd.join()
            texts.append(str(raised.value))
            hvd_peer_may_join.touch()
            thread.join()
            assert last == [1]
        else:
            one = framework.tensor(np.ones(1, np.float32))
            while not hvd_peer_may_join.exists():
                hvd.allreduce(one, name="until joined", op=hvd.Sum)
            assert hvd.join() == 1
        return texts

    with tempfile.TemporaryDirectory() as folder:
        hvd_peer_may_join = Path(folder) / "go"
        first, _ = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework)
    assert len(first) == 2 and all(re.search("rank 0.*has joined", text, re.DOTALL) for text in first), first
