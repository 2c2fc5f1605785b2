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
from horovod.bench.record import refused
from horovod.core.telemetry.core_waits import LEAST_TOLD, WaitShare, too_busy
from horovod.core.wording import counted, tell
from horovod.simulate.costs import SMALL_STEPS
from horovod.simulate.links import FORMAT, LIMITS, VERSION
from horovod.world.files.whole import write_whole

__all__ = ["run"]

_LARGE_BYTES = (4 << 20, 16 << 20, 64 << 20)
_SMALL_CALLS = 200
_WORK_S = 1e-3
_WARM_UP_CALLS = 100
_ALONE_S = 0.03


def run(arguments: argparse.Namespace) -> int:
    """Runs in every rank, one on each host; rank 0 writes the file. Returns the exit code."""
    hvd.init()
    hosts = hvd.size()
    if hosts < 2 or hvd.local_size() > 1:
        return refused(
            f"link: expected one rank on each of two hosts or more, got {counted(hosts, 'rank')}, {hvd.local_size()} "
            "on this host\nhint: horovodrun -np 2 -H host1:1,host2:1 python -m horovod.bench link"
        )
    _say(f"{counted(hosts, 'host')}: {arguments.seconds:g} s for each of three figures")
    waits = WaitShare()
    small_s = _small(arguments.seconds)
    rates = _rates(arguments.seconds)
    shares = hvd.allgather_object(waits.now())
    waited = max(shares)
    if waited > LEAST_TOLD:
        _say(
            f"warning: rank {shares.index(waited)} waited for a core {100 * waited:.0f}% of its time: "
            f"{too_busy(waited)}\nhint: measure while nothing else runs on the hosts"
        )
    slower = _slower(arguments.seconds)
    if hvd.rank() == 0:
        content, note = _link(hosts, arguments.gbit, small_s, rates, slower)
        content["core_wait"] = round(waited, 3)
        low, high = (content["gbit"] * part for part in content["utilisation"])
        print(f"rate of an allreduce  {low:.2f} to {high:.2f} Gbit/s")
        if note is not None:
            tell(note, sys.stdout)
        print("latency of a step     {:.0f} to {:.0f} us".format(*content["latency_us"]))
        print("compute is slower by  {:.0%} to {:.0%} while data moves".format(*content["interference"]), flush=True)
        write_whole(arguments.json, json.dumps(content, indent=1) + "\n")
        tell(f"the link is in {arguments.json}", sys.stdout)
    return 0


def _link(
    hosts: int, gbit: float | None, small_s: Sequence[float], rates: Sequence[float], slower: Sequence[float]
) -> tuple[dict[str, Any], str | None]:
    """The file, and what is to be said of the nominal rate. rates: Gbit/s.

    The highest rate is the nominal one if none is given, or one that a file cannot have beside the rates.
    """
    low, high = _range(rates)
    fits = gbit is not None and high <= gbit <= low / LIMITS["utilisation"][0]
    nominal = gbit if gbit is not None and fits else high
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "network": "tcp",
        "gbit": nominal,
        "utilisation": [low / nominal, high / nominal],
        "latency_us": [1e6 * seconds / SMALL_STEPS for seconds in _range(small_s)],
        "interference": list(_range(slower)),
        "hosts": hosts,
    }
    if gbit is None or fits:
        return content, None
    return content, f"--gbit {gbit:g} does not fit this rate: the file has {high:.2f} in its place"


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
    return _took(lambda: hvd.allreduce_(array, name=f"link.{array.nbytes}", op=hvd.Sum))


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
    """How much longer a piece of work takes while an allreduce is on its way: 0.1 for a tenth.

    The time of all pieces counts, never a median: the threads that move data interrupt few of them, for long.
    """
    work = _work()
    array = np.zeros(_LARGE_BYTES[-1] // 4, np.float32)

    def measure() -> float:
        before = _alone(work)
        hvd.barrier()
        handle = hvd.allreduce_async_(array, name="link.beside", op=hvd.Sum)
        beside = _piece(work, lambda: hvd.poll(handle))
        hvd.synchronize(handle)
        alone = (before + _alone(work)) / 2  # a machine drifts meanwhile
        return min(max(0.0, beside / alone - 1), LIMITS["interference"][1])

    measure()
    return _repeated(seconds, measure)


def _alone(work: Callable[[], object]) -> float:
    hvd.barrier()  # no data moves on any host
    end = time.perf_counter() + _ALONE_S
    return _piece(work, lambda: time.perf_counter() > end)


def _piece(work: Callable[[], object], is_over: Callable[[], bool]) -> float:
    """Seconds of a piece of work, of those that were done until it is over."""
    begin = time.perf_counter()
    pieces = 0
    while not pieces or not is_over():
        work()
        pieces += 1
    return (time.perf_counter() - begin) / pieces


def _work() -> Callable[[], object]:
    """About a millisecond of one core."""
    matrix = np.ones((96, 96), np.float32)
    calls = 1

    def work() -> None:
        for _ in range(calls):
            matrix @ matrix

    # The first calls are slow, and so is one that is interrupted.
    quickest = min(_took(work) for _ in range(_WARM_UP_CALLS))
    calls = max(1, round(_WORK_S / quickest))
    return work


def _took(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _say(text: str) -> None:
    if hvd.rank() == 0:
        tell(text, sys.stdout)
