# SPDX-License-Identifier: Apache-2.0
"""The part `arrivals` of hvd.statistics(): the engine's numbers, with those of hosts and of earlier generations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["complete", "keep", "note_framework_waits"]

# Sums of this process' generations that have ended; in an elastic job, those before the newest change of workers.
_earlier = dict.fromkeys(
    ("seconds", "steps", "calls", "waited_s", "waiting_s", "blocked_for_ranks_s", "blocked_for_data_s"), 0.0
)
_framework_waits = False


def note_framework_waits() -> None:
    """From now on, threads of a framework wait for operations: the script's own waits are not all."""
    global _framework_waits
    _framework_waits = True


def complete(arrivals: dict[str, Any], host_of_rank: Sequence[int]) -> dict[str, Any]:
    """Makes numbers of the keys that are ranks and process sets, which JSON has as texts, and adds the rest."""
    for name in ("by_rank", "last_minute", "by_process_set"):
        arrivals[name] = {int(number): row for number, row in arrivals[name].items()}
    by_host: dict[int, dict[str, float]] = {}
    for rank, row in arrivals["by_rank"].items():
        if rank >= 0:
            sums = by_host.setdefault(host_of_rank[rank], {"times": 0, "waited_s": 0.0})
            sums["times"] += row["times"]
            sums["waited_s"] += row["waited_s"]
    return {**arrivals, "by_host": by_host, "earlier": dict(_earlier), "framework_waits": _framework_waits}


def keep(arrivals: dict[str, Any]) -> None:
    """Adds those of a generation that ends."""
    for name in _earlier:
        _earlier[name] += arrivals[name]
