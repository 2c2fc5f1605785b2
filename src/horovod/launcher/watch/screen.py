# SPDX-License-Identifier: Apache-2.0
"""The view of `horovodrun top`, as words and rows. Pure."""

from __future__ import annotations

import statistics
import textwrap

from horovod.core.wording import cut
from horovod.launcher.watch.facts import JobFacts, RankFacts
from horovod.launcher.watch.verdict import judge, stuck

__all__ = ["HEADER", "LEGEND", "headline", "plain", "rows", "words"]

HEADER = ("RANK", "HOST", "STEPS/S", "WAITS", "DATA", "LATE", "CORE", "MB/S", "HEARD")
LEGEND = (
    "WAITS: waited for other ranks  DATA: blocked while data moved  LATE: others waited for it  CORE: waited for a core"
)
_LONGEST_HOST = 24
_LEFT_OUT_FIRST = ("MB/S", "CORE", "HEARD", "DATA", "HOST")


def headline(name: str, facts: JobFacts) -> str:
    """The job in one line."""
    ranks = list(facts.ranks.values())
    hosts = len({one.host for one in ranks})
    if not ranks:
        return f"job {name}: no rank has sent a status yet"
    rate = statistics.median(one.steps_per_s for one in ranks)
    step = max(one.steps_total for one in ranks)
    again = f", generation {facts.generation}" if facts.past or facts.generation > 1 else ""
    on = "1 host" if hosts == 1 else f"{hosts} hosts"
    return f"job {name}: {facts.size} ranks on {on}{again}, step {step:,}, {rate:.1f} steps a second"


def words(facts: JobFacts) -> list[str]:
    """The verdict, ranks that are missing or silent, and losses."""
    lines = []
    if hangs := stuck(facts):
        lines.append(f"{hangs}; horovodrun stacks prints where they are")
    elif (verdict := judge(facts)) is not None:
        lines.append(str(verdict))
    missing = [rank for rank in range(facts.size) if rank not in facts.ranks]
    if missing and facts.ranks:
        lines.append(
            f"{len(missing)} of {facts.size} ranks have sent no status yet, such as rank {missing[0]}"
            if len(missing) > 1
            else f"rank {missing[0]} has sent no status yet"
        )
    if facts.past:
        first = facts.past[0]["size"]
        lines.append(f"generation {facts.generation}: {facts.size} ranks; the first generation had {first}")
    return lines


def rows(facts: JobFacts, most: int) -> list[tuple[str, ...]]:
    """A row for each rank; if these are more than `most`, those that are late or wait most."""
    late = _late(facts)
    ranks = sorted(facts.ranks)
    if len(ranks) > most:
        ranks = sorted(sorted(ranks, key=lambda rank: -max(late[rank], facts.ranks[rank].age_s / 100))[:most])
    return [_row(facts.ranks[rank], late[rank]) for rank in ranks]


def plain(name: str, facts: JobFacts, width: int, height: int) -> str:
    """All of it as text of at most so many columns and lines."""
    head = [line for text in (headline(name, facts), *words(facts)) for line in textwrap.wrap(text, width)]
    legend = textwrap.wrap(LEGEND, width)
    shown = [HEADER, *rows(facts, max(1, height - len(head) - len(legend) - 2))]
    table = _table(shown, width)
    left = len(facts.ranks) - (len(shown) - 1)
    table += [f"and {left} more rank{'s' if left > 1 else ''}"] if left > 0 else []
    return "\n".join([*head, *(line[:width] for line in table), *legend])


def _table(shown: list[tuple[str, ...]], width: int) -> list[str]:
    """The lines, without the columns that a narrow terminal has no room for."""
    sizes = {title: max(len(row[column]) for row in shown) for column, title in enumerate(HEADER)}
    for title in _LEFT_OUT_FIRST:
        if sum(sizes.values()) + 2 * (len(sizes) - 1) > width:
            del sizes[title]
    columns = [(HEADER.index(title), title, size) for title, size in sizes.items()]
    return [
        "  ".join(row[at].ljust(size) if title == "HOST" else row[at].rjust(size) for at, title, size in columns)
        for row in shown
    ]


def _late(facts: JobFacts) -> dict[int, float]:
    """By rank: the share of the time that it makes an average other rank wait."""
    late = dict.fromkeys(facts.ranks, 0.0)
    for one in facts.ranks.values():
        whole = sum(one.waits.values())
        for rank, seconds in one.waits.items():
            if rank in late and whole:
                late[rank] += one.lost_share * seconds / whole
    return {rank: share / max(1, len(late) - 1) for rank, share in late.items()}


def _row(one: RankFacts, late: float) -> tuple[str, ...]:
    return (
        str(one.rank),
        cut(one.host, _LONGEST_HOST),
        f"{one.steps_per_s:.1f}",
        _percent(one.lost_share),
        _percent(one.data_share),
        _percent(late),
        _percent(one.core_share),
        f"{one.bytes_per_s / 1e6:.1f}",
        f"{one.age_s:.0f} s",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
