# SPDX-License-Identifier: Apache-2.0
"""tf.GradientTape whose gradients are the ranks' average (steps 1 and 2 of a gradient's way)."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.gradients.lists import local_variables
from horovod.gradients.options import ReductionOptions
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_list import TensorFlowGradients
from horovod.tensorflow.reduced import mark_reduced

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedGradientTape(tf.GradientTape):
    # No part of the state, which it shares with the tape that it was made of.
    __slots__ = ("_reduction",)
    _reduction: TensorFlowGradients

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is not reduced: every rank trains its own."""
        self._reduction.register_local(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: Any = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As tf.GradientTape.gradient, averaged over the ranks.

        The fourth place is TensorFlow's unconnected_gradients unless it is a bool, which old Horovod scripts give
        there.
        """
        if not isinstance(use_generic_names, bool):
            unconnected_gradients = use_generic_names
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(gradients)
        reduced = self._reduction(flat, tf.nest.flatten(sources))
        mark_reduced(reduced)
        return tf.nest.pack_sequence_as(gradients, reduced)

    def jacobian(self, *arguments: Any, **options: Any) -> Any:
        """As tf.GradientTape.jacobian: this rank's own, which is not reduced."""
        return self._plain().jacobian(*arguments, **options)

    def batch_jacobian(self, *arguments: Any, **options: Any) -> Any:
        """As tf.GradientTape.batch_jacobian: this rank's own, which is not reduced."""
        return self._plain().batch_jacobian(*arguments, **options)

    def _plain(self) -> Any:
        return _sharing_state(self, type(self).__bases__[1])

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: Any = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """gradient(), as pairs of (source, gradient): those of local sources, and the others."""
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients, use_generic_names))
        pairs = list(zip(tf.nest.flatten(sources), gradients, strict=True))
        local = [pair for pair in pairs if self._reduction.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reduction.is_local(pair[0])]


def DistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The recording of `gradtape` as a tape whose gradient() averages over the ranks.

    `gradtape` may still record, and ends with it. jacobian() and batch_jacobian() are this rank's own.

    groups: a number of groups, or lists of variables, whose gradients are reduced as one; by default each is reduced
    as soon as it is there. register_local_source(variable) leaves a variable out; its gradient is divided by the size
    if scale_local_gradients. num_groups is the old name of groups.
    """
    return _distributed(gradtape, ReductionOptions.among(locals()))


def _distributed(gradtape: tf.GradientTape, options: ReductionOptions) -> Any:
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"DistributedGradientTape: expected a tf.GradientTape, got {type(gradtape).__name__}")
    if isinstance(gradtape, _DistributedGradientTape):
        raise InvalidRequestError("DistributedGradientTape: this tape is distributed already")
    own: Any = type(gradtape)
    tape = _sharing_state(gradtape, _distributed_class(own))
    tape._reduction = TensorFlowGradients(options, "DistributedGradientTape", is_applied=False)
    return tape


@functools.cache
def _distributed_class(plain: type) -> type:
    return type(plain.__name__, (_DistributedGradientTape, plain), {})


def _sharing_state(tape: Any, as_class: type) -> Any:
    """Another object for the same recording: whichever is entered, left or used, it happens to both."""
    other: Any = object.__new__(as_class)
    other.__dict__ = tape.__dict__
    return other


def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedGradientTape that leaves the variables of `local_layers`, a Keras layer or a list of them, local."""
    tape = _distributed(gradtape, ReductionOptions.among(locals()))
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape
