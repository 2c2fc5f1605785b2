# SPDX-License-Identifier: Apache-2.0
"""A session for real ranks that no driver watches: whoever leaves a world enters the next one with the same ranks.

For what states and the wrapper do in real worlds. Who is where, and who holds what, the ranks ask each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import horovod.core as hvd
from horovod.core.exceptions import HorovodInternalError
from horovod.core.objects import allgather_object
from horovod.elastic.messages import NO_STATE, StateId, Worker, WorldRecord
from horovod.elastic.worker import session as sessions
from horovod.elastic.worker.decorator import run as elastic_run
from support.world import World


class SameRanks:
    """All ranks of a world of the tests; `log` has what each world was left for, and what was held then."""

    def __init__(self) -> None:
        self.is_done = False
        self.cuts = 0
        self.held: StateId = NO_STATE
        self.world: WorldRecord | None = None
        self.log: list[tuple[bool, StateId]] = []
        self.heard: Callable[[int, int], None] | None = None
        self.place = (hvd.rank(), hvd.size())
        self._enter()

    def _enter(self) -> WorldRecord:
        hvd.init()
        generation = self.world.generation + 1 if self.world else 1
        held = allgather_object(self.held, name="held")
        members = tuple(Worker(rank, "here", rank) for rank in range(hvd.size()))
        assert held[0] == max(held), "rank 0 is to have the newest state, in these tests"
        was_loss = bool(self.log) and not self.log[-1][0]
        sync = was_loss or len(set(held)) > 1 or NO_STATE in held
        base = held[0] if held[0] != NO_STATE else (generation, 0)
        self.world, self.cuts = WorldRecord(generation, members, sync, base, "a test"), 0
        return self.world

    def join(self, orderly: bool, why: str = "") -> WorldRecord:
        self.log.append((orderly, self.held))
        hvd.shutdown()
        return self._enter()

    def finish(self) -> bool:
        return True

    def raised(self, error: Exception) -> None:
        pass

    @contextlib.contextmanager
    def telling(self, heard: Callable[[int, int], None]) -> Iterator[None]:
        self.heard = heard
        try:
            yield
        finally:
            self.heard = None


@contextlib.contextmanager
def same_ranks() -> Iterator[SameRanks]:
    """This rank is in an elastic job while this is open."""
    hvd.init()
    session = SameRanks()
    sessions.begin(session)
    try:
        yield session
    finally:
        sessions.end()


def trained(
    state: Any, step: Callable[[int], None], numbers: Callable[[], Any], events: dict[int, str]
) -> tuple[Any, int, list[bool]]:
    """Runs in a rank: ten batches. `events`: by batch, before it a "loss", or after it an "update" of the hosts.

    Returns the numbers, how many batches count, and for each world but the last whether it was left in order.
    """

    @elastic_run
    def train(state: Any) -> None:
        while state.batch < 10:
            event = events.pop(state.batch, "")
            if event == "loss" and hvd.rank() == 1:
                raise HorovodInternalError("as if another rank had died")
            step(state.batch)
            state.batch += 1
            if event == "update":
                assert session.heard is not None
                session.heard(1, 2)
            state.commit() if state.batch % 2 else state.check_host_updates()

    with same_ranks() as session:
        train(state)
        hvd.barrier()
        return numbers(), state.batch, [entry[0] for entry in session.log]


def check_that_training_survives(world: World, run: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Losses and changes of the hosts leave no trace in what `run(*arguments, events)` returns, which is `trained`'s.
    Returns the numbers by rank."""
    plain = world.run(run, *arguments, {})
    disturbed = world.run(run, *arguments, {4: "loss", 6: "update", 7: "loss"})
    assert [outcome[2] for outcome in disturbed] == [[False, True, False]] * 2
    assert plain[0][:2] == disturbed[0][:2], "bit for bit"
    return [outcome[0] for outcome in plain + disturbed]
