# SPDX-License-Identifier: Apache-2.0
"""The facts that a launcher gives to this process: its rank, the number of ranks, and the job."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping

__all__ = ["Environment", "Handed", "Started", "handed", "handed_over", "numbers"]

Environment = Mapping[str, str]  # Settings.launch_environment


@dataclasses.dataclass(frozen=True)
class Started:
    """`launcher`: its name, for messages. `key`: tells this job from all others of this user; empty if nothing does.

    `has_mpi`: MPI_Init would find the other ranks, as far as the environment tells.
    """

    launcher: str
    rank: int
    size: int
    key: str
    has_mpi: bool


def numbers(environment: Environment, one: str, other: str) -> tuple[int, int] | None:
    """The values of these two variables; None if one of them is missing, or is not a number."""
    values = environment.get(one, "").strip(), environment.get(other, "").strip()
    return (int(values[0]), int(values[1])) if all(map(str.isdecimal, values)) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Handed:
    """A start by a caller of init that knows the ranks, and carries rank 0's message to the others.

    `give(message)`: in rank 0. `take(deadline)`: in the others; None if it has not come in time.
    """

    started: Started
    give: Callable[[bytes], None]
    take: Callable[[float], bytes | None]


_handed: list[Handed] = []


def handed() -> Handed | None:
    """The caller of the init that is running, if it knows the ranks."""
    return _handed[-1] if _handed else None


@contextlib.contextmanager
def handed_over(caller: Handed) -> Iterator[None]:
    """Inside, init joins the job of `caller`, unless horovodrun has started this rank. Its lock is held."""
    _handed.append(caller)
    try:
        yield
    finally:
        _handed.pop()
