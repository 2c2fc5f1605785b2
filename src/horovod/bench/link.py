# SPDX-License-Identifier: Apache-2.0
"""The network between hosts, as `python -m horovod.simulate forecast --link FILE` reads it.

Three figures, each with its lowest and its highest value: the rate of an allreduce of many bytes, the latency of one of
a few bytes, and how much slower this host computes while data moves.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from horovod import core as hvd
from horovod.core.wording import counted
from horovod.simulate.costs import SMALL_STEPS
from horovod.simulate.links import FORMAT, VERSION
from horovod.world.whole_files import write_whole

__all__ = ["run"]

_LARGE_BYTES = (4 << 20, 16 << 20, 64 << 20)
_SMALL_CALLS = 200
_WORK_S = 1e-3
_FEWEST_WORKS = 3


def run(arguments: argparse.Namespace) -> int:
    """Runs in every rank, one on each host; rank 0 writes the file. Returns the exit code."""
    hvd.init()
    hosts = hvd.size()
    if hosts < 2 or hvd.local_size() > 1:
        if hvd.rank() == 0:
            print(
                f"horovod.bench link: expected one rank on each of two hosts or more, got {counted(hosts, 'rank')}, "
                f"{hvd.local_size()} on this host\n"
                "hint: horovodrun -np 2 -H host1:1,host2:1 python -m horovod.bench link",
                file=sys.stderr,
            )
        return 1
    _say(f"{counted(hosts, 'host')}: {arguments.seconds:g} s for each of three figures")
    small_s = _small(arguments.seconds)
    rates = _rates(arguments.seconds)
    slower = _slower(arguments.seconds)
    if hvd.rank() == 0:
        content = _link(hosts, arguments.gbit, small_s, rates, slower)
        text = json.dumps(content, indent=1) + "\n"
        write_whole(arguments.json or "link.json", text)
        low, high = (content["gbit"] * part for part in content["utilisation"])
        print(f"rate of an allreduce  {low:.2f} to {high:.2f} Gbit/s")
        print("latency of a step     {:.0f} to {:.0f} us".format(*content["latency_us"]))
        print("compute is slower by  {:.0%} to {:.0%} while data moves".format(*content["interference"]))
        print(f"the link is in {arguments.json or 'link.json'}", flush=True)
    return 0


def _link(
    hosts: int, gbit: float | None, small_s: Sequence[float], rates: Sequence[float], slower: Sequence[float]
) -> dict[str, Any]:
    """The file. rates: Gbit/s; of a rate that is not given, the highest one is the nominal one."""
    low, high = _range(rates)
    nominal = max(gbit or high, high)
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": "tcp",
        "gbit": nominal,
        "utilisation": [low / nominal, high / nominal],
        "latency_us": [1e6 * seconds / SMALL_STEPS for seconds in _range(small_s)],
        "interference": list(_range(slower)),
        "hosts": hosts,
    }


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile: one outlier is not the network."""
    low, high = np.percentile(values, (10, 90))
    return float(low), float(high)


def _repeated(seconds: float, measure: Callable[[], float]) -> list[float]:
    """The slowest rank's value of each round. All ranks do the same number of rounds, three or more."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while True:
        everyone = hvd.allgather_object((measure(), time.monotonic() < end))
        found.append(max(value for value, _ in everyone))
        if len(found) >= 3 and not everyone[0][1]:
            return found


def _timed(array: Any) -> float:
    hvd.barrier()
    begin = time.perf_counter()
    hvd.allreduce_(array, name=f"link.{array.nbytes}", op=hvd.Sum)
    return time.perf_counter() - begin


def _small(seconds: float) -> list[float]:
    """Seconds of an allreduce of 4 bytes."""
    array = np.zeros(1, np.float32)

    def measure() -> float:
        return float(np.median([_timed(array) for _ in range(_SMALL_CALLS)]))

    measure()  # opens the connections
    return _repeated(seconds, measure)


def _rates(seconds: float) -> list[float]:
    """Gbit/s that a host sends in allreduces of a few sizes."""
    share = 2 * (hvd.size() - 1) / hvd.size()
    found = []
    for size in _LARGE_BYTES:
        array = np.zeros(size // 4, np.float32)
        _timed(array)
        times = _repeated(seconds / len(_LARGE_BYTES), lambda: _timed(array))  # noqa: B023
        found += [share * size * 8 / 1e9 / took for took in times]
    return found


def _slower(seconds: float) -> list[float]:
    """How much longer a piece of work takes while an allreduce is on its way: 0.1 for a tenth."""
    work = _work()
    array = np.zeros(_LARGE_BYTES[-1] // 4, np.float32)

    def measure() -> float:
        hvd.barrier()
        alone = float(np.median([_duration(work) for _ in range(20)]))
        handle = hvd.allreduce_async_(array, name="link.beside", op=hvd.Sum)
        times: list[float] = []
        while not hvd.poll(handle) or len(times) < _FEWEST_WORKS:
            times.append(_duration(work))
        hvd.synchronize(handle)
        return max(0.0, float(np.median(times)) / alone - 1)

    measure()
    return _repeated(seconds, measure)


def _work() -> Callable[[], object]:
    """About a millisecond of one core."""
    matrix = np.ones((96, 96), np.float32)
    times = max(1, round(_WORK_S / max(1e-6, _duration(lambda: matrix @ matrix))))

    def work() -> None:
        for _ in range(times):
            matrix @ matrix

    return work


def _duration(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)
