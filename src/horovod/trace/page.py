# SPDX-License-Identifier: Apache-2.0
"""The summary as one page of HTML, with pictures in SVG: no script, no link, no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from horovod import __version__
from horovod.trace.one_step import LANES, one_step
from horovod.trace.reader import Reader
from horovod.trace.summary import STEP_KEYS
from horovod.trace.text import EXPOSED, UNKNOWN, as_text, difference_as_text, milliseconds, share

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --ranks: #c2410c; --data: #1d6fb8; --rest: #9aa7b4; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e6edf3; --soft: #9aa7b4; --line: #38424d;
  --ranks: #f08a4b; --data: #5aa9ec; --rest: #5b6875; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
h1, h2, p, td, th { overflow-wrap: anywhere; } .soft { color: var(--soft); margin: .25rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem 2.5rem; margin: 1.25rem 0; }
.facts b { display: block; font-size: 1.5rem; font-weight: 600; } .facts span { color: var(--soft); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0; color: var(--soft); }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
svg { display: block; width: 100%; } .frame { border: 1px solid var(--line); border-width: 0 0 1px 1px; }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: .85rem; }
.row { display: grid; grid-template-columns: 6rem 1fr 10rem; gap: .2rem .75rem;
  align-items: center; margin: .3rem 0; } .row > :last-child { text-align: right; }
.bar { display: flex; height: 1rem; } .bar i { min-width: 1px; }
.lanes { display: grid; grid-template-columns: minmax(8rem, auto) 1fr; gap: .15rem .75rem; align-items: center; }
.lanes svg { height: .9rem; background: color-mix(in srgb, var(--line) 35%, transparent); }
.lanes b { grid-column: 1 / -1; margin-top: .4rem; }
.ranks { background: var(--ranks); fill: var(--ranks); } .data { background: var(--data); fill: var(--data); }
.rest { background: var(--rest); fill: var(--rest); }
pre { overflow-x: auto; padding: .75rem; border: 1px solid var(--line); border-radius: 6px; font-size: .8rem; }
@media (max-width: 32rem) { .row { grid-template-columns: 1fr auto; } .row .bar { grid-column: 1 / -1; grid-row: 2; }
  .lanes { grid-template-columns: 1fr; } }
"""
_CLASSES = ("ranks", "data", "rest")
_MEANINGS = ("blocked for late ranks", "blocked while data moves", "the rest of the step")
_HEIGHT = 160.0


def page(readers: Sequence[Reader], summaries: Sequence[dict[str, Any]], rows: list[dict[str, Any]] | None) -> str:
    """The whole file. Reads the first timeline again, for the picture of one step."""
    first = summaries[0]
    title = f"Timeline of {first['file']}"
    parts = [
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1><p class=soft>Written by Horovod {escape(__version__)}</p>",
        *_facts(first),
        *_steps(first),
        *_one(one_step(readers[0])),
        *_waiting(first),
        *_sizes(first),
    ]
    if rows is not None:
        text = difference_as_text(rows, str(first["file"]), str(summaries[1]["file"]))
        parts += ["<h2>Compared with another run</h2>", f"<pre>{escape(text)}</pre>"]
    parts += [f"<h2>All numbers</h2><pre>{escape(as_text(summary))}</pre>" for summary in summaries]
    return "\n".join(parts) + "\n</html>\n"


