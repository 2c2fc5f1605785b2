# SPDX-License-Identifier: Apache-2.0
"""Makes rates of the statuses that ranks send. Pure.

What a status lacks, or has in another form than core/telemetry/status.py gives it, counts as not there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from horovod.core.telemetry.status import lost
from horovod.core.wording import on_one_line

__all__ = ["JobFacts", "Sampled", "RankFacts", "facts_of", "ranks_in_words", "since_init"]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Where the main thread of a rank was. `shares`: of the samples, by (part of the step, line of the script)."""

    samples: int
    shares: dict[tuple[str, str], float]

    def by_part(self) -> dict[str, float]:
        """Shares by part of the step."""
        parts: dict[str, float] = {}
        for (part, _), share in self.shares.items():
            parts[part] = parts.get(part, 0.0) + share
        return parts


@dataclasses.dataclass(frozen=True)
class RankFacts:
    """One rank in a span of time. Shares are of that time.

    `lost_share`: it waited for other ranks. `data_share`: it was blocked while data moved. `core_share`: one of its
    threads waited for a core. `waits`: seconds by the rank that was waited for. `late`: the rank that it waits for
    lately, with `since_step` and `since_s`. `stuck_s`: its calls have waited for so long, and none has become ready.
    `links`: by the other host's address: bytes that have arrived there, and seconds that it took.
    """

    rank: int
    host: str
    local_rank: int
    pid: int
    age_s: float
    span_s: float
    seconds: float
    steps: float
    steps_total: int
    bytes_per_s: float
    lost_share: float
    data_share: float
    core_share: float
    waits: dict[int, float]
    late: dict[str, Any] | None
    sampled: Sampled | None
    in_flight: int
    stuck_s: float
    address: str
    links: dict[str, tuple[float, float]]

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.span_s if self.span_s else 0.0


@dataclasses.dataclass(frozen=True)
class JobFacts:
    """`past`: earlier generations of an elastic job, as Statuses keeps them."""

    generation: int
    size: int
    ranks: dict[int, RankFacts]
    past: list[dict[str, Any]]


def facts_of(view: dict[str, Any]) -> JobFacts:
    """The job in the last 10 to 20 s, or since init if that is less. `view`: of Statuses.view, whole."""
    return _facts(view, lately=True)


def since_init(view: dict[str, Any]) -> JobFacts:
    """The job since its last init. A rank that has ended gives its last status."""
    return _facts(view, lately=False)


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 3`, `2 ranks (0, 4)`, `126 ranks (0-99, 102-127)`."""
    ordered = sorted(ranks)
    spans: list[list[int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    listed = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"{len(ordered)} ranks ({listed})"


def _facts(view: dict[str, Any], *, lately: bool) -> JobFacts:
    ranks = {}
    for text, known in view["ranks"].items():
        before = known["before"] if lately and known["before_s"] > 0 else {}
        ranks[int(text)] = _rank_facts(int(text), known["newest"], before, known["age_s"])
    return JobFacts(view["generation"], view["size"], ranks, view.get("past", []))


def _rank_facts(rank: int, new: dict[str, Any], old: dict[str, Any], age_s: float) -> RankFacts:
    def passed(name: str) -> float:
        return max(0.0, _number(new.get(name)) - _number(old.get(name)))

    span_s = passed("seconds")
    lost_s = max(0.0, lost(_numbers(new)) - lost(_numbers(old)))
    old_waits = _object(old.get("by_rank"))
    new_waits = {of: wait for of, wait in _object(new.get("by_rank")).items() if of.isdecimal()}
    waits = {int(of): _number(wait) - _number(old_waits.get(of)) for of, wait in new_waits.items()}

    def share(seconds: float) -> float:
        return seconds / span_s if span_s > 0 else 0.0

    return RankFacts(
        rank=rank,
        host=on_one_line(new.get("host", "?")),
        local_rank=int(_number(new.get("local_rank"))),
        pid=int(_number(new.get("pid"))),
        age_s=age_s,
        span_s=span_s,
        seconds=_number(new.get("seconds")),
        steps=passed("steps"),
        steps_total=int(_number(new.get("steps"))),
        bytes_per_s=share(passed("bytes")),
        lost_share=min(1.0, share(lost_s)),
        data_share=min(1.0, share(passed("blocked_for_data_s"))),
        core_share=share(passed("core_wait_s")),
        waits={of: wait for of, wait in waits.items() if wait > 0},
        late=_late(new.get("late")),
        sampled=_sampled(new.get("sampled")),
        in_flight=int(_number(new.get("in_flight"))),
        stuck_s=_number(new.get("stuck_s")),
        address=on_one_line(new.get("address", "")),
        links=_links(_object(new.get("links")), _object(old.get("links"))),
    )


def _links(new: dict[str, Any], old: dict[str, Any]) -> dict[str, tuple[float, float]]:
    links = {}
    for address, row in new.items():
        arrived, busy_s = _pair(row)
        arrived_before, busy_before_s = _pair(old.get(address))
        # A connection that was closed takes its counts with it.
        links[on_one_line(address)] = max(0.0, arrived - arrived_before), max(0.0, busy_s - busy_before_s)
    return links


def _sample(row: Any) -> tuple[str, str, float]:
    match row:
        case [str(part), str(line), int(count)]:
            return on_one_line(part), on_one_line(line), float(count)
    return "", "", 0.0


def _pair(row: Any) -> tuple[float, float]:
    match row:
        case [int() | float() as first, int() | float() as second]:
            return float(first), float(second)
    return 0.0, 0.0


def _late(found: Any) -> dict[str, Any] | None:
    match found:
        case {"rank": int(), "since_step": int(), "since_s": int() | float()}:
            return dict(found)
    return None


def _numbers(status: dict[str, Any]) -> dict[str, float]:
    return {name: _number(value) for name, value in status.items()}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sampled(found: Any) -> Sampled | None:
    match found:
        case {"samples": int(samples), "lines": list(rows)} if samples > 0:
            shares = {(part, line): count / samples for part, line, count in map(_sample, rows)}
            return Sampled(samples, shares)
    return None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
