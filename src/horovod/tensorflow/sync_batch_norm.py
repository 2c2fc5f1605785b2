# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNormalization: batch normalization over the batches of all ranks.

No step of a gradient's way: its statistics travel in forward, the sums of their gradients in backward, a few numbers
per channel each.

Forward reduces twice: counts and sums give the mean, then the squared distances from it the variance. Sums of squares
would need one reduction, and cancel if the mean is large beside the deviation. Both are plain allreduces of float64,
which a step that XLA compiles may hold as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Sum
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set, set_of_ranks
from horovod.tensorflow import ops

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization over the batches of all ranks of `process_set` as if they were one.

    It is tf.keras.layers.BatchNormalization, of Keras 3 or tf-keras. Each rank may have a different number of rows,
    also none.

    It is local outside of training, with one rank, and on a rank that is not a member of the set. The gradients of
    gamma and beta are this rank's part, as those of any other layer: what is distributed reduces them. Blocks in
    forward and in backward until every rank has got there. `fused` is accepted as False only: a fused kernel keeps its
    statistics to itself. Raises ValueError for that, for renorm and for a backend of Keras that is not TensorFlow.
    `synchronized`, which Keras has for the replicas of tf.distribute, changes nothing.

    A copy, and a layer that is loaded, normalizes over the registered set of the same ranks. Without one it works
    outside of training.
    """

    def __init__(self, fused: Any = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused not in (False, None):
            raise InvalidRequestError(f"SyncBatchNormalization: fused={fused!r}: expected False")
        if kwargs.get("renorm"):
            raise InvalidRequestError("SyncBatchNormalization: renorm=True is not supported")
        if not hasattr(self, "_calculate_mean_and_var") and tf.keras.backend.backend() != "tensorflow":
            raise InvalidRequestError(
                f"SyncBatchNormalization: Keras runs on {tf.keras.backend.backend()}: expected TensorFlow\n"
                "hint: horovod.torch.SyncBatchNorm, or batch normalization of each rank's own rows"
            )
        check_process_set(process_set)
        if hasattr(self, "_fused_can_be_used"):  # tf-keras would choose it by itself
            kwargs["fused"] = False
        kwargs.pop("synchronized", None)  # over the ranks it is
        super().__init__(**kwargs)
        self.process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """As any layer's, with the ranks of the process set; None for all ranks."""
        ranks = None if self.process_set is global_process_set else self.process_set.ranks
        return {**super().get_config(), "process_set": ranks}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer of a get_config()."""
        ranks = config.get("process_set")
        process_set = global_process_set if ranks is None else set_of_ranks(ranks)
        return super().from_config({**config, "process_set": process_set})

    # The two places where Keras computes statistics.

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self, "_calculate_mean_and_var") or not self.process_set.may_have_peers():
            return super()._moments(inputs, *args, **kwargs)
        (mask,) = args or (kwargs.get("mask"),)
        return self._hvd_moments(inputs, self._reduction_axes, False, mask)

    def _no_sync_calculate_mean_and_var(
        self, inputs: Any, reduction_axes: Sequence[int], keep_dims: bool, mask: Any = None
    ) -> Any:
        if not self.process_set.may_have_peers():
            return super()._no_sync_calculate_mean_and_var(inputs, reduction_axes, keep_dims, mask)
        return self._hvd_moments(inputs, reduction_axes, keep_dims, mask)

    def _hvd_moments(self, inputs: Any, axes: Sequence[int], keep_dims: bool, mask: Any) -> tuple[Any, Any]:
        weights = tf.ones_like(inputs) if mask is None else tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
        weights = tf.broadcast_to(weights, tf.shape(inputs))
        mean, variance = _moments_of_all(inputs, weights, tuple(axes), self.process_set)
        if keep_dims:
            return mean, variance
        return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _moments_of_all(inputs: Any, weights: Any, axes: tuple[int, ...], process_set: ProcessSet) -> tuple[Any, Any]:
    """Mean and biased variance over `axes`, which are kept, of all ranks' inputs.

    Where the weight is 0 they do not count.
    """

    def summed(*parts: Any) -> list[Any]:
        sums = [tf.reduce_sum(part, axes, keepdims=True) for part in parts]
        return list(tf.unstack(_reduced(tf.cast(tf.stack(sums), tf.float64), process_set)))

    @tf.custom_gradient
    def moments(inputs: Any) -> Any:
        total, count = summed(tf.where(weights > 0, inputs, tf.zeros_like(inputs)), weights)
        mean = total / count
        distance = tf.where(weights > 0, inputs - tf.cast(mean, inputs.dtype), tf.zeros_like(inputs))
        (squares,) = summed(tf.square(distance))

        def gradient(to_mean: Any, to_variance: Any) -> Any:
            # The variance's own dependence on the mean vanishes: the distances from it add up to zero.
            both = _reduced(tf.cast(tf.stack([to_mean, to_variance]), tf.float64), process_set)
            of_mean, of_variance = tf.unstack(tf.cast(both / count, inputs.dtype))
            return weights * of_mean + 2 * distance * of_variance

        return (tf.cast(mean, inputs.dtype), tf.cast(squares / count, inputs.dtype)), gradient

    mean, variance = moments(inputs)
    return mean, variance


def _reduced(values: Any, process_set: ProcessSet) -> Any:
    # From the top of the graph: the scopes that Keras puts around it are numbered by what a process has built before.
    # By its length, so that layers of one width share a name if no graph tells them apart.
    name = f"sync_batch_norm.{'x'.join(str(size) for size in values.shape)}"
    if tf.executing_eagerly():
        return ops.allreduce(values, op=Sum, name=name, process_set=process_set)
    with tf.compat.v1.get_default_graph().name_scope(None):
        return ops.allreduce(values, op=Sum, name=name, process_set=process_set)
