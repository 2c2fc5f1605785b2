# SPDX-License-Identifier: Apache-2.0
"""Nine pretended hosts whose leaders form a tree: rank 0 speaks with relays 1, 4 and 7, and these with their groups.

What any job does works there as in a star.
"""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.failures.test_stall import let_go, stalled
from support.extent import SLACK_S, later
from support.patience import Patience, wait_until
from support.world import World, WorldPool, shut_down_alone

import horovod.core as hvd
from horovod.core import exceptions

HOSTS = 9
STEPS = 20
TREE = {"HOROVOD_TRANSPORT": "tcp", "HOROVOD_RELAYS_ABOVE_HOSTS": "2"}
DYNAMIC = {**TREE, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
STAR = {**DYNAMIC, "HOROVOD_RELAYS_ABOVE_HOSTS": str(HOSTS)}


def messages_of_steps() -> int:
    """That this rank's leader gets, and its records, in STEPS steps of one tensor whose name is known."""
    hvd.init()

    def step() -> None:
        assert hvd.allreduce(np.full(3, hvd.rank() + 1.0), name="gradient", op=hvd.Sum).tolist() == [45.0] * 3

    for _ in range(3):
        step()
    before = hvd.statistics()["control_messages"]
    for _ in range(STEPS):
        step()
    return int(hvd.statistics()["control_messages"] - before)


def test_rank_0_speaks_with_relays_alone(worlds: WorldPool) -> None:
    tree, star = (worlds(HOSTS, env).run(messages_of_steps) for env in (DYNAMIC, STAR))
    # One from each host that it speaks with, and one to it: of 3 or 8. On a slow machine, there are stall reports too.
    assert tree[0] < star[0] / 2, (tree, star)
    assert all(tree[relay] > tree[relay + 1] for relay in (1, 4, 7)), tree


def test_names_shapes_joins_and_sets_work_in_a_tree(worlds: WorldPool) -> None:
    def run() -> bool:
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        total = size * (size + 1) / 2
        order = random.Random(rank)

        def reduce(names: list[str], rows: int, process_set: Any = None) -> list[float]:
            order.shuffle(names)
            given = {} if process_set is None else {"process_set": process_set}
            handles = [hvd.allreduce_async(np.full(rows, rank + 1.0), name=name, op=hvd.Sum, **given) for name in names]
            return [float(hvd.synchronize(handle)[0]) for handle in handles]

        names = [f"gradient.{i}" for i in range(40)]
        for rows in (3, 3, 3, 5, 5):  # the fourth has another shape
            assert reduce(list(names), rows) == [total] * 40
        with pytest.raises(exceptions.MismatchError, match=r"rank 5: .*expected as on ranks 0, 1, 2, 3, 4, 6, 7, 8"):
            hvd.allreduce(np.ones(4 if rank == 5 else 3), name="mismatch")
        assert hvd.broadcast(np.full(2, float(rank)), root_rank=8, name="root").tolist() == [8.0, 8.0]
        assert hvd.allgather(np.full(1, float(rank))).tolist() == list(range(size))

        for members in ([2, 3, 5], [0, 8], [4, 5, 6]):
            some = hvd.add_process_set(members)
            if rank in members:
                for _ in range(3):
                    expected = float(sum(member + 1 for member in members))
                    assert reduce(["of a set", "gradient.0"], 3, some) == [expected] * 2
            assert reduce(["gradient.0"], 5) == [total]
            hvd.remove_process_set(some)

        for _ in range(rank % 3 + 1):  # ranks 0, 3 and 6 join first
            hvd.allreduce(np.ones(5), name="gradient.1", op=hvd.Sum)
        assert hvd.join() in (2, 5, 8)
        assert reduce(list(names), 5) == [total] * 40
        return True

    assert worlds(HOSTS, DYNAMIC).run(run) == [True] * HOSTS


def test_more_names_than_are_remembered_come_and_go_in_a_tree() -> None:
    def run() -> bool:
        hvd.init()
        for step in range(60):
            name = f"name.{step % 25}"
            assert hvd.allreduce(np.full(2, 1.0 + step), name=name, op=hvd.Sum)[0] == HOSTS * (1.0 + step)
        hvd.barrier()
        return True

    with World(HOSTS, {**TREE, "HOROVOD_CACHE_CAPACITY": "8"}) as world:
        assert world.run(run) == [True] * HOSTS


def reduce_for_ever(folder: str) -> None:
    hvd.init()
    for step in range(10**9):
        hvd.allreduce(np.ones(3, np.float32), name="small")
        if step == 5:
            Path(folder, str(hvd.rank())).touch()


def wait_until_all_go(world: World, folder: Path) -> None:
    wait_until(lambda: len(list(folder.iterdir())) == HOSTS, world.stacks)


@pytest.mark.parametrize("rank", [4, 5, later(0), later(1), later(8)])
def test_a_killed_rank_is_named_by_all_others(rank: int, tmp_path: Path) -> None:
    with World(HOSTS, TREE) as world:
        call = world.start(reduce_for_ever, str(tmp_path))
        wait_until_all_go(world, tmp_path)
        world.kill(rank)
        killed = time.monotonic()
        outcomes = call.outcomes()
        assert time.monotonic() - killed < 3.0 + SLACK_S
        errors: list[Any] = [outcome.error for other, outcome in enumerate(outcomes) if other != rank]
        assert {type(error).__name__ for error in errors} == {"RankLostError"}, world.describe(outcomes)
        assert {error.failed_rank for error in errors} == {rank}, world.describe(outcomes)
        world.end()


@pytest.mark.parametrize("rank", [4, later(0), later(5)])
def test_a_rank_that_shuts_down_while_others_wait_is_named(rank: int) -> None:
    with World(HOSTS, TREE) as world:
        started = time.monotonic()
        texts = world.run(shut_down_alone, rank)
        assert time.monotonic() - started < 8 + SLACK_S
        for other, text in enumerate(texts):
            assert other == rank or (text.startswith("RankLeftError") and f"rank {rank}" in text), texts


SCRIPT = """
import os
import numpy as np
import horovod.core as hvd
hvd.init()
for _ in range(3):
    hvd.allreduce(np.ones(3), name="x")
if hvd.rank() in (4, 5, 8):
    os.read(os.open(f"go{hvd.rank()}", os.O_RDONLY), 1)
hvd.allreduce(np.ones(3), name="x")
print("done", flush=True)
"""


@pytest.mark.slow("a tree of many ranks")
def test_a_stall_report_names_the_missing_ranks_of_groups(tmp_path: Path) -> None:
    env = {**TREE, "HOROVOD_PRETEND_HOSTS": ",".join(["1"] * HOSTS)}
    with stalled(tmp_path, HOSTS, SCRIPT, 1, "go4", "go5", "go8", **env) as job:
        (match,) = job.wait_for_line(r"horovod: warning: stall: (.*)", "stderr")
        expected = r"ranks 0, 1, 2, 3, 6, 7 waited \d+\.\d s for `allreduce\.x`: missing ranks 4, 5, 8, which did not"
        assert re.match(expected, match[1]), match[1]
        job.wait_for_line(r"  rank 5 (stands at|has not said)", "stderr")  # it may be too busy to say
        for rank in (4, 5, 8):
            let_go(tmp_path, f"go{rank}")
        job.wait_for_line("done", count=HOSTS)
        done = job.wait()
    assert done.code == 0, done.stderr


# Its relay alone hears its signs of life.
def test_a_stopped_rank_behind_a_relay_is_lost(tmp_path: Path) -> None:
    with World(HOSTS, {**TREE, "HOROVOD_LOST_TIMEOUT_SECONDS": "2"}) as world:
        call = world.start(reduce_for_ever, str(tmp_path))
        wait_until_all_go(world, tmp_path)
        world.kill(5, signal.SIGSTOP)
        for other in range(HOSTS):
            assert other == 5 or Patience().ask(world.connections[other].poll), world.stacks()
        world.kill(5)
        errors: list[Any] = [outcome.error for other, outcome in enumerate(call.outcomes()) if other != 5]
        assert {error.failed_rank for error in errors} == {5}, errors
        world.end()
