# SPDX-License-Identifier: Apache-2.0
"""`horovodrun stacks`: where all ranks of a job are now; ranks with equal stacks are one group."""

from __future__ import annotations

import time
from typing import Any

from horovod.core.tracebacks import is_of_script
from horovod.core.wording import on_one_line
from horovod.launcher.watch.door import one_job, open_job
from horovod.launcher.watch.facts import ranks_in_words

__all__ = ["grouped", "stacks"]

_PATIENCE_S = 6.0
_LOOK_S = 0.1


def stacks(job_id: str | None, *, all_threads: bool = False) -> str:
    """The text. Raises UsageError, and ChannelError if the job ends."""
    with open_job(one_job(job_id)) as rendezvous:
        number = rendezvous.ask_stacks()
        until = time.monotonic() + _PATIENCE_S
        while True:
            view = rendezvous.statuses()
            found, silent = _answers(view, number)
            if (found and not silent) or time.monotonic() > until:
                return grouped(found, silent, all_threads=all_threads) or "no rank has sent a status yet"
            time.sleep(_LOOK_S)


def _answers(view: dict[str, Any], number: int) -> tuple[dict[int, list[dict[str, Any]]], dict[int, str]]:
    """The threads of the ranks that have answered; of the others, why they have not."""
    found: dict[int, list[dict[str, Any]]] = {}
    silent = {}
    for rank in range(view["size"]):
        match view["ranks"].get(str(rank)):
            case {"newest": {"stacks": {"number": int(given), "threads": list(threads)}}} if given >= number:
                found[rank] = threads
            case {"newest": {"pid": pid, "host": host}, "age_s": age_s}:
                silent[rank] = (
                    f"has not answered (pid {pid} on {on_one_line(host)}, last status {age_s:.0f} s ago): it is frozen "
                    "or unreachable, or native code holds Python's lock"
                )
            case _:
                silent[rank] = "has sent no status yet"
    return found, silent


def grouped(found: dict[int, list[dict[str, Any]]], silent: dict[int, str], *, all_threads: bool = False) -> str:
    """The largest group first. Only the main threads, or all."""
    groups: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for rank, threads in found.items():
        shown = threads if all_threads else threads[:1]
        key = tuple((on_one_line(one["thread"]), *map(on_one_line, one["frames"])) for one in shown)
        groups.setdefault(key, []).append(rank)
    lines = []
    for key, ranks in sorted(groups.items(), key=lambda item: -len(item[1])):
        head = f"{ranks_in_words(ranks)} at {_innermost(key[0][1:])}" if key else ranks_in_words(ranks)
        lines.append(head)
        for thread, *frames in key:
            lines += [f"  thread {thread}:"] if all_threads else []
            lines += [f"    {frame}" for frame in frames]
        lines.append("")
    for rank, why in silent.items():
        lines.append(f"rank {rank} {why}")
    return "\n".join(lines).rstrip("\n")


def _innermost(frames: tuple[str, ...]) -> str:
    """`train.py:88`: the innermost line of the script, or of all."""
    own = [frame for frame in frames if is_of_script(frame)]
    place = (own or list(frames) or ["?"])[-1].partition(" in ")[0]
    return place.rpartition("/")[2]
