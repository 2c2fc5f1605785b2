# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm for flax.linen, and its arithmetic: batch normalization over the batches of all ranks.

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

__all__ = ["SyncBatchNorm", "averaged", "checked_input", "normalized", "statistics_of"]


class SyncBatchNorm(nn.Module):
    """flax.linen.BatchNorm over the batches of all ranks of `process_set` as if they were one.

    The ranks may have different numbers of rows. Variables have the names of flax' own layer: collection `batch_stats`
    with `mean` and `var`, parameters `scale` and `bias`, whose gradients are this rank's part, as those of any other
    layer. It is local with use_running_average, with one rank, and on a rank that is not a member of the set. Raises
    ValueError for an input that is not a floating-point array.
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
        x = checked_input(x)
        axis = self.axis % x.ndim
        channels = (x.shape[axis],)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
        if is_local:
            mean, variance = running_mean.value, running_var.value
        else:
            mean, variance = statistics_of(x, axis, None if self.is_initializing() else self.process_set)
            if not self.is_initializing():
                for running, new in ((running_mean, mean), (running_var, variance)):
                    running.value = averaged(running.value, new, self.momentum)
        scale = self.param("scale", self.scale_init, channels, self.param_dtype) if self.use_scale else None
        bias = self.param("bias", self.bias_init, channels, self.param_dtype) if self.use_bias else None
        return normalized(x, axis, (mean, variance, self.epsilon), scale, bias).astype(self.dtype or x.dtype)


def checked_input(x: Any) -> jax.Array:
    """The input as an array. Raises ValueError if it is not of floating point."""
    array = jnp.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InvalidRequestError(f"SyncBatchNorm: expected a floating-point input, got {array.dtype}")
    return array


def statistics_of(x: jax.Array, axis: int, process_set: ProcessSet | None) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance by channel, of all ranks' values together; None: of this rank's."""
    wide = _widened(x)
    others = tuple(dim for dim in range(x.ndim) if dim != axis)
    count = x.size // max(x.shape[axis], 1)
    mean = wide.mean(others) if count else jnp.zeros(x.shape[axis], wide.dtype)
    deviations = jnp.square(wide - _by_channel(mean, x, axis)).sum(others)
    if process_set is None or not process_set.has_peers():
        return mean, deviations / count
    row = jnp.concatenate([jnp.full(1, count, wide.dtype), mean, deviations])
    rows = jnp.zeros((process_set.size(), len(row)), wide.dtype).at[process_set.rank()].set(row)
    how = (Sum, None, 1.0, 1.0, process_set)
    return _combined(reduced_for_use([rows], f"sync_batch_norm.{x.shape[axis]}", how)[0])


def averaged(running: Any, new: jax.Array, momentum: float) -> jax.Array:
    """The next running average."""
    kept: jax.Array = momentum * running + (1 - momentum) * new
    return kept.astype(running.dtype)


def normalized(
    x: jax.Array, axis: int, statistics: tuple[Any, Any, float], scale: jax.Array | None, bias: jax.Array | None
) -> jax.Array:
    """`x` with mean 0 and variance 1 by channel, scaled and moved. `statistics`: mean, variance and epsilon."""
    mean, variance, epsilon = statistics
    factor = jax.lax.rsqrt(variance + epsilon)
    factor = factor if scale is None else factor * scale
    y = (_widened(x) - _by_channel(mean, x, axis)) * _by_channel(factor, x, axis)
    return y if bias is None else y + _by_channel(bias, x, axis)


def _by_channel(values: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    return values.reshape([length if dim == axis else 1 for dim, length in enumerate(x.shape)])


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
