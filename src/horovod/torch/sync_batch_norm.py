# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm: batch normalization over the batches of all ranks.

No step of a gradient's way: its statistics travel in forward and the sums of its gradient in backward, both as blocking
operations of a few numbers per channel.

Each rank sends its count, mean and sum of squared deviations by channel, in float64. They are combined by the formula
of Chan, Golub and LeVeque, "Algorithms for computing the sample variance: analysis and recommendations", The American
Statistician 37 (1983), section 2, for any number of parts: with n = sum n_i and m = sum n_i m_i / n,

    M2 = sum M2_i + sum n_i (m_i - m)^2

Sums of squares would cancel if the mean is large beside the deviation. All ranks combine the same rows in the same
order, so their statistics are equal to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.core.native import SYNC, Sum
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.torch.tensors import collectives

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm over the batches of all ranks of `process_set` as if they were one.

    Each rank may have a different number of rows, also none. Input (N, C, ...) with C = `num_features`, on any device.

    It is local in eval(), with one rank, and on a rank that is not a member of the set. The gradients of weight and
    bias are this rank's part of the sum, as those of any other layer: DistributedOptimizer reduces them. Blocks in
    forward and, if the input needs a gradient, in backward until every rank has got there. Raises ValueError for an
    input of another shape, and if all ranks together have one value per channel; HorovodInternalError if a rank is lost
    or another rank's input is refused.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_process_set(process_set)
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected an input of shape (N, {self.num_features}, ...), got {tuple(input.shape)}"
            )
        if not input.is_floating_point():
            raise ValueError(f"SyncBatchNorm: expected a floating point input, got {input.dtype}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.process_set.has_peers():
            return super().forward(input)
        # By its length, so that layers of one width share a name and no name changes its shape.
        name = f"sync_batch_norm.statistics.{self.num_features}"
        try:
            self._check_input_dim(input)
        except ValueError as error:
            collectives.refuse("allgather", name, error, self.process_set)
        with torch.no_grad():
            mean, variance, total = _combined(self._gathered(input.detach(), name))
            # To read a GPU's number the host waits for the GPU. It is read if it may be too low, on every rank then.
            count = float(total) if input.is_cpu or self._own_count(input) <= 1 else total
            if isinstance(count, float) and count <= 1:
                raise ValueError(
                    "SyncBatchNorm: expected more than 1 value per channel when training, got "
                    f"{count:g} on all ranks together"
                )
            if self.track_running_stats:
                self._track(mean, variance * (count / (count - 1)))
            scale = torch.rsqrt(variance + self.eps)
        return _Normalize.apply(input, self.weight, self.bias, mean, scale, count, self.process_set)

    def _own_count(self, input: Tensor) -> int:
        """This rank's values per channel."""
        return input.numel() // self.num_features if self.num_features else 0

    def _gathered(self, input: Tensor, name: str) -> Tensor:
        """By rank a row: count, means, sums of squared deviations."""
        row = input.new_zeros(1, 1 + 2 * self.num_features, dtype=torch.float64)
        count = self._own_count(input)
        if count:
            variance, mean = torch.var_mean(_widened(input), _but_channels(input), correction=0)
            row[0, 0] = count
            row[0, 1 : 1 + self.num_features] = mean
            row[0, 1 + self.num_features :] = variance.double() * count
        return collectives.allgather(row, name, self.process_set, SYNC).wait()

    def _track(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, seen in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.mul_(1 - factor).add_(seen.to(running.dtype), alpha=factor)


def _combined(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of all ranks' values together."""
    counts, rest = rows[:, :1], rows[:, 1:]
    means, deviations = rest.chunk(2, dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    squares = deviations.sum(0) + (counts * (means - mean).square()).sum(0)
    return mean, squares / total, total


def _but_channels(tensor: Tensor) -> list[int]:
    return [0, *range(2, tensor.dim())]


def _widened(tensor: Tensor) -> Tensor:
    # Halves are normalized in float32, as torch does it.
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class _Normalize(torch.autograd.Function):
    """(input - mean) * scale * weight + bias, where mean and scale are functions of all ranks' inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        count: float | Tensor,
        process_set: ProcessSet,
    ) -> Tensor:
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.count, ctx.process_set = count, process_set
        output = _normalized(input, mean, scale)
        if weight is not None:
            output = output * _per_channel(weight, output)
        if bias is not None:
            output = output + _per_channel(bias, output)
        return output.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        input, weight, mean, scale = ctx.saved_tensors
        wide, normalized = _widened(gradient), _normalized(input, mean, scale)
        dims = _but_channels(input)
        sum_, dot = wide.sum(dims), (wide * normalized).sum(dims)
        to_input = None
        if ctx.needs_input_grad[0]:
            how = (Sum, None, 1.0, 1.0, ctx.process_set)
            name = f"sync_batch_norm.gradient.{len(mean)}"
            total = collectives.allreduce(torch.cat([sum_, dot]).double(), name, how, True, SYNC).wait() / ctx.count
            mean_sum, mean_dot = total.chunk(2)
            to_input = wide - _per_channel(mean_sum, wide) - normalized * _per_channel(mean_dot, wide)
            to_input *= _per_channel(scale if weight is None else scale * weight, wide)
            to_input = to_input.to(input.dtype)
        to_weight = dot.to(weight.dtype) if ctx.needs_input_grad[1] else None
        to_bias = sum_.to(weight.dtype if weight is not None else sum_.dtype) if ctx.needs_input_grad[2] else None
        return to_input, to_weight, to_bias, None, None, None, None


def _normalized(input: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    wide = _widened(input)
    return (wide - _per_channel(mean, wide)) * _per_channel(scale, wide)


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))
