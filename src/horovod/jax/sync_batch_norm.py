# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm for flax.linen: batch normalization over the batches of all ranks.

No step of a gradient's way. Each rank puts its count, means and sums of squared deviations by channel into its row of a
table, which an allreduce fills; its derivative is the one of the sum. The rows are combined as in
torch/sync_batch_norm.py, in the same order on all ranks, so their statistics are equal to the bit.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.jax.ops import reduced_for_use

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(nn.Module):
    """flax.linen.BatchNorm over the batches of all ranks of `process_set` as if they were one.

    The ranks may have different numbers of rows. Variables have the names of flax' own layer: collection `batch_stats`
    with `mean` and `var`, parameters `scale` and `bias`, whose gradients are this rank's part, as those of any other
    layer. It is local with use_running_average, with one rank, and on a rank that is not a member of the set. Raises
    ValueError for an input that is no floating-point array.
    """

    use_running_average: bool | None = None
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Any = nn.initializers.zeros
    scale_init: Any = nn.initializers.ones
    process_set: ProcessSet = global_process_set

    @nn.compact
    def __call__(self, x: Any, use_running_average: bool | None = None) -> jax.Array:
        """The normalized input, as of `dtype` or of the input's dtype."""
        is_local = nn.merge_param("use_running_average", self.use_running_average, use_running_average)
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise InvalidRequestError(f"SyncBatchNorm: expected a floating-point input, got {x.dtype}")
        axis = self.axis % x.ndim
        shape = [length if dim == axis else 1 for dim, length in enumerate(x.shape)]
        channels = (x.shape[axis],)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
        if is_local:
            mean, variance = running_mean.value, running_var.value
        else:
            mean, variance = self._statistics(x, axis)
            if not self.is_initializing():
                for running, seen in ((running_mean, mean), (running_var, variance)):
                    kept = self.momentum * running.value + (1 - self.momentum) * seen
                    running.value = kept.astype(running.value.dtype)
        scale = jax.lax.rsqrt(variance + self.epsilon)
        if self.use_scale:
            scale = scale * self.param("scale", self.scale_init, channels, self.param_dtype)
        y = (_widened(x) - mean.reshape(shape)) * scale.reshape(shape)
        if self.use_bias:
            y = y + self.param("bias", self.bias_init, channels, self.param_dtype).reshape(shape)
        return y.astype(self.dtype or x.dtype)

    def _statistics(self, x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        """Mean and biased variance by channel, of all ranks' values together."""
        wide = _widened(x)
        others = tuple(dim for dim in range(x.ndim) if dim != axis)
        count = x.size // max(x.shape[axis], 1)
        mean = wide.mean(others) if count else jnp.zeros(x.shape[axis], wide.dtype)
        shape = [length if dim == axis else 1 for dim, length in enumerate(x.shape)]
        deviations = jnp.square(wide - mean.reshape(shape)).sum(others)
        members = self.process_set.size() or 1
        if self.is_initializing() or members == 1 or not self.process_set.included():
            return mean, deviations / count
        row = jnp.concatenate([jnp.full(1, count, wide.dtype), mean, deviations])
        rows = jnp.zeros((members, len(row)), wide.dtype).at[self.process_set.rank()].set(row)
        how = (Sum, None, 1.0, 1.0, self.process_set)
        return _combined(reduced_for_use([rows], f"sync_batch_norm.{x.shape[axis]}", how)[0])


def _widened(x: jax.Array) -> jax.Array:
    # Halves are normalized in float32, as flax does it.
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _combined(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    counts, rest = rows[:, :1], rows[:, 1:]
    means, deviations = jnp.split(rest, 2, axis=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    squares = deviations.sum(0) + (counts * jnp.square(means - mean)).sum(0)
    return mean, squares / total
