# SPDX-License-Identifier: Apache-2.0
"""The summary as plain text: tables that are readable without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from horovod.core.wording import on_one_line

__all__ = ["EXPOSED", "UNKNOWN", "as_text", "difference_as_text", "milliseconds", "share"]

_TENSORS = 10
_NAME = 50
_RANKS = 20
EXPOSED = (
    "exposed: a thread of the script was blocked in Horovod. Waits inside compiled functions\n"
    "of TensorFlow and JAX are not recorded, so they count as hidden."
)
UNKNOWN = (
    "exposed time is not known: this file has no WAIT events. A compiled function of TensorFlow\n"
    "or JAX has waited, or an older Horovod has written the file."
)


def as_text(summary: dict[str, Any]) -> str:
    """All of the summary for people; one section after the other."""
    return "\n".join(_lines(summary))


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    steps, ranks = summary["steps"], summary["ranks"]
    yield f"{summary['file']}: {len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}, {summary['duration_s']:.3f} s"
    if steps["median_ms"] is None:
        yield "steps: none was found (a step begins when a tensor is reduced again)"
    else:
        spread = f"{steps['shortest_ms']:.3f} to {steps['longest_ms']:.3f} ms"
        yield f"steps: {steps['count']}, median {steps['median_ms']:.3f} ms, {spread}"
    yield ""
    yield "Time in communication, by rank"
    columns = ["rank", "communication", "hidden", "exposed", "for ranks", "for data"]
    yield from _table(columns, [_times_of(rank, summary["duration_s"]) for rank in ranks])
    yield EXPOSED if summary["knows_exposed"] else UNKNOWN
    if len(ranks) > 1:
        yield ""
        yield "Which rank came last, and how long the others waited (waits that overlap are all added)"
        columns = ["rank", "came last", "others waited", "longest", "waited itself"]
        yield from _table(columns, [_lateness_of(rank) for rank in ranks])
        yield _latest(ranks)
    yield from _tensors(summary)
    yield ""
    yield "Operations of the rank with the most calls"
    columns = ["operation", "calls", "waiting for ranks", "queued", "data moves", "MiB"]
    yield from _table(columns, [_operation(row) for row in summary["operations"]])
    yield from _problems(summary)


def difference_as_text(rows: Sequence[dict[str, Any]], before: str, after: str) -> str:
    """Two runs beside each other. Times of ranks are means over the ranks."""
    table = [[row["what"], _plain(row["before"]), _plain(row["after"]), _percent(row["percent"])] for row in rows]
    title = f"{after} compared with {before} (times of ranks: their mean)"
    return "\n".join([title, *_table(["what", "before", "after", "change"], table)])


def milliseconds(seconds: float | None) -> str:
    """For example `12.3 ms`; a dash if it is unknown."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def share(part: float | None, whole: float) -> str:
    """For example ` (25%)`; nothing if it is unknown."""
    return "" if part is None or whole <= 0 else f" ({100 * part / whole:.0f}%)"


def _times_of(rank: dict[str, Any], duration_s: float) -> list[str]:
    communication = rank["communication_s"]
    return [
        str(rank["rank"]),
        milliseconds(communication) + share(communication, duration_s),
        milliseconds(rank["hidden_s"]),
        milliseconds(rank["exposed_s"]) + share(rank["exposed_s"], duration_s),
        milliseconds(rank["exposed_for_ranks_s"]),
        milliseconds(rank["exposed_for_data_s"]),
    ]


def _lateness_of(rank: dict[str, Any]) -> list[str]:
    times = f"{rank['last_times']} {'time' if rank['last_times'] == 1 else 'times'}"
    waits = (milliseconds(rank[key]) for key in ("others_waited_s", "longest_wait_s", "waited_s"))
    return [str(rank["rank"]), times, *waits]


def _latest(ranks: Sequence[dict[str, Any]]) -> str:
    late = max(ranks, key=lambda rank: rank["others_waited_s"])
    total = sum(rank["others_waited_s"] for rank in ranks)
    if total == 0:
        return "no rank was late by 20 us or more"
    return (
        f"rank {late['rank']} was late most: {share(late['others_waited_s'], total).strip(' ()')} of all waiting was "
        "for it. This file has only the ranks of its own host"
    )


def _tensors(summary: dict[str, Any]) -> Iterator[str]:
    rows = summary["tensors"][:_TENSORS]
    if not rows:
        return
    yield ""
    yield (
        "Tensors with the longest exposed time, all ranks together"
        if summary["knows_exposed"]
        else ("Tensors that ranks waited for longest, all ranks together")
    )
    table = [
        [_short(row["name"]), milliseconds(row["exposed_s"]), str(row["times"]), milliseconds(row["waited_s"])]
        for row in rows
    ]
    yield from _table(["tensor", "exposed", "waits", "for late ranks"], table)


def _operation(row: dict[str, Any]) -> list[str]:
    times = (milliseconds(row[key]) for key in ("negotiating_s", "queued_s", "data_s"))
    return [row["operation"].lower(), str(row["times"]), *times, f"{row['bytes'] / (1 << 20):.1f}"]


def _problems(summary: dict[str, Any]) -> Iterator[str]:
    if summary["unfinished"]:
        yield ""
        yield "Not finished when the file ended"
        table = [
            [str(row["rank"]), row["event"], _short(row["tensor"]), milliseconds(row["since_s"])]
            for row in summary["unfinished"]
        ]
        yield from _table(["rank", "event", "tensor", "since"], table)
    for call in summary["not_called"]:
        ranks, have = ("ranks", "have") if len(call["ranks"]) > 1 else ("rank", "has")
        listed = ", ".join(map(str, call["ranks"][:_RANKS])) + (", ..." if len(call["ranks"]) > _RANKS else "")
        yield f"{ranks} {listed} {have} not called {_short(call['tensor'])} ({call['operation'].lower()})"
    if not summary["is_complete"]:
        torn = f"; {summary['torn_lines']} torn lines were left out" if summary["torn_lines"] else ""
        yield f"the file is not complete: the job was killed, or still runs{torn}"
    if summary["lost_events"]:
        yield f"{summary['lost_events']} events were lost: more came than could be written; times are too short"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, if it holds words; the others to the right."""
    widths = [max(len(row[place]) for row in [columns, *rows]) for place in range(len(columns))]
    for row in [columns, *rows]:
        cells = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join(["  " + row[0].ljust(widths[0]), *cells]).rstrip()


def _short(name: str) -> str:
    name = on_one_line(name)
    return name if len(name) <= _NAME else f"{name[: _NAME - 13]}...{name[-10:]}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}%"
