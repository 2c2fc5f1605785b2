# SPDX-License-Identifier: Apache-2.0
"""Layers that normalize: LRN, BatchNorm, MVN, Softmax."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import Layer, canonical_axis, filler, layer

__all__ = ["BatchNorm"]


@layer("LRN")
class LRN(Layer):
    """x / (k + alpha / n * sum of squares) ^ beta, over n channels, or within a channel over n x n values (k is 1)."""

    def setup(self, bottoms: list[Tensor]) -> None:
        if self.proto.lrn_param.local_size % 2 == 0:
            raise CaffeError(f"local_size must be odd, got {self.proto.lrn_param.local_size}")

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param = bottoms[0], self.proto.lrn_param
        size = param.local_size
        if param.norm_region == param.ACROSS_CHANNELS:
            return [F.local_response_norm(x, size, param.alpha, param.beta, param.k)]
        mean = F.avg_pool2d(x * x, size, 1, (size - 1) // 2)
        return [x * (1 + param.alpha * mean) ** -param.beta]


@layer("BatchNorm")
class BatchNorm(Layer):
    """Blobs: the sum of the means, the sum of the variances, and the number they have to be divided by."""

    fresh = True
    learns = False
    scale: Layer | None = None  # the Scale layer that is done at the same time

    def setup(self, bottoms: list[Tensor]) -> None:
        param, shape = self.proto.batch_norm_param, bottoms[0].shape
        self.uses_blobs = param.use_global_stats if param.HasField("use_global_stats") else not self.training
        channels = shape[1] if len(shape) > 1 else 1
        for size in (channels, channels, 1):
            self.add_blob([size], filler(0))

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param = bottoms[0], self.proto.batch_norm_param
        blobs = self.scale.blobs if self.scale is not None else []
        weight, bias = blobs[0] if blobs else None, blobs[1] if len(blobs) > 1 else None
        shape = x.shape
        if x.ndim == 1:
            x = x[:, None]
        if self.uses_blobs:
            mean, variance = self.statistics()
            top = F.batch_norm(x, mean, variance, weight, bias, False, 0.0, param.eps)
        else:
            top = self._by_batch(x, weight, bias)
        return [top.view(shape)]

    def statistics(self) -> tuple[Tensor, Tensor]:
        """The true mean and variance."""
        mean, variance, count = self.blobs
        factor = torch.where(count == 0, torch.zeros_like(count), 1 / count)
        return mean * factor, variance * factor

    def _by_batch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        param = self.proto.batch_norm_param
        # With momentum 1 torch leaves this batch's mean and its unbiased variance, m / (m - 1) of the biased one.
        mean, variance = torch.zeros_like(self.blobs[0]), torch.zeros_like(self.blobs[1])
        if x.numel() == x.shape[1]:  # one value a channel: its variance is 0, and torch refuses
            mean, biased = x.detach().reshape(-1), variance
            top = F.batch_norm(x, mean.detach(), biased, weight, bias, False, 0.0, param.eps)
        else:
            top = F.batch_norm(x, mean, variance, weight, bias, True, 1.0, param.eps)
        with torch.no_grad():
            for blob, value in zip(self.blobs, (mean, variance, 1.0), strict=True):
                blob.mul_(param.moving_average_fraction).add_(value)
        return top


@layer("MVN")
class MVN(Layer):
    """Mean 0 and, with normalize_variance, variance 1, of each channel or across channels."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param = bottoms[0], self.proto.mvn_param
        axes = list(range(1 if param.across_channels else 2, x.ndim))
        x = x - x.mean(axes, keepdim=True)
        if param.normalize_variance:
            x = x / ((x * x).mean(axes, keepdim=True).sqrt() + param.eps)
        return [x]


@layer("Softmax")
class Softmax(Layer):
    """Probabilities along an axis."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return [bottoms[0].softmax(canonical_axis(self.proto.softmax_param.axis, bottoms[0].ndim))]
