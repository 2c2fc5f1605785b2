# SPDX-License-Identifier: Apache-2.0
"""Process sets that only their members ask for, as torch.distributed makes groups. All ranks of a world add a set.

So each rank has a thread that adds the sets for all, in one order: the ranks write their requests into the rendezvous,
where each gets the next free number. All members of a set ask for it under one name; the first one's request counts.
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

__all__ = ["AskedSets", "asked_sets"]

_LOOK_S = 3600.0  # one question to the rendezvous


class AskedSets:
    """The sets of one generation, and the thread that adds them; it ends with the generation."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._changed = threading.Condition()
        self._added: dict[str, tuple[ProcessSet, bool]] = {}  # by name: whether the set was there before
        self._failed: Exception | None = None
        self._prefix = f"asked-sets/{context.world.generation}"
        if context.world.rendezvous is not None:
            threading.Thread(target=self._add_all, name="horovod-asked-sets", daemon=True).start()

    def ask(self, name: str, ranks: Sequence[int], timeout_s: float) -> tuple[ProcessSet, bool]:
        """The set of these ranks, and whether it was there before. Blocks until all ranks have it.

        `name`: equal on all members, and never used before in this generation.
        """
        request = {"name": name, "ranks": list(ranks)}
        if self._context.world.rendezvous is None:
            return global_process_set, True  # alone: there is one set
        for number in itertools.count():
            winner = self._rendezvous.compare_and_set(f"{self._prefix}/{number}", request)
            if winner["name"] == name:
                break
        with self._changed:
            ended = self._changed.wait_for(lambda: name in self._added or self._failed is not None, timeout_s)
            if name in self._added:
                return self._added[name]
        failed = self._failed if ended else None
        raise HorovodInternalError(
            f"rank {self._context.rank}: the process set of ranks {list(ranks)} could not be added: "
            + (
                str(failed)
                if failed is not None
                else f"not all ranks were ready for it in {timeout_s:g} s\nhint: one of them has ended, or is late"
            )
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
                self._add(str(request["name"]), list(request["ranks"]))
        except (ChannelError, RankGone, HorovodInternalError, InvalidRequestError) as error:
            with self._changed:  # also at the end of the generation, when no member waits
                self._failed = error
                self._changed.notify_all()

    def _add(self, name: str, ranks: list[int]) -> None:
        known = global_process_set if len(ranks) == self._context.size else set_of_ranks(ranks)
        shared = known.process_set_id is not None
        if not shared:
            register_set(self._context, known)
        with self._changed:
            self._added[name] = known, shared
            self._changed.notify_all()


_of_generation: list[tuple[Context, AskedSets]] = []
_lock = threading.Lock()


def asked_sets(context: Context) -> AskedSets:
    """The sets of a generation. All its ranks must call this before a set is asked for."""
    with _lock:
        for known, sets in _of_generation:
            if known is context:
                return sets
        sets = AskedSets(context)
        _of_generation[:] = [(context, sets)]  # those of a generation that has ended are gone
        return sets
