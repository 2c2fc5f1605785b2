# SPDX-License-Identifier: Apache-2.0
"""The summary as one page of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from horovod.trace.html import bar, begin, escape, facts, key
from horovod.trace.one_step import LANES, one_step
from horovod.trace.reader import Reader
from horovod.trace.summary import STEP_KEYS
from horovod.trace.text import EXPOSED, UNKNOWN, as_text, difference_as_text, milliseconds, share

__all__ = ["page"]

_CLASSES = ("ranks", "data", "rest")
_MEANINGS = ("blocked for late ranks", "blocked while data moves", "the rest of the step")
_HEIGHT = 160.0


def page(readers: Sequence[Reader], summaries: Sequence[dict[str, Any]], rows: list[dict[str, Any]] | None) -> str:
    """The whole file. Reads the first timeline again, for the picture of one step."""
    first = summaries[0]
    title = f"Timeline of {first['file']}"
    parts = [
        begin(title),
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
    shown = [(str(len(ranks)), "ranks"), (f"{duration:.1f} s", "recorded"), (str(steps["count"]), "steps")]
    if steps["median_ms"] is not None:
        shown.append((f"{steps['median_ms']:.1f} ms", "median step"))
    shown.append((share(mean, duration).strip(" ()") or "-", "in communication"))
    if summary["knows_exposed"]:
        exposed = sum(rank["exposed_s"] or 0.0 for rank in ranks) / len(ranks)
        shown.append((share(exposed, duration).strip(" ()") or "-", "exposed"))
    yield facts(shown)
    yield f"<p class=soft>{escape(EXPOSED if summary['knows_exposed'] else UNKNOWN)}</p>"


def _steps(summary: dict[str, Any]) -> Iterator[str]:
    bars = summary["bars"]
    if not bars:
        return
    tallest = max(sum(one[part] for part in STEP_KEYS) for one in bars) or 1.0
    yield "<h2>Steps</h2>" + key(_MEANINGS, _CLASSES)
    shapes = []
    for place, drawn in enumerate(bars):
        top = _HEIGHT
        lengths = ", ".join(f"{text} {drawn[part]:.2f} ms" for part, text in zip(STEP_KEYS, _MEANINGS, strict=True))
        label = f"step {drawn['first'] + 1}" + (f" to {drawn['first'] + drawn['steps']}" if drawn["steps"] > 1 else "")
        shapes.append(f"<g><title>{label}: {lengths}</title>")
        for name, part in zip(_CLASSES, STEP_KEYS, strict=True):
            height = drawn[part] / tallest * _HEIGHT
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
    yield key(("the others waited for this rank", "this rank waited for others"), ("ranks", "rest"))
    most = max(max(rank["others_waited_s"], rank["waited_s"]) for rank in ranks) or 1.0
    for rank in ranks:
        text = f"{milliseconds(rank['others_waited_s'])}, {rank['last_times']} times"
        yield bar(f"rank {rank['rank']}", "ranks", rank["others_waited_s"] / most, text)
        yield bar("", "rest", rank["waited_s"] / most, milliseconds(rank["waited_s"]))


def _sizes(summary: dict[str, Any]) -> Iterator[str]:
    if not summary["sizes"]:
        return
    yield "<h2>Sizes of the tensors</h2>" + key(("bytes", "calls"), ("data", "rest"))
    bytes_of_all = sum(row["bytes"] for row in summary["sizes"]) or 1
    calls = sum(row["times"] for row in summary["sizes"])
    for row in summary["sizes"]:
        text = f"{row['bytes'] / (1 << 20):.2f} MiB"
        yield bar(f"up to {row['label']}", "data", row["bytes"] / bytes_of_all, text)
        yield bar("", "rest", row["times"] / calls, f"{row['times']} calls")
