# SPDX-License-Identifier: Apache-2.0
"""Parts of a page of HTML with pictures in SVG: no script, no link, no other file."""

from __future__ import annotations

import html
from collections.abc import Sequence

from horovod import __version__
from horovod.core.wording import plain

__all__ = ["bar", "begin", "escape", "facts", "key"]

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
.named .row { grid-template-columns: 22rem 1fr 4rem; } .bar { display: flex; height: 1rem; } .bar i { min-width: 1px; }
.lanes { display: grid; grid-template-columns: minmax(8rem, auto) 1fr; gap: .15rem .75rem; align-items: center; }
.lanes svg { height: .9rem; background: color-mix(in srgb, var(--line) 35%, transparent); }
.lanes b { grid-column: 1 / -1; margin-top: .4rem; }
.ranks { background: var(--ranks); fill: var(--ranks); } .data { background: var(--data); fill: var(--data); }
.rest { background: var(--rest); fill: var(--rest); }
pre { overflow-x: auto; padding: .75rem; border: 1px solid var(--line); border-radius: 6px; font-size: .8rem; }
.band { fill: var(--data); opacity: .2; } .middle { fill: none; stroke: var(--data); stroke-width: 2; }
.middle, .grid { vector-effect: non-scaling-stroke; } .grid { stroke: var(--line); }
@media (max-width: 44rem) { .row, .named .row { grid-template-columns: 1fr auto; }
  .row .bar { grid-column: 1 / -1; grid-row: 2; }
  .lanes { grid-template-columns: 1fr; } }
"""


def escape(text: str) -> str:
    """Any text as a part of a page."""
    return html.escape(plain(text))


def begin(title: str) -> str:
    """The page up to its heading, and the version that has written it."""
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        f"<h1>{escape(title)}</h1><p class=soft>Written by Horovod {escape(__version__)}</p>"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Large values, each above the words for it."""
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in pairs)
    return f"<div class=facts>{cells}</div>"


def key(meanings: Sequence[str], classes: Sequence[str]) -> str:
    """The colours of a picture: `ranks`, `data` and `rest` are the classes."""
    cells = (f"<span><i class={name}></i>{escape(text)}</span>" for name, text in zip(classes, meanings, strict=True))
    return f"<div class=key>{''.join(cells)}</div>"


def bar(label: str, name: str, length: float, text: str) -> str:
    """A line with a bar; `length`: of the longest possible, which is 1. `name`: its class."""
    part = f"<i class={name} style='width:{100 * length:.2f}%'></i>"
    return f"<div class=row><span>{escape(label)}</span><div class=bar>{part}</div><span>{escape(text)}</span></div>"
