# SPDX-License-Identifier: Apache-2.0
"""hvd.DistributedOptimizer for TensorFlow (steps 1 and 2 of a gradient's way).

Chooses the wrapper for the optimizer's kind, and holds that for tf.compat.v1.train. Keras optimizers: horovod.keras.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.gradients.options import ReductionOptions
from horovod.tensorflow.adasum_optimizer import Moves
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_list import TensorFlowGradients
from horovod.tensorflow.reduced import is_reduced, mark_reduced

__all__ = ["DistributedOptimizer"]

_LegacyOptimizer: Any = tf.compat.v1.train.Optimizer


class _DistributedV1Optimizer(_LegacyOptimizer):
    """Wraps an optimizer of tf.compat.v1.train: compute_gradients reduces, all else is the wrapped one's.

    apply_gradients reduces what neither compute_gradients nor a DistributedGradientTape has reduced, such as what
    tf.gradients has given. With Adasum it combines what each rank's own step has changed.
    """

    def __init__(self, optimizer: Any, reduction: TensorFlowGradients, use_locking: bool) -> None:
        options = reduction.options
        super().__init__(name=options.name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        reduction.watched_options = lambda: _options_of(optimizer)
        self._moves = Moves(reduction) if options.is_adasum else None
        self._helper: LocalGradientAggregationHelper | None = None
        if options.backward_passes_per_step > 1:
            self._helper = LocalGradientAggregationHelper(
                options.backward_passes_per_step,
                self._reduced,
                options.sparse_as_dense,
                options.average_aggregated_gradients,
                0,
                "v1",  # local variables are the reduction's business
            )
        self._is_summed = False
        self._has_computed = False  # eagerly: since the last apply_gradients

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: every rank trains its own."""
        self._reduction.register_local(var)

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(gradients) if self._moves is not None else self._reduction(gradients, variables)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As the wrapped optimizer's, averaged over the ranks; not with Adasum."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        reduced = self._reduced if self._helper is None else self._helper.compute_gradients
        self._is_summed = self._helper is not None
        self._has_computed = True
        results = reduced(gradients, variables)
        mark_reduced(results)
        return list(zip(results, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The wrapped optimizer's; with backward_passes_per_step > 1 only on the last pass of a step."""
        pairs = self._all_reduced(list(grads_and_vars))
        moves, helper = self._moves, self._helper
        trained = [variable for gradient, variable in pairs if gradient is not None]
        if moves is not None:
            moves.prepare(trained)

        def update(name: str | None = None) -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def step(name: str | None = None) -> Any:
            return update(name) if moves is None else moves.combined(trained, update)

        if helper is None or not self._is_summed:
            return step(name)
        self._optimizer._create_slots(trained)  # not inside of the condition
        return helper.apply_gradients(step, self._optimizer, name=name)

    def _all_reduced(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The pairs, after the reduction of those gradients that nothing has reduced."""
        has_computed = self._has_computed
        if tf.executing_eagerly():
            self._has_computed = False
            missing = (
                [] if has_computed else [place for place, (gradient, _) in enumerate(pairs) if gradient is not None]
            )
        else:
            missing = [place for place, (gradient, _) in enumerate(pairs) if not is_reduced(gradient)]
        if not missing or self._moves is not None or not self._reduction.is_active:
            return pairs
        if self._helper is not None and (has_computed or len(missing) < len(pairs)):
            raise InvalidRequestError(_not_computed(self._reduction.options.name, "backward_passes_per_step > 1"))
        if has_computed and self._reduction.options.op != Average:
            raise InvalidRequestError(_not_computed(self._reduction.options.name, "an op other than Average"))
        gradients = [pairs[place][0] for place in missing]
        variables = [pairs[place][1] for place in missing]
        reduced = self._reduced if self._helper is None else self._helper.compute_gradients
        self._is_summed = self._helper is not None
        for place, gradient in zip(missing, reduced(gradients, variables), strict=True):
            pairs[place] = (gradient, pairs[place][1])
        return pairs

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def _options_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """The learning rate: a number, or in a graph perhaps a variable.

    Not a graph's tensor: it may need a value that is fed, and gradients are to be had without.
    """
    rate = getattr(optimizer, "_learning_rate", getattr(optimizer, "_lr", None))
    rate = rate() if callable(rate) else rate
    if tf.executing_eagerly() and rate is not None:
        yield "learning_rate", float(rate)
    elif rate is not None and not isinstance(rate, tf.Tensor):
        yield "learning_rate", rate


def _not_computed(name: str | None, option: str) -> str:
    return (
        f"{name or 'DistributedOptimizer'}.apply_gradients got gradients of which some do not come from its "
        f"compute_gradients(), which was called as well: with {option} it cannot tell which are reduced\n"
        "hint: give it what compute_gradients() returns, or what tf.gradients() returns, but not both"
    )


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that averages gradients over the ranks before it applies them.

    Takes optimizers of Keras 3, of tf-keras, and of tf.compat.v1.train.

    backward_passes_per_step: gradients of so many passes are summed (averaged with average_aggregated_gradients) before
    they are reduced and applied; other passes apply nothing. groups: a number of groups, or lists of variables, whose
    gradients are reduced as one. op=Adasum: each rank takes its own step, and Adasum combines the changes of the
    variables.
    """
    options = ReductionOptions.among(locals())
    if not isinstance(optimizer, _LegacyOptimizer):
        from horovod.tensorflow.keras import distributed

        return distributed(optimizer, options)
    if isinstance(optimizer, _DistributedV1Optimizer):
        raise InvalidRequestError("DistributedOptimizer: this optimizer is distributed already")
    if backward_passes_per_step > 1 and tf.executing_eagerly():
        raise InvalidRequestError(
            "backward_passes_per_step > 1 with an optimizer of tf.compat.v1.train needs a graph\n"
            "hint: a Keras optimizer also works eagerly"
        )
    return _DistributedV1Optimizer(optimizer, TensorFlowGradients(options, "DistributedOptimizer"), use_locking)
