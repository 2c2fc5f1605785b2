# SPDX-License-Identifier: Apache-2.0
"""The facts that a launcher gives to this process: its rank, the number of ranks, and the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Environment", "Started", "numbers"]

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
