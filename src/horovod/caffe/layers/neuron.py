# SPDX-License-Identifier: Apache-2.0
"""Layers that treat each value by itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import Layer, filler, layer

__all__ = ["Dropout", "ReLU"]


class _Neuron(Layer):
    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return [self.value(bottoms[0])]

    def value(self, x: Tensor) -> Tensor:
        """The top for the bottom `x`."""
        raise NotImplementedError


@layer("ReLU")
class ReLU(_Neuron):
    """max(x, 0), or negative_slope * x below zero."""

    def value(self, x: Tensor) -> Tensor:
        slope = self.proto.relu_param.negative_slope
        if slope:
            return F.leaky_relu(x, slope)
        return torch.relu_(x) if self.overwrites else torch.relu(x)


@layer("Dropout")
class Dropout(_Neuron):
    """Training drops values with probability dropout_ratio, and scales the others up. Testing changes nothing."""

    def setup(self, bottoms: list[Tensor]) -> None:
        self.ratio = self.proto.dropout_param.dropout_ratio
        if not 0 <= self.ratio < 1:
            raise CaffeError(f"dropout_ratio must be at least 0 and less than 1, got {self.ratio:g}")

    def value(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.ratio, training=self.training)


@layer("PReLU")
class PReLU(_Neuron):
    """Blob: the slope below zero, one a channel, or one for all with channel_shared."""

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.prelu_param
        shape = [] if param.channel_shared else [bottoms[0].shape[1]]
        self.add_blob(shape, param.filler if param.HasField("filler") else filler(0.25))

    def value(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.blobs[0].view(-1))


@layer("Sigmoid")
class Sigmoid(_Neuron):
    """1 / (1 + exp(-x))."""

    def value(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


@layer("TanH")
class TanH(_Neuron):
    """The hyperbolic tangent."""

    def value(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


@layer("AbsVal")
class AbsVal(_Neuron):
    """The absolute value."""

    def value(self, x: Tensor) -> Tensor:
        return x.abs()


@layer("BNLL")
class BNLL(_Neuron):
    """log(1 + exp(x))."""

    def value(self, x: Tensor) -> Tensor:
        return F.softplus(x, threshold=50)


@layer("ELU")
class ELU(_Neuron):
    """x, or alpha * (exp(x) - 1) below zero."""

    def value(self, x: Tensor) -> Tensor:
        return F.elu(x, self.proto.elu_param.alpha)


@layer("Swish")
class Swish(_Neuron):
    """x * sigmoid(beta * x)."""

    def value(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.proto.swish_param.beta * x)


@layer("Clip")
class Clip(_Neuron):
    """Values between min and max."""

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.clip_param
        if not (param.HasField("min") and param.HasField("max")):
            raise CaffeError("clip_param needs min and max")

    def value(self, x: Tensor) -> Tensor:
        return x.clamp(self.proto.clip_param.min, self.proto.clip_param.max)


@layer("Threshold")
class Threshold(_Neuron):
    """1 above the threshold, else 0; no gradient."""

    def value(self, x: Tensor) -> Tensor:
        return (x > self.proto.threshold_param.threshold).to(x.dtype)


def _logarithm(param: Any) -> float:
    """The natural logarithm of `base`; -1 stands for e."""
    if param.base == -1:
        return 1.0
    if param.base <= 0:
        raise CaffeError(f"base must be positive, or -1 for e; got {param.base:g}")
    return math.log(param.base)


@layer("Exp")
class Exp(_Neuron):
    """base ^ (shift + scale * x)."""

    def value(self, x: Tensor) -> Tensor:
        param = self.proto.exp_param
        return torch.exp((x * param.scale + param.shift) * _logarithm(param))


@layer("Log")
class Log(_Neuron):
    """The logarithm to `base` of shift + scale * x."""

    def value(self, x: Tensor) -> Tensor:
        param = self.proto.log_param
        return torch.log(x * param.scale + param.shift) / _logarithm(param)


@layer("Power")
class Power(_Neuron):
    """(shift + scale * x) ^ power."""

    def value(self, x: Tensor) -> Tensor:
        param = self.proto.power_param
        if param.scale != 1:
            x = x * param.scale
        if param.shift != 0:
            x = x + param.shift
        return x if param.power == 1 else x**param.power
