# SPDX-License-Identifier: Apache-2.0
"""What a process holds, and whether it grows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

PARTS = 8


def held_kib() -> int:
    """This process's memory that a leak would be in: anonymous and shared pages. Those of mapped files come and go."""
    status = Path("/proc/self/status").read_text()
    return sum(int(kib) for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE))


def steady_growth_kib(samples: Sequence[int]) -> float:
    """The median growth of the eighths of `samples` (KiB, taken in equal distances), times eight. A leak is in each of
    them; what an allocator takes or gives back once, in megabytes now and then, is in one or two."""
    ends = [samples[part * (len(samples) - 1) // PARTS] for part in range(PARTS + 1)]
    return PARTS * statistics.median(later - earlier for earlier, later in pairwise(ends))
