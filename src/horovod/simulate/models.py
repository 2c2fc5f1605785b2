# SPDX-License-Identifier: Apache-2.0
"""Tables of layers, from the papers' architectures, for forecasts without a run of the script."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["MODELS", "Layer", "layers_of"]


class Layer(NamedTuple):
    """Parameters that get one gradient; `work`: multiply-adds of the layer's forward pass for one sample."""

    name: str
    parameters: int
    work: int


class _Network:
    """Builds a convolutional network from its input on: `side` is the width of the image there, in pixels."""

    def __init__(self, side: int, channels: int) -> None:
        self.side, self.channels = side, channels
        self.layers: list[Layer] = []

    def add(self, kind: str, parameters: int, work: int) -> None:
        self.layers.append(Layer(f"{len(self.layers)}.{kind}", parameters, work))

    def convolution(
        self,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padded: bool = True,
        inputs: int | None = None,
        beside: bool = False,
        normalized: bool = True,
    ) -> None:
        """beside: the layer is on a side way, and the main way goes on from the same input."""
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        side = -(-self.side // stride) if padded else (self.side - max(height, width)) // stride + 1
        weights = height * width * (inputs or self.channels) * outputs
        self.add("convolution", weights, weights * side * side)
        if normalized:
            self.norm(outputs)
        else:
            self.add("bias", outputs, 0)
        if not beside:
            self.side, self.channels = side, outputs

    def norm(self, width: int) -> None:
        self.add("scale", width, 0)
        self.add("bias", width, 0)

    def pool(self) -> None:
        self.side = (self.side - 3) // 2 + 1

    def dense(self, inputs: int, outputs: int, rows: int = 1) -> None:
        self.add("dense", inputs * outputs, inputs * outputs * rows)
        self.add("bias", outputs, 0)


def _vgg16() -> list[Layer]:
    network = _Network(224, 3)
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            network.convolution(width, 3, normalized=False)
        network.side //= 2
    for inputs, outputs in ((25088, 4096), (4096, 4096), (4096, 1000)):
        network.dense(inputs, outputs)
    return network.layers


def _resnet(blocks: tuple[int, ...]) -> list[Layer]:
    network = _Network(224, 3)
    network.convolution(64, 7, 2)
    network.side //= 2
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if block == 0 and stage else 1
            if block == 0:
                network.convolution(4 * width, 1, stride, beside=True)
            network.convolution(width, 1)
            network.convolution(width, 3, stride)
            network.convolution(4 * width, 1)
    network.dense(2048, 1000)
    return network.layers


_Branch = tuple[tuple[int, int | tuple[int, int]], ...]


def _branches(network: _Network, *branches: _Branch, pooled: bool = False, halved: tuple[int, ...] = ()) -> None:
    """Branches side by side, whose outputs are joined. halved: those whose last layer has stride 2."""
    side, channels, outputs = network.side, network.channels, 0
    for place, branch in enumerate(branches):
        inputs = channels
        for depth, (width, kernel) in enumerate(branch):
            network.side = side
            last = place in halved and depth == len(branch) - 1
            network.convolution(width, kernel, 2 if last else 1, padded=not last, inputs=inputs)
            inputs = width
        outputs += inputs
    network.side = (side - 3) // 2 + 1 if halved else side
    network.channels = outputs + (channels if pooled else 0)


def _inception3() -> list[Layer]:
    network = _Network(299, 3)
    network.convolution(32, 3, 2, padded=False)
    network.convolution(32, 3, padded=False)
    network.convolution(64, 3)
    network.pool()
    network.convolution(80, 1, padded=False)
    network.convolution(192, 3, padded=False)
    network.pool()
    for pool in (32, 64, 64):
        _branches(network, ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)), ((pool, 1),))
    _branches(network, ((384, 3),), ((64, 1), (96, 3), (96, 3)), pooled=True, halved=(0, 1))
    for width in (128, 160, 160, 192):
        flat, tall = (width, (1, 7)), (width, (7, 1))
        _branches(
            network,
            ((192, 1),),
            ((width, 1), flat, (192, (7, 1))),
            ((width, 1), tall, flat, tall, (192, (1, 7))),
            ((192, 1),),
        )
    seven: _Branch = ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3))
    _branches(network, ((192, 1), (320, 3)), seven, pooled=True, halved=(0, 1))
    for _ in range(2):
        wide: _Branch = ((448, 1), (384, 3), (384, (1, 3)))
        _branches(network, ((320, 1),), ((384, 1), (384, (1, 3))), wide, ((192, 1),))
        for _ in range(2):
            network.convolution(384, (3, 1), inputs=384, beside=True)
        network.channels = 2048
    network.dense(2048, 1000)
    return network.layers


def _bert_base(tokens: int = 128) -> list[Layer]:
    network = _Network(0, 0)
    network.add("embedding", (30522 + 512 + 2) * 768, 768 * tokens)
    for _ in range(12):
        for inputs, outputs in (*((768, 768),) * 4, (768, 3072), (3072, 768)):
            network.dense(inputs, outputs, tokens)
        network.norm(768)
        network.norm(768)
    network.add("pooler", 768 * 768, 768 * 768)
    network.add("head", 768 * 768, 768 * 768 * 20)
    return network.layers


# Sources: Szegedy et al. 2015 (Inception V3), He et al. 2015 (ResNet), Simonyan and Zisserman 2014 (VGG), Devlin et al.
# 2018 (BERT).
MODELS: dict[str, Callable[[], list[Layer]]] = {
    "bert-base": _bert_base,
    "inception3": _inception3,
    "resnet50": lambda: _resnet((3, 4, 6, 3)),
    "resnet101": lambda: _resnet((3, 4, 23, 3)),
    "vgg16": _vgg16,
}


@functools.cache
def layers_of(name: str) -> tuple[Layer, ...]:
    """The layers of a model of MODELS, from input to output. Raises KeyError."""
    return tuple(MODELS[name]())
