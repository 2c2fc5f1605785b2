# SPDX-License-Identifier: Apache-2.0
"""Which generation this is, and where a rank is in it, is the rendezvous' word."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import numpy as np
from support.patience import wait_until
from support.world import World

import horovod.core as hvd
from horovod.core import context
from horovod.launcher.options.hosts import Host, assign_ranks


def generation() -> list[Any]:
    """Starts and ends one: rank, size, local and cross rank, hosts, number, a sum."""
    hvd.init()
    world = context.current().world
    facts = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_rank(), world.host_of_rank, world.generation]
    total = hvd.allreduce(np.full(3, 1.0 + hvd.rank()), op=hvd.Sum, name="x")[0]
    hvd.shutdown()
    return [*facts, total]


def test_the_launchers_word_about_a_place_stands_over_the_environment() -> None:
    with World(2) as world:
        assert world.run(generation) == [[rank, 2, rank, 0, [0, 0], 0, 3.0] for rank in range(2)]
        apart = assign_ranks([Host("here", 1), Host("there", 1)], 2)
        world.rendezvous.assign([dataclasses.asdict(place) for place in apart])
        assert world.run(generation) == [[rank, 2, 0, rank, [0, 1], 1, 3.0] for rank in range(2)]


def test_a_rank_has_one_connection_to_the_rendezvous_in_its_start_and_after_it() -> None:
    counts: list[int] = []
    with World(2) as world:
        answer = world.rendezvous.ask

        def ask(request: Any, now_s: float, reply: Any) -> Any:
            counts.append(len(world.rendezvous._connections))
            return answer(request, now_s, reply)

        world.rendezvous.ask = ask  # type: ignore[method-assign]
        world.run(generation)
    assert max(counts) == 2, "a rank has a second connection"
    assert len(counts) <= 2 * 8  # requests of two ranks


def test_the_launchers_end_ends_a_start_wherever_its_ranks_wait() -> None:
    def start() -> None:
        if os.environ["HOROVOD_RANK"] != "2":
            hvd.init()

    with World(3, {"HOROVOD_START_TIMEOUT": "1000"}) as world:  # as for a rank that may come
        call = world.start(start)
        # Rank 1 waits for its host's leader, in vain.
        wait_until(lambda: world.rendezvous.get("world/0/member/localhost/1") is not None)
        world.rendezvous.close()
        for rank, outcome in enumerate(call.outcomes()[:2]):
            text = str(outcome.error)
            assert f"rank {rank} could not join the job: the rendezvous at 127.0.0.1:" in text, text
            # Reset: if the launcher had not read the rank's last request yet.
            assert re.search("closed the connection|reset by peer", text), text
