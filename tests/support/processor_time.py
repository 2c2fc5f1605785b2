# SPDX-License-Identifier: Apache-2.0
"""Processor seconds of each test: of this process, and of all processes that it has started.

What tests share (a fork server's imports) is charged to no test: `shared()` takes it out. A test's worlds are charged
to the test that starts them. HVD_PROCESSOR_TIME, which tools/step sets, names a file for the figures, which
tools/processor-time shows.

A daemon that has left its parent is not seen: Spark's and Ray's tests cost more than is said here.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import seconds_of_descendants

_SHORT_S = 0.05  # a test as short as this is not looked into: the next one is charged with it


def used_so_far() -> float:
    """Processor seconds of this process and its descendants, also of those that they have waited for."""
    return sum(os.times()[:4]) + sum(seconds_of_descendants().values())


class ProcessorTime:
    """A plugin of pytest."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._tests: dict[str, tuple[float, str | None]] = {}  # by name: seconds, and why it is slow
        self._shared_s = 0.0
        self._seen_s = used_so_far()
        self._seen_at = time.monotonic()
        self._collected_s = 0.0

    def _used(self) -> float:
        """Since the last call, without what tests share."""
        now_s = used_so_far() - self._shared_s
        used_s, self._seen_s, self._seen_at = now_s - self._seen_s, now_s, time.monotonic()
        return used_s

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """What is used in the block is charged to no test."""
        before_s = used_so_far()
        yield
        self._shared_s += used_so_far() - before_s

    def pytest_collection_finish(self) -> None:
        self._collected_s = self._used()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        yield
        if time.monotonic() - self._seen_at > _SHORT_S:
            mark = item.get_closest_marker("slow")
            self._tests[item.nodeid] = (self._used(), str(mark.args[0]) if mark and mark.args else None)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._file is None:
            return
        report = {
            "tests": {
                name: {"seconds": round(seconds, 2), "slow": why} for name, (seconds, why) in self._tests.items()
            },
            "collected": round(self._collected_s, 2),
            "shared": round(self._shared_s, 2),
            "all": round(used_so_far(), 2),
        }
        Path(self._file).parent.mkdir(parents=True, exist_ok=True)
        Path(self._file).write_text(json.dumps(report, indent=1))


plugin = ProcessorTime(os.environ.pop("HVD_PROCESSOR_TIME", None))  # tests may run pytest themselves
shared = plugin.shared