def _facts(summary: dict[str, Any]) -> Iterator[str]:
    ranks, steps, duration = summary["ranks"], summary["steps"], summary["duration_s"]
    mean = sum(rank["communication_s"] for rank in ranks) / len(ranks)
    facts = [(str(len(ranks)), "ranks"), (f"{duration:.1f} s", "recorded"), (str(steps["count"]), "steps")]
    if steps["median_ms"] is not None:
        facts.append((f"{steps['median_ms']:.1f} ms", "median step"))
    facts.append((share(mean, duration).strip(" ()") or "-", "in communication"))
    if summary["knows_exposed"]:
        exposed = sum(rank["exposed_s"] or 0.0 for rank in ranks) / len(ranks)
        facts.append((share(exposed, duration).strip(" ()") or "-", "exposed"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
    yield f"<div class=facts>{cells}</div>"
    yield f"<p class=soft>{escape(EXPOSED if summary['knows_exposed'] else UNKNOWN)}</p>"


def _key(meanings: Sequence[str], classes: Sequence[str] = _CLASSES) -> str:
    cells = (f"<span><i class={name}></i>{escape(text)}</span>" for name, text in zip(classes, meanings, strict=True))
    return f"<div class=key>{''.join(cells)}</div>"


def _steps(summary: dict[str, Any]) -> Iterator[str]:
    bars = summary["bars"]
    if not bars:
        return
    tallest = max(sum(bar[key] for key in STEP_KEYS) for bar in bars) or 1.0
    yield "<h2>Steps</h2>" + _key(_MEANINGS)
    shapes = []
    for place, bar in enumerate(bars):
        top = _HEIGHT
        lengths = ", ".join(f"{text} {bar[key]:.2f} ms" for key, text in zip(STEP_KEYS, _MEANINGS, strict=True))
        label = f"step {bar['first'] + 1}" + (f" to {bar['first'] + bar['steps']}" if bar["steps"] > 1 else "")
        shapes.append(f"<g><title>{label}: {lengths}</title>")
        for name, key in zip(_CLASSES, STEP_KEYS, strict=True):
            height = bar[key] / tallest * _HEIGHT
            top -= height
            shapes.append(f"<rect class={name} x='{place}' y='{top:.2f}' width='.85' height='{height:.2f}'/>")
        shapes.append("</g>")
    box = f"0 0 {len(bars)} {_HEIGHT:.0f}"
    yield f"<div class=soft>{tallest:.1f} ms</div>"
    yield (
        f"<svg class=frame role=img aria-label='length of the steps' viewBox='{box}' height='{_HEIGHT:.0f}' "
        f"preserveAspectRatio=none>{''.join(shapes)}</svg>"
    )
    yield f"<div class=axis><span>step 1</span><span>step {bars[-1]['first'] + bars[-1]['steps']}</span></div>"
    yield "<p class=soft>Means over the ranks. A step begins when a tensor is reduced again.</p>"


def _one(step: dict[str, Any] | None) -> Iterator[str]:
    if step is None:
        return
    yield f"<h2>One step</h2><p class=soft>Step {step['number'] + 1}, {step['length_ms']:.2f} ms</p>"
    rows = []
    for rank, lanes in step["ranks"].items():
        rows.append(f"<b>rank {rank}</b>")
        for lane, name in zip(LANES, ("ranks", "rest", "data"), strict=True):
            shapes = "".join(
                f"<rect class={name} x='{begin:.4f}' y='0' width='{max(end - begin, step['length_ms'] / 2000):.4f}' "
                "height='1'/>"
                for begin, end in lanes[lane]
            )
            rows.append(
                f"<span>{lane}</span><svg role=img aria-label='rank {rank}: {lane}' "
                f"viewBox='0 0 {step['length_ms']:.4f} 1' preserveAspectRatio=none>{shapes}</svg>"
            )
    yield f"<div class=lanes>{''.join(rows)}</div>"


def _waiting(summary: dict[str, Any]) -> Iterator[str]:
    ranks = summary["ranks"]
    if len(ranks) < 2:
        return
    yield "<h2>Waiting by rank</h2>"
    yield _key(("the others waited for this rank", "this rank waited for others"), ("ranks", "rest"))
    most = max(max(rank["others_waited_s"], rank["waited_s"]) for rank in ranks) or 1.0
    for rank in ranks:
        text = f"{milliseconds(rank['others_waited_s'])}, {rank['last_times']} times"
        yield _bar(f"rank {rank['rank']}", "ranks", rank["others_waited_s"] / most, text)
        yield _bar("", "rest", rank["waited_s"] / most, milliseconds(rank["waited_s"]))


def _sizes(summary: dict[str, Any]) -> Iterator[str]:
    if not summary["sizes"]:
        return
    yield "<h2>Sizes of the tensors</h2>" + _key(("bytes", "calls"), ("data", "rest"))
    bytes_of_all = sum(row["bytes"] for row in summary["sizes"]) or 1
    calls = sum(row["times"] for row in summary["sizes"])
    for row in summary["sizes"]:
        text = f"{row['bytes'] / (1 << 20):.2f} MiB"
        yield _bar(f"up to {row['label']}", "data", row["bytes"] / bytes_of_all, text)
        yield _bar("", "rest", row["times"] / calls, f"{row['times']} calls")


def _bar(label: str, name: str, length: float, text: str) -> str:
    """A line with a bar; `length`: of the longest possible, which is 1."""
    return (
        f"<div class=row><span>{label}</span><div class=bar><i class={name} style='width:{100 * length:.2f}%'></i>"
        f"</div><span>{text}</span></div>"
    )
