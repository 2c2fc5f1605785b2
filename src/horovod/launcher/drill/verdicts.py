# SPDX-License-Identifier: Apache-2.0
"""Judges what a drill has measured: rows of its table, each with how to fix it. Pure functions."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.core.wording import counted
from horovod.launcher.drill.links import Link

__all__ = ["Row", "of_clocks", "of_gpus", "of_links", "of_memory", "table"]

SLOW = 1 / 3  # of the reference
FAR = 5.0  # times the reference
FAR_S = 0.002  # and so much more
MOST_RESENT = 0.02
FEW_SEGMENTS = 5
MOST_OFFSET_S = 0.5
LEAST_MEMORY = 256 << 20  # bytes for each rank


@dataclasses.dataclass(frozen=True)
class Row:
    """One drill. `fix`: what is wrong and what to do, a line each; empty if it went as expected.

    `ran`: False for a drill that was left out; `actual` says why.
    """

    drill: str
    expected: str
    actual: str
    fix: tuple[str, ...] = ()
    ran: bool = True

    @property
    def held(self) -> bool:
        return not self.fix

    @property
    def mark(self) -> str:
        return "BAD" if self.fix else "ok" if self.ran else "-"


def of_links(links: Sequence[Link], names: Sequence[str]) -> Row:
    """The reference is the median of the better half of the pairs: one bad host spoils many of a small cluster."""
    expected = "no pair of hosts far behind the others, few packets resent"
    if not links:
        return Row("links", expected, "not run: there is only one host", ran=False)
    good = [link for link in links if not link.error]
    fix = _named([link for link in links if link.error], links, names, "cannot connect", lambda link: link.error)
    actual = "no pair could connect"
    if good:
        rates = sorted(link.rate for link in good)
        trips = sorted(link.trip_s for link in good)
        rate = statistics.median_high(rates[len(rates) // 2 :])
        trip = statistics.median_low(trips[: (len(trips) + 1) // 2])
        slow = [link for link in good if link.rate < SLOW * rate]
        lossy = [link for link in good if link.resent >= FEW_SEGMENTS and link.resent > MOST_RESENT * link.sent]
        far = [link for link in good if link.trip_s > FAR * trip and link.trip_s > trip + FAR_S]
        fix += _named(slow, links, names, "slow", lambda link: f"{in_bits(link.rate)}, others {in_bits(rate)}")
        fix += _named(lossy, links, names, "packets are lost", lambda link: f"{link.resent / link.sent:.1%} resent")
        fix += _named(far, links, names, "far", lambda link: f"{_ms(link.trip_s)} for a round trip, others {_ms(trip)}")
        pairs = f"{len(links)} pairs" if len(links) > 1 else "1 pair"
        actual = f"{pairs}: {in_bits(rates[0])} to {in_bits(rates[-1])}, round trip {_ms(trip)}"
    return Row("links", expected, actual, tuple(fix))


def _named(
    bad: Sequence[Link], all_links: Sequence[Link], names: Sequence[str], what: str, how: Callable[[Link], str]
) -> list[str]:
    """A line for each host of which every pair is bad, and one for each other pair."""
    pairs = {number: [link for link in all_links if number in link.hosts] for number in range(len(names))}
    hosts = [number for number, its in pairs.items() if len(its) > 1 and all(link in bad for link in its)]
    if len(hosts) == len(names):
        hosts = []  # it is not a host's fault
    lines = []
    for number in hosts:
        lines.append(
            f"{names[number]}: {what}, with every other host ({how(pairs[number][0])}). Check its cable, its switch "
            "port and its interface"
        )
    for link in bad:
        if not set(link.hosts) & set(hosts):
            one, other = (names[number] for number in link.hosts)
            lines.append(f"{one} - {other}: {what} ({how(link)}). Check the network path between these two hosts")
    return lines


def of_clocks(links: Sequence[Link], names: Sequence[str]) -> Row:
    """Horovod compares no clocks; people who read the logs and timelines of several hosts do."""
    offsets = {link.hosts[1]: link.offset_s for link in links if link.hosts[0] == 0 and not link.error}
    expected = f"at most {MOST_OFFSET_S:g} s apart"
    if not offsets:
        return Row("clocks", expected, "not run: no host could connect to the first", ran=False)
    far = [host for host, offset in offsets.items() if abs(offset) > MOST_OFFSET_S]
    most = max(map(abs, offsets.values()))
    fix = []
    for host in far:
        side = "ahead of" if offsets[host] > 0 else "behind"
        fix.append(
            f"{names[host]}: its clock is {abs(offsets[host]):.1f} s {side} that of {names[0]}, so logs and timelines "
            "do not fit together. Run chrony or another NTP client on both"
        )
    return Row("clocks", expected, f"{_ms(most)} apart", tuple(fix))


def of_memory(hosts: Sequence[Mapping[str, Any]]) -> Row:
    """`hosts`: name, ranks, memory and shm (free bytes of each) of each host."""
    fix = []
    least = min(min(host["memory"], host["shm"]) / host["ranks"] for host in hosts)
    for host in hosts:
        for key, where in (("memory", "memory"), ("shm", "/dev/shm")):
            if host[key] / host["ranks"] < LEAST_MEMORY:
                fix.append(
                    f"{host['name']}: {host[key] >> 20} MiB of {where} are free for {host['ranks']} ranks. End other "
                    "programs there, or give it fewer ranks"
                )
    return Row("memory", f"{LEAST_MEMORY >> 20} MiB free for a rank", f"{int(least) >> 20} MiB or more", tuple(fix))


def of_gpus(hosts: Sequence[Mapping[str, Any]]) -> Row:
    """`hosts`: name, ranks and gpus (a name for each) of each host."""
    counts = [len(host["gpus"]) for host in hosts]
    if not any(counts):
        return Row("GPUs", "one for each rank, or none at all", "none")
    fix = [
        f"{host['name']}: {counted(count, 'GPU')} for {counted(host['ranks'], 'rank')}. Check nvidia-smi "
        "there, or give it fewer ranks"
        for host, count in zip(hosts, counts, strict=True)
        if count < host["ranks"]
    ]
    kinds = sorted({gpu for host in hosts for gpu in host["gpus"]})
    if len(kinds) > 1:
        fix.append(f"the hosts have different GPUs ({', '.join(kinds)}): the slowest sets the pace. Use equal ones")
    return Row("GPUs", "one for each rank, or none at all", f"{sum(counts)} ({', '.join(kinds)})", tuple(fix))


def table(rows: Sequence[Row]) -> str:
    """The rows as text, then what to fix."""
    cells = [("   ", "drill", "expected", "actual")]
    cells += [(row.mark, row.drill, row.expected, row.actual) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]) for line in cells
    ]
    fix = [f"fix: {what}" for row in rows for what in row.fix]
    return "\n".join([*(line.rstrip() for line in lines), *([""] if fix else []), *fix])


def in_bits(bytes_per_second: float) -> str:
    """A rate as networks have it."""
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
