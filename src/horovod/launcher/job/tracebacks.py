# SPDX-License-Identifier: Apache-2.0
"""Tracebacks on the ranks' stderr, held for a moment, so that equal ones of several ranks are shown once."""

from __future__ import annotations

import dataclasses
import re

__all__ = ["HeldTracebacks", "ranges"]

_BEGIN = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_QUIET_S = 0.5  # after its last line
_LONGEST = 1 << 16  # characters


@dataclasses.dataclass
class _Held:
    text: str
    until: float


class HeldTracebacks:
    """By rank, what has come since a line began with `Traceback`."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._held

    def take(self, rank: int, text: str, is_line_start: bool, now: float) -> str:
        """Holds a traceback, and returns the part of `text` that can be shown now."""
        held = self._held.get(rank)
        if held is None:
            found = _BEGIN.search(text)
            if found is None or (found.start() == 0 and not is_line_start):
                return text
            self._held[rank] = _Held(text[found.start() :], now + _QUIET_S)
            return text[: found.start()]
        held.text += text
        held.until = now + _QUIET_S
        if len(held.text) > _LONGEST:
            return self._held.pop(rank).text
        return ""

    def next_time(self) -> float | None:
        return min((held.until for held in self._held.values()), default=None)

    def release(self, now: float | None = None) -> list[tuple[list[int], str]]:
        """Texts with the ranks that have written them: those that are due, with all equal ones; None: all of them."""
        by_text: dict[str, list[int]] = {}
        for rank in sorted(self._held):
            by_text.setdefault(self._held[rank].text, []).append(rank)
        released = [
            (ranks, text)
            for text, ranks in by_text.items()
            if now is None or any(self._held[rank].until <= now for rank in ranks)
        ]
        for ranks, _ in released:
            for rank in ranks:
                del self._held[rank]
        return released


def ranges(numbers: list[int]) -> str:
    """For example `0-2,5`; `numbers` are sorted."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
