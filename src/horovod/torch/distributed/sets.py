# SPDX-License-Identifier: Apache-2.0
"""Groups as process sets. Only the members of a group ask for it, but all ranks of a world add a process set.

So each rank has a thread that adds the sets for all, in one order: the ranks write their requests into the rendezvous,
where each gets the next free number. All members of a group ask for it under one name; the first one's request counts.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from horovod.core.context import Context
from horovod.core.exceptions import HorovodInternalError, InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set, register_set, set_of_ranks
from horovod.world.channel import ChannelError
from horovod.world.rendezvous import RankGone, Rendezvous

__all__ = ["GroupSets", "sets_of"]

_LOOK_S = 3600.0  # one question to the rendezvous


class GroupSets:
    """The sets of one generation, and the thread that adds them; it ends with the generation."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._changed = threading.Condition()
        self._added: dict[str, tuple[ProcessSet, bool]] = {}  # by group: whether it shares the set with another
        self._failed: Exception | None = None
        self._prefix = f"torch-groups/{context.world.generation}"
        if context.world.rendezvous is not None:
            threading.Thread(target=self._add_all, name="horovod-torch-groups", daemon=True).start()

    def of(self, group: str, ranks: Sequence[int], timeout_s: float) -> tuple[ProcessSet, bool]:
        """The set of these ranks, and whether another group has it, too. Blocks until all ranks have it.

        `group`: equal on all members, and never used before in this generation.
        """
        request = {"group": group, "ranks": list(ranks)}
        if self._context.world.rendezvous is None:
            return global_process_set, True  # alone: there is one set
        for number in itertools.count():
            winner = self._rendezvous.compare_and_set(f"{self._prefix}/{number}", request)
            if winner["group"] == group:
                break
        with self._changed:
            ended = self._changed.wait_for(lambda: group in self._added or self._failed is not None, timeout_s)
            if group in self._added:
                return self._added[group]
        failed = self._failed if ended else None
        raise HorovodInternalError(
            f"rank {self._context.rank}: the process group {group!r} of ranks {list(ranks)} could not be made: "
            + (str(failed) if failed is not None else f"not all ranks were ready for it in {timeout_s:g} s")
        )

    @property
    def _rendezvous(self) -> Rendezvous:
        rendezvous = self._context.world.rendezvous
        assert rendezvous is not None
        return rendezvous

    def _add_all(self) -> None:
        try:
            for number in itertools.count():
                key = f"{self._prefix}/{number}"
                request: Any = None
                while request is None:
                    request = self._rendezvous.get(key, _LOOK_S)
                self._add(str(request["group"]), list(request["ranks"]))
        except (ChannelError, RankGone, HorovodInternalError, InvalidRequestError) as error:
            with self._changed:  # also at the end of the generation, when no member waits
                self._failed = error
                self._changed.notify_all()

    def _add(self, group: str, ranks: list[int]) -> None:
        known = global_process_set if len(ranks) == self._context.size else set_of_ranks(ranks)
        shared = known.process_set_id is not None
        if not shared:
            register_set(self._context, known)
        with self._changed:
            self._added[group] = known, shared
            self._changed.notify_all()


_of_generation: list[tuple[Context, GroupSets]] = []
_lock = threading.Lock()


def sets_of(context: Context) -> GroupSets:
    """The sets of a generation. All its ranks must call this before a group is made."""
    with _lock:
        for known, sets in _of_generation:
            if known is context:
                return sets
        sets = GroupSets(context)
        _of_generation[:] = [(context, sets)]  # those of a generation that has ended are gone
        return sets
