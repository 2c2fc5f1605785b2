# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm for flax.nnx. No step of a gradient's way. The arithmetic is that of sync_batch_norm.py."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.jax.sync_batch_norm import averaged, checked_input, normalized, statistics_of

__all__ = ["SyncBatchNorm"]


def set_value(variable: nnx.Variable[jax.Array], value: jax.Array) -> None:
    if hasattr(variable, "set_value"):
        variable.set_value(value)
    else:  # flax before 0.12
        variable.value = value


class SyncBatchNorm(nnx.BatchNorm):
    """flax.nnx.BatchNorm over the batches of all ranks of `process_set` as if they were one.

    The ranks may have different numbers of rows. Options and variables are those of flax' own layer, but for those that
    combine devices (axis_name), choose another arithmetic (use_fast_variance, promote_dtype) or leave values out
    (mask). It is local with use_running_average, with one rank, and on a rank that is not a member of the set. Raises
    ValueError for an input that is not a floating-point array.
    """

    def __init__(
        self, num_features: int, *, process_set: ProcessSet = global_process_set, rngs: nnx.Rngs, **options: Any
    ) -> None:
        refused = {"axis_name", "axis_index_groups", "use_fast_variance", "promote_dtype"} & set(options)
        if refused:
            raise TypeError(f"SyncBatchNorm has no option {sorted(refused)[0]}")
        super().__init__(num_features, rngs=rngs, **options)
        self.process_set = process_set

    def __call__(self, x: Any, use_running_average: bool | None = None) -> jax.Array:
        """The normalized input, as of `dtype` or of the input's dtype."""
        is_local = self.use_running_average if use_running_average is None else use_running_average
        x = checked_input(x)
        axis = self.axis % x.ndim
        if is_local:
            mean, variance = self.mean[...], self.var[...]
        else:
            mean, variance = statistics_of(x, axis, self.process_set)
            for running, new in ((self.mean, mean), (self.var, variance)):
                set_value(running, averaged(running[...], jax.lax.stop_gradient(new), self.momentum))
        scale, bias = (None if variable is None else variable[...] for variable in (self.scale, self.bias))
        return normalized(x, axis, (mean, variance, self.epsilon), scale, bias).astype(self.dtype or x.dtype)
