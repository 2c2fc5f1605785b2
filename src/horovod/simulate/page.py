# SPDX-License-Identifier: Apache-2.0
"""A forecast as one page of HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator

from horovod.core.wording import counted
from horovod.simulate.forecast import CAUSES, Forecast
from horovod.simulate.report import as_text, assumptions, hints, title
from horovod.trace.html import bar, begin, escape, facts, key

__all__ = ["page"]

_WIDTH, _HEIGHT = 300.0, 100.0


def page(made: Forecast) -> str:
    """The whole file."""
    last = made.rows[-1]
    shown = [
        (f"{last.band.middle:.1f}%", f"efficiency on {counted(last.ranks, 'rank')}"),
        (f"{last.band.low:.0f} to {last.band.high:.0f}%", "its 90% band"),
        (last.limit or ("nothing" if last.band.middle > 99 else "no single cause"), "limits it"),
    ]
    parts = [
        begin(f"Forecast of {made.job.work.name}"),
        f"<p class=soft>{escape(title(made))}<br>{escape(assumptions(made))}</p>",
        facts(shown),
        *(f"<p>{escape(hint)}</p>" for hint in hints(made)),
        *_chart(made),
        *_causes(made),
        *_gains(made),
        f"<h2>All numbers</h2><pre>{escape(as_text(made))}</pre>",
    ]
    return "\n".join(parts) + "\n</html>\n"


def _chart(made: Forecast) -> Iterator[str]:
    """Efficiency by hosts, whose axis is logarithmic; one point is a point, not a line."""
    rows = made.rows
    first, most = rows[0].hosts, max(rows[-1].hosts, 2 * rows[0].hosts)
    places = [_WIDTH * math.log(row.hosts / first) / math.log(most / first) for row in rows]

    def line(values: list[float]) -> list[str]:
        return [f"{x:.2f},{_HEIGHT - value:.2f}" for x, value in zip(places, values, strict=True)]

    low, middle, high = (line([getattr(row.band, name) for row in rows]) for name in ("low", "middle", "high"))
    grid = "".join(f"<line class=grid x1='0' x2='{_WIDTH:.0f}' y1='{y}' y2='{y}'/>" for y in (25, 50, 75))
    dots = "".join(
        f"<rect class=data x='{x - 1:.2f}' y='{_HEIGHT - row.band.middle - 1:.2f}' width='2' height='2'>"
        f"<title>{counted(row.hosts, 'host')}: {row.band.middle:.1f}%</title></rect>"
        for x, row in zip(places, rows, strict=True)
    )
    yield "<h2>Efficiency</h2>" + key(("middle of the forecast, with its 90% band",), ("data",))
    yield "<div class=soft>100%</div>"
    yield (
        f"<svg class=frame role=img aria-label='efficiency by hosts' viewBox='-3 0 {_WIDTH + 6:.0f} {_HEIGHT:.0f}'>"
        f"{grid}<polygon class=band points='{' '.join([*low, *reversed(high)])}'/>"
        f"<polyline class=middle points='{' '.join(middle)}'/>{dots}</svg>"
    )
    yield f"<div class=axis><span>{counted(first, 'host')}</span><span>{counted(most, 'host')}</span></div>"


def _causes(made: Forecast) -> Iterator[str]:
    row = made.rows[-1]
    yield f"<h2>Limits on {counted(row.hosts, 'host')}</h2>"
    yield "<p class=soft>Points of efficiency that would be gained if one cause were away. They may overlap.</p>"
    for name in sorted(CAUSES, key=lambda one: -row.causes[one]):
        yield bar(name, "ranks", row.causes[name] / 100, f"{row.causes[name]:.1f}")


def _gains(made: Forecast) -> Iterator[str]:
    if not made.what_ifs:
        return
    yield "<h2>What would help</h2>" + key(("the training stays as it is", "changes the training"), ("data", "rest"))
    yield "<div class=named>"
    for one in made.what_ifs:
        name = "rest" if one.changes_training else "data"
        yield bar(one.change, name, max(0.0, one.gain.middle) / 100, f"{one.gain.middle:+.1f}")
    yield "</div>"
