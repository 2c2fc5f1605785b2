# SPDX-License-Identifier: Apache-2.0
"""How long each layer takes, forward and backward."""

from __future__ import annotations

import time
from collections import defaultdict

import torch
from torch import Tensor

from horovod.caffe.layers import Layer
from horovod.caffe.log import Log, number
from horovod.caffe.net import Net

__all__ = ["time_net"]


def time_net(net: Net, iterations: int, log: Log, backward: bool) -> None:
    """Runs the net layer by layer and prints the mean times."""
    log.info("Performing Forward")
    net.forward()
    log.info(f"Initial loss: {number(float(net.objective()))}")
    log.info("*** Benchmark begins ***")
    log.info(f"Testing for {iterations} iterations.")
    forward_s: dict[Layer, float] = defaultdict(float)
    backward_s: dict[Layer, float] = defaultdict(float)
    for iteration in range(iterations):
        start = time.perf_counter()
        _one_pass(net, forward_s, backward_s if backward else None)
        word = "forward-backward" if backward else "forward"
        log.info(f"Iteration: {iteration + 1} {word} time: {_ms(time.perf_counter() - start)} ms.")
    log.info("Average time per layer: ")
    for layer in net.layers:
        for word, times in (("forward", forward_s), ("backward", backward_s)):
            if word == "forward" or backward:
                log.info(f"{layer.name:>10}\t{word}: {_ms(times[layer] / iterations)} ms.")
    sums = [sum(forward_s.values()) / iterations, sum(backward_s.values()) / iterations]
    log.info(f"Average Forward pass: {_ms(sums[0])} ms.")
    if backward:
        log.info(f"Average Backward pass: {_ms(sums[1])} ms.")
        log.info(f"Average Forward-Backward: {_ms(sum(sums))} ms.")
    log.info(f"Total Time: {_ms(sum(sums) * iterations)} ms.")
    log.info("*** Benchmark ends ***")


def _ms(seconds: float) -> str:
    return number(seconds * 1000)


def _one_pass(net: Net, forward_s: dict[Layer, float], backward_s: dict[Layer, float] | None) -> None:
    """Each layer has a graph of its own: its bottoms are cut off from the layers before it."""
    blobs: dict[str, Tensor] = {}
    done: list[tuple[Layer, list[Tensor], list[Tensor]]] = []
    with torch.set_grad_enabled(backward_s is not None):
        for layer in net.layers:
            before = [blobs[name] for name in layer.proto.bottom]
            bottoms = [blob.detach().requires_grad_(blob.requires_grad) for blob in before]
            # A layer in place may not write into a leaf of its graph.
            overwrites, layer.overwrites = layer.overwrites, False
            start = time.perf_counter()
            tops = net.run(layer, list(bottoms))
            forward_s[layer] += time.perf_counter() - start
            layer.overwrites = overwrites
            done.append((layer, bottoms, tops))
            blobs.update(zip(layer.proto.top, tops, strict=True))
    if backward_s is None:
        return
    for layer, bottoms, tops in reversed(done):
        start = time.perf_counter()
        wanted = [one for one in (*bottoms, *layer.blobs) if one.requires_grad]
        sources = [top for top in tops if top.requires_grad]
        if wanted and sources:
            torch.autograd.grad(sources, wanted, [torch.ones_like(top) for top in sources], allow_unused=True)
        backward_s[layer] += time.perf_counter() - start
