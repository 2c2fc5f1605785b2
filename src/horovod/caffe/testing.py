# SPDX-License-Identifier: Apache-2.0
"""Tests during training: test_iter batches, shared among the ranks; rank 0 prints the means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from horovod.caffe.layers.normalization import BatchNorm
from horovod.caffe.log import Log, number
from horovod.caffe.net import Net
from horovod.caffe.replicas import Replicas

__all__ = ["common_statistics", "log_outputs", "mean_outputs", "own_share"]


def own_share(count: int, replicas: Replicas) -> int:
    """How many of `count` batches this rank runs: the low ranks take the rest."""
    return count // replicas.size + (replicas.rank < count % replicas.size)


def mean_outputs(net: Net, count: int, replicas: Replicas) -> tuple[Tensor, float]:
    """The mean of the outputs' values, and of the loss, over `count` batches of all ranks."""
    # The loss stands behind the outputs: one reduction for both.
    total = torch.zeros(sum(map(net.count, net.outputs)) + 1, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(own_share(count, replicas)):
            net.forward()
            values = [net.blobs[name].double().reshape(-1) for name in net.outputs]
            total += torch.cat([*values, net.loss().double().reshape(1)])
    total = replicas.total(total, "caffe.test") / count
    return total[:-1], float(total[-1])


@contextmanager
def common_statistics(net: Net, replicas: Replicas) -> Iterator[None]:
    """Every rank tests with the mean of the ranks' BatchNorm statistics; each gets its own back afterwards."""
    layers = [layer for layer in net.layers if isinstance(layer, BatchNorm)] if replicas.size > 1 else []
    blobs = [(f"caffe.{layer.name}.{index}", blob) for layer in layers for index, blob in enumerate(layer.blobs)]
    own = [blob.clone() for _, blob in blobs]
    for name, blob in blobs:
        blob.copy_(replicas.mean(blob, name))
    yield
    for (_, blob), values in zip(blobs, own, strict=True):
        blob.copy_(values)


def log_outputs(log: Log, net: Net, values: Tensor, word: str) -> None:
    """A numbered line for each value of each output."""
    position = 0
    for name in net.outputs:
        weight = net.loss_weight(name)
        for value in values[position : position + net.count(name)].tolist():
            note = f" (* {number(weight)} = {number(weight * value)} loss)" if weight else ""
            log.info(f"    {word} net output #{position}: {name} = {number(value)}{note}")
            position += 1
