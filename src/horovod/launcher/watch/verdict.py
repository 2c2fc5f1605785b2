# SPDX-License-Identifier: Apache-2.0
"""Says which rank makes the others wait, why, and what that costs. Pure.

A rank is to blame if most others lose time by waiting for it and it does not lose as much itself. For two ranks that
wait for each other now and then there is no verdict. The reason follows from what the late rank does more than a rank
that waits: its main thread is more often in one part of the step, or its threads wait for a core.

If no rank is to blame, but data takes long, a pair of hosts may be: its link carries much less than the others.
"""

from __future__ import annotations

import dataclasses
import statistics

from horovod.core.telemetry.samples import IN_HOROVOD
from horovod.launcher.watch.facts import JobFacts, RankFacts, Sampled, ranks_in_words

__all__ = ["LEAST_SHARE", "SlowLink", "Verdict", "judge", "stuck"]

LEAST_SHARE = 0.05  # of the time: what the job must lose by a rank
_LEAST_S, _LEAST_STEPS = 4.0, 4  # less is too short to judge
_STUCK_S = 3.0
_SUSTAINED_S = 4.0  # how long most others must have waited for the same rank
_LEAST_SAMPLES = 30
_MOST_OF_IT = 0.4  # a reason must explain this much of the lateness
_NEARLY_ALL = 0.7
_LEAST_CORE_SHARE = 0.1  # of the time, that its threads wait for a core more than others
_LEAST_DATA_SHARE = 0.2  # of the time, that a typical rank is blocked while data moves
# On a link that is judged. Of a few bytes now and then, the time is that of late acknowledgements.
_LEAST_BYTES, _LEAST_BUSY_S = 8 << 20, 0.2
_MUCH_SLOWER = 0.4  # of the median of the other links


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`late_s`: in each step. `share`: of the time that the job loses. `where`: in words; "" if it is not known."""

    rank: int
    host: str
    late_s: float
    since_step: int | None
    share: float
    part: str
    where: str

    def __str__(self) -> str:
        since = "" if self.since_step is None else f" since step {self.since_step:,}"
        ratio = 1 / (1 - min(self.share, 0.99))
        gain = f"{ratio:.1f} times as fast" if ratio >= 2 else f"{100 * (ratio - 1):.0f}% faster"
        where = f": {self.where}" if self.where else ""
        return (
            f"rank {self.rank} (host {self.host}) has been {_milliseconds(self.late_s)} late in each step{since}"
            f"{where}. Without this delay the job would be {gain}"
        )


@dataclasses.dataclass(frozen=True)
class SlowLink:
    """`hosts`: two, or one whose links are all slow. `rate`, `usual`: bytes a second while bytes are on their way."""

    hosts: tuple[str, ...]
    rate: float
    usual: float
    data_share: float

    def __str__(self) -> str:
        pair = " and ".join(self.hosts)
        which = f"the link between hosts {pair} carries" if len(self.hosts) == 2 else f"the links of host {pair} carry"
        return (
            f"{which} {self.rate / 1e6:,.1f} MB/s, the others {self.usual / 1e6:,.1f}; the ranks are blocked "
            f"{100 * self.data_share:.0f}% of the time while data moves"
        )


def judge(facts: JobFacts, *, sustained: bool = True) -> Verdict | SlowLink | None:
    """`sustained`: only what has lasted some seconds counts, as the ranks have noticed it lately."""
    ranks = {rank: one for rank, one in facts.ranks.items() if one.span_s >= _LEAST_S and one.steps >= _LEAST_STEPS}
    if len(ranks) < 2:
        return None
    return _late_rank(ranks, sustained=sustained) or _slow_link(ranks)


def stuck(facts: JobFacts) -> str:
    """Names the ranks that some wait for and that have called nothing; an empty text if there are none."""
    waiting = {rank: one.stuck_s for rank, one in facts.ranks.items() if one.stuck_s >= _STUCK_S}
    missing = [rank for rank, one in facts.ranks.items() if not one.in_flight]
    if not waiting or not missing:
        return ""
    has, have = ("has" if len(ranks) == 1 else "have" for ranks in (waiting, missing))
    seconds = min(waiting.values())
    return (
        f"{ranks_in_words(waiting)} {has} waited {seconds:.0f} s for {ranks_in_words(missing)}, which {have} not "
        "called the same operation"
    )


def _late_rank(ranks: dict[int, RankFacts], *, sustained: bool) -> Verdict | None:
    scores = {rank: _loss_by(rank, ranks) - ranks[rank].lost_share for rank in ranks}
    worst = max(scores, key=scores.__getitem__)
    share = scores[worst]
    others = [one for one in ranks.values() if one.rank != worst]
    if share < LEAST_SHARE:
        return None
    agreeing = [one.late for one in others if one.late and one.late["rank"] == worst and _lasts(one)]
    if sustained and 2 * len(agreeing) < len(others):
        return None
    late = ranks[worst]
    part, where = _reason(late, others, share)
    since = round(statistics.median(one["since_step"] for one in agreeing)) if agreeing else None
    return Verdict(worst, late.host, share * late.span_s / late.steps, since, share, part, where)


def _slow_link(ranks: dict[int, RankFacts]) -> SlowLink | None:
    data_share = statistics.median(one.data_share for one in ranks.values())
    if data_share < _LEAST_DATA_SHARE:
        return None
    rates = _rates_of_links(ranks)
    if len(rates) < 2:
        return None
    slowest = min(rates, key=rates.__getitem__)
    slow = {pair: rate for pair, rate in rates.items() if rate < 2 * rates[slowest]}
    others = [rate for pair, rate in rates.items() if pair not in slow]
    if not others or rates[slowest] > _MUCH_SLOWER * statistics.median(others):
        return None
    common = set.intersection(*map(set, slow))
    hosts = tuple(sorted(common if len(slow) > 1 and common else slowest))
    return SlowLink(hosts, rates[slowest], statistics.median(others), data_share)


def _rates_of_links(ranks: dict[int, RankFacts]) -> dict[frozenset[str], float]:
    """Bytes a second by pair of hosts, of those that have carried enough."""
    hosts = {one.address: one.host for one in ranks.values() if one.address}
    moved: dict[frozenset[str], tuple[float, float]] = {}
    for one in ranks.values():
        for address, (arrived, busy_s) in one.links.items():
            pair = frozenset((one.host, hosts.get(address, address)))
            before = moved.get(pair, (0.0, 0.0))
            moved[pair] = before[0] + arrived, before[1] + busy_s
    return {
        pair: arrived / busy_s
        for pair, (arrived, busy_s) in moved.items()
        if arrived >= _LEAST_BYTES and busy_s >= _LEAST_BUSY_S
    }


def _loss_by(rank: int, ranks: dict[int, RankFacts]) -> float:
    """The share of the time that a typical other rank loses by waiting for this one."""
    losses = []
    for one in ranks.values():
        if one.rank != rank:
            whole = sum(one.waits.values())
            losses.append(one.lost_share * one.waits.get(rank, 0.0) / whole if whole else 0.0)
    return statistics.median(losses)


def _lasts(one: RankFacts) -> bool:
    return one.late is not None and one.seconds - one.late["since_s"] >= _SUSTAINED_S


def _reason(late: RankFacts, others: list[RankFacts], share: float) -> tuple[str, str]:
    """The part of the step and a phrase, or two empty texts.

    A busy core makes all parts of the step longer. So a part that explains nearly all of the lateness is the better
    reason.
    """
    waits_for_core = late.core_share - statistics.median(one.core_share for one in others)
    part, line, excess = _longest_part(late, others)
    if excess < _NEARLY_ALL * share and waits_for_core >= max(_MOST_OF_IT * share, _LEAST_CORE_SHARE):
        cause = "other programs, or too many ranks or threads, use its cores"
        return "core", f"it waits for a core {100 * late.core_share:.0f}% of the time: {cause}"
    if excess < _MOST_OF_IT * share:
        return "", ""
    return (part or line), (f"it is in {part}, {line}" if part else f"it is in {line}")


def _longest_part(late: RankFacts, others: list[RankFacts]) -> tuple[str, str, float]:
    """The part of the step in which the late rank is more often than a rank that waits, its line, and how much more."""
    usual = next((one.sampled for one in others if one.sampled and one.sampled.samples >= _LEAST_SAMPLES), None)
    if late.sampled is None or late.sampled.samples < _LEAST_SAMPLES or usual is None:
        return "", "", 0.0
    by_part = usual.by_part()
    excess = {
        part: share - by_part.get(part, 0.0) for part, share in late.sampled.by_part().items() if part != IN_HOROVOD
    }
    lines = {part: _line(part, late.sampled, usual) for part in excess}
    # The call of a compiled function is a line of no part, too: there the other ranks wait.
    if "" in excess:
        excess[""] = max(excess[""], lines[""][1])
    part = max(excess, key=excess.__getitem__, default=None)
    return ("", "", 0.0) if part is None else (part, lines[part][0], excess[part])


def _line(part: str, found: Sampled, usual: Sampled) -> tuple[str, float]:
    """The line at which the late rank is more often than the other, and how much more."""
    lines = {
        line: share - usual.shares.get((of, line), 0.0) for (of, line), share in found.shares.items() if of == part
    }
    return max(lines.items(), key=lambda item: item[1])


def _milliseconds(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.1f} ms"
        if seconds < 0.01
        else f"{seconds * 1e3:.0f} ms"
        if seconds < 10
        else f"{seconds:.0f} s"
    )
