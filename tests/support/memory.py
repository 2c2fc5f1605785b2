# SPDX-License-Identifier: Apache-2.0
"""What a process holds, and whether it grows."""

from __future__ import annotations

import ctypes
import re
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

PARTS = 8


def held_kib() -> int:
    """This process's memory that a leak would be in: anonymous and shared pages. Those of mapped files come and go.
    What the allocator keeps without use is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return sum(int(kib) for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE))


def steady_growth_kib(samples: Sequence[int]) -> float:
    """How much `samples` (KiB, taken in equal distances) grow from their first to their last, as a leak would.

    That is the smaller of two figures, since a leak shows in both: the median growth of the eighths, times eight, which
    a single large step does not change; and the median of the last eighth less that of the first, in which ups and
    downs cancel.
    """
    ends = [part * (len(samples) - 1) // PARTS for part in range(PARTS + 1)]
    by_eighths = PARTS * statistics.median(samples[later] - samples[earlier] for earlier, later in pairwise(ends))
    first, last = samples[: ends[1] + 1], samples[ends[-2] :]
    return float(min(by_eighths, statistics.median(last) - statistics.median(first)))
