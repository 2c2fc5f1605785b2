# SPDX-License-Identifier: Apache-2.0
"""Two sides of one measurement, taken in turns on the same buffers, every result checked.

Words. A *call* is one side's whole work, timed alone; the buffers are filled again before it, outside of the time. A
*round* is a number of calls of one side and then of the other (A B A B); its time is the median of its calls, the
slowest rank's. The ratio of two sides is the median over rounds of their quotients: machines drift, pairs drift less.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from horovod import core as hvd
from horovod.core import context

__all__ = ["RATIO_NOTE", "Buffers", "gloo", "measure", "operations", "ratio"]

# Printed below each table that has one.
RATIO_NOTE = "A ratio is the median of the rounds' own ratios; it is not the quotient of the medians beside it."

MAX_CALLS = 2000

Array = np.ndarray[Any, Any]


def operations() -> Any:
    """The package whose operations are measured: horovod.torch if torch is there, else horovod.core."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return hvd
    import horovod.torch

    return horovod.torch


class Buffers:
    """Float32 buffers as both sides get them: ordinary tensors if torch is there, else arrays.

    Each fill has other data than the one before, so that a result left there by an earlier call is a wrong one.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.tensors: list[Any]
        self._arrays: list[Array]
        try:
            import torch
        except ImportError:
            self._arrays = [np.empty(count, np.float32) for count in counts]
            self.tensors = list(self._arrays)
        else:
            self.tensors = [torch.empty(count) for count in counts]
            self._arrays = [tensor.numpy() for tensor in self.tensors]
        self._added = 0  # on all ranks the same: they fill equally often

    def fill(self) -> None:
        self._added = (self._added + 1) % 8
        for array in self._arrays:
            array.fill(hvd.rank() + 1 + self._added)

    def check(self, ends_only: bool) -> None:
        """Raises AssertionError if a sum over the ranks is wrong; looks at the buffers' ends alone, or at all."""
        expected = hvd.size() * (hvd.size() + 1) / 2 + hvd.size() * self._added
        for array in self._arrays:
            if array[0] != expected or array[-1] != expected or not (ends_only or np.all(array == expected)):
                raise AssertionError(f"rank {hvd.rank()}: expected {expected} in all {array.size} elements")


def measure(buffers: Buffers, sides: Mapping[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, Any]:
    """Runs in every rank.

    Returns, by side, the calls of a round (to last about `seconds`) and the rounds' times in seconds.
    """
    # Warm-up also says how many calls make a round; all ranks must make equally many.
    calls = {}
    for name, call in sides.items():
        longest = max(_round(buffers, call, 3))
        calls[name] = int(hvd.broadcast_object(min(MAX_CALLS, max(3, int(seconds / longest))), 0))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            mine = statistics.median(_round(buffers, call, calls[name]))
            times[name].append(float(hvd.allreduce(np.array(mine), op=hvd.Max)))
    return {"calls": calls, "seconds": times}


def _round(buffers: Buffers, call: Callable[[], object], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        buffers.fill()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
        buffers.check(ends_only=True)
    buffers.check(ends_only=False)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], peer: str) -> float:
    """How many times longer `peer` took than Horovod."""
    return statistics.median(b / a for a, b in zip(seconds["hvd"], seconds[peer], strict=True))


@contextlib.contextmanager
def gloo(wanted: bool) -> Iterator[tuple[Any, str]]:
    """torch.distributed with Gloo started on all ranks, or None and the reason why there is none."""
    if not wanted:
        yield None, "--no-gloo"
        return
    try:
        import torch.distributed as dist
    except ImportError:
        yield None, "torch is not installed"
        return
    rendezvous = context.current().world.rendezvous
    address = rendezvous.local_address() if rendezvous is not None else "127.0.0.1"
    store = dist.TCPStore(address, 0, hvd.size(), is_master=True, wait_for_workers=False) if hvd.rank() == 0 else None
    address, port = hvd.broadcast_object((address, store.port) if store is not None else None, 0)
    store = store or dist.TCPStore(address, port, hvd.size(), is_master=False)
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    try:
        yield dist, ""
    finally:
        hvd.barrier()
        dist.destroy_process_group()
