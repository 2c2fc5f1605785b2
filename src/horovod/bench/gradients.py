# SPDX-License-Identifier: Apache-2.0
"""One training step's reductions: ResNet-50's 161 float32 gradients, last layer first as backward makes them.

Horovod starts all of them and waits for all. Gloo does so too (gloo_each), and once more the way that
torch's DistributedDataParallel does it: copied into buckets of 25 MiB, reduced, copied back (gloo_buckets).
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

from horovod.bench.paired import RATIO_NOTE, Buffers, gloo, measure, operations, ratio
from horovod.bench.record import Session

__all__ = ["resnet50_shapes", "run"]

BUCKET_BYTES = 25 << 20


def resnet50_shapes(divisor: int = 1) -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 parameters, its channels divided.

    Source: He et al. 2015, table 1, with biases and scales of batch normalization.
    """
    shapes: list[tuple[int, ...]] = []

    def convolution(inputs: int, outputs: int, kernel: int) -> None:
        shapes.extend([(outputs, inputs, kernel, kernel), (outputs,), (outputs,)])

    convolution(3, 64 // divisor, 7)
    inputs = 64 // divisor
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        width //= divisor
        for block in range(blocks):
            convolution(inputs, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*shapes, (1000, inputs), (1000,)]


def run(arguments: argparse.Namespace) -> int:
    """Runs in every rank; rank 0 prints the table and writes the record. Returns the exit code."""
    session = Session(arguments.json)
    hvd = operations()
    counts = [math.prod(shape) for shape in reversed(resnet50_shapes())]
    buffers = Buffers(counts)

    def all_at_once() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=f"gradient.{index}", op=hvd.Sum)
            for index, tensor in enumerate(buffers.tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    with gloo(not arguments.no_gloo) as (dist, why_not):
        session.begin(why_not)
        sides = {"hvd": all_at_once}
        if dist is not None:
            sides |= _gloo_sides(dist, buffers.tensors)
        measured = measure(buffers, sides, arguments.rounds, arguments.seconds)
        session.rows.append({"tensors": len(counts), "bytes": 4 * sum(counts), **measured})
        session.print(f"{'side':>14} {'ms':>9} {'side/hvd':>9}")
        for name, seconds in measured["seconds"].items():
            quotient = ratio(measured["seconds"], name)
            session.print(f"{name:>14} {statistics.median(seconds) * 1e3:>9.2f} {quotient:>9.2f}")
        session.print(RATIO_NOTE)
        return session.end()


def _gloo_sides(dist: Any, tensors: list[Any]) -> dict[str, Any]:
    import torch

    def each() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    groups: list[list[Any]] = [[]]
    for tensor in tensors:
        if sum(4 * one.numel() for one in groups[-1]) + 4 * tensor.numel() > BUCKET_BYTES and groups[-1]:
            groups.append([])
        groups[-1].append(tensor)
    buckets = [torch.empty(sum(tensor.numel() for tensor in group)) for group in groups]
    views = [bucket.split([one.numel() for one in group]) for bucket, group in zip(buckets, groups, strict=True)]

    def bucketed() -> None:
        works = []
        for bucket, group in zip(buckets, groups, strict=True):
            torch.cat(group, out=bucket)
            works.append(dist.all_reduce(bucket, async_op=True))
        for work, group, pieces in zip(works, groups, views, strict=True):
            work.wait()
            torch._foreach_copy_(group, pieces)

    return {"gloo_each": each, "gloo_buckets": bucketed}
