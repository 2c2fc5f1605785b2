# SPDX-License-Identifier: Apache-2.0
"""The command line of `python -m horovod.trace`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from horovod.core.wording import tell
from horovod.trace.export import export
from horovod.trace.page import page
from horovod.trace.reader import NotATimelineError, Reader
from horovod.trace.summary import difference, summarize
from horovod.trace.text import as_text, difference_as_text
from horovod.world.files.whole import named, write_whole

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m horovod.trace", description="Summarize a timeline of Horovod, or export it."
    )
    commands = top.add_subparsers(dest="command", required=True)
    add = commands.add_parser(
        "summary", help="steps, time in communication, late ranks; with two files, also the difference"
    )
    add.add_argument("file", help="what horovodrun --timeline-filename has written")
    add.add_argument("other", nargs="?", help="the timeline of another run, which is compared with the first")
    add.add_argument("--json", action="store_true", help="write JSON to standard output")
    add.add_argument("--html", metavar="FILE", help="write a page with pictures, which needs no other file")
    add = commands.add_parser("export", help="write a file for each rank as PyTorch's profiler does, for other tools")
    add.add_argument("file", help="what horovodrun --timeline-filename has written")
    add.add_argument("folder", help="where rank.0.json and the others are written")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a file cannot be read or written."""
    options = _options(arguments)
    try:
        text = _exported(options) if options.command == "export" else _summarized(options)
        _print(text)
    except BrokenPipeError:  # the reader takes only the beginning, as `head` does
        return 0
    except NotATimelineError as error:
        tell(f"horovod.trace: {error}")
        return 1
    except OSError as error:
        tell(f"horovod.trace: cannot write {error.filename}: {error.strerror}")
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if not rest:
        return options
    if options.command != "summary" or any(word.startswith("-") for word in rest):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    files = [path for path in (options.file, options.other, *rest) if path is not None]
    if len(files) > 2:
        top.error(f"summary takes one timeline, or two to compare: {len(files)} were given")
    options.other = files[1]  # behind a flag, where argparse does not find it
    return options


def _print(text: str) -> None:
    try:
        with named("standard output"):
            tell(text, sys.stdout)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the end of Python, which tries again
        raise


def _exported(options: argparse.Namespace) -> str:
    paths = export(Reader(options.file, _progress(options.file)), Path(options.folder))
    return "\n".join(map(str, paths))


def _summarized(options: argparse.Namespace) -> str:
    readers = [Reader(path, _progress(path)) for path in (options.file, options.other) if path is not None]
    summaries = [summarize(reader) for reader in readers]
    rows = difference(*summaries) if len(summaries) == 2 else None
    if options.html is not None:
        write_whole(options.html, page(readers, summaries, rows))
    if options.json:
        return json.dumps({"timelines": summaries, **({} if rows is None else {"difference": rows})}, indent=1)
    texts = [as_text(summary) for summary in summaries]
    if rows is not None:
        texts.append(difference_as_text(rows, options.file, options.other))
    if options.html is not None:
        texts.append(f"the page is {options.html}")
    return "\n\n".join(texts)


def _progress(path: str) -> Callable[[float], None]:
    def report(done: float) -> None:
        tell(f"horovod.trace: {path}: {done:.0%} read")

    return report


if __name__ == "__main__":
    sys.exit(main())
