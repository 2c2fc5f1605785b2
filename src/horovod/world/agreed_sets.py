# SPDX-License-Identifier: Apache-2.0
"""The process sets given to init: on which the ranks agree, or what they disagree about. Pure.

All ranks list the same sets. Only communicators of mpi4py may differ: `Split` gives each rank that of its own group,
and no rank knows the others. Then each of these groups is a set, for all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from horovod.core.exceptions import StartError
from horovod.world.topology import ranks_text

__all__ = ["GivenSet", "Places", "agreed", "check_places", "recorded"]

# The agreement of the ranks: for each place of their lists the sets, of which each rank has given one.
Places = list[list[list[int]]]


@dataclasses.dataclass(frozen=True)
class GivenSet:
    """A set as one rank has given it. `by_comm`: these are the members of a communicator; none: MPI.COMM_NULL."""

    ranks: list[int]
    by_comm: bool = False


def recorded(sets: Sequence[GivenSet]) -> list[Any]:
    """A rank's sets for its record (meeting.py)."""
    return [[one.ranks, one.by_comm] for one in sets]


def agreed(given: Sequence[tuple[Any, Sequence[int]]]) -> Places:
    """From the records of sets and the ranks that have given each. Raises StartError if they do not agree."""
    lists = [(_read(record), ranks) for record, ranks in given]
    places: Places = []
    if len({len(sets) for sets, _ in lists}) == 1:
        for of_place in zip(*(sets for sets, _ in lists), strict=True):
            groups = sorted({tuple(one.ranks) for one in of_place if one.ranks or not one.by_comm})
            if len(groups) > 1 and not _is_split(of_place, [ranks for _, ranks in lists], groups):
                break
            places.append([list(group) for group in groups])
        else:
            return places
    ranks_of_text: dict[str, list[int]] = {}
    for sets, ranks in lists:
        ranks_of_text.setdefault(str([one.ranks for one in sets]), []).extend(ranks)
    got = ", ".join(f"{text} on {ranks_text(sorted(ranks))}" for text, ranks in ranks_of_text.items())
    raise StartError(
        f"the ranks disagree about the process sets given to init: {got}\n"
        "hint: every rank must list all sets, the same ones in the same order, also those in which it is not; only "
        "communicators of mpi4py may be those of each rank's own group, as Split makes them",
        "start-settings",
    )


def check_places(places: Any) -> Places:
    """Checks sets that another rank says are agreed. Raises StartError for anything else."""
    if not _is_list(places, lambda groups: _is_list(groups, lambda ranks: _is_list(ranks, _is_rank))):
        raise StartError("the first host's leader published process sets that cannot be read", "start-version")
    checked: Places = places
    return checked


def _is_split(sets: Sequence[GivenSet], givers: Sequence[Sequence[int]], groups: Sequence[tuple[int, ...]]) -> bool:
    members = [rank for group in groups for rank in group]
    own = zip(sets, givers, strict=True)
    are_own = all(one.by_comm and (not one.ranks or set(ranks) <= set(one.ranks)) for one, ranks in own)
    return are_own and len(members) == len(set(members))


def _read(record: Any) -> list[GivenSet]:
    if not _is_list(record, _is_given):
        raise StartError("a rank published process sets that cannot be read", "start-version")
    return [GivenSet(ranks, by_comm) for ranks, by_comm in record]


def _is_given(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and _is_list(one[0], _is_rank) and isinstance(one[1], bool)


def _is_rank(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool)


def _is_list(value: Any, is_right: Any) -> bool:
    return isinstance(value, list) and all(is_right(one) for one in value)
