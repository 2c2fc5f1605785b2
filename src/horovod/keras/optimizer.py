# SPDX-License-Identifier: Apache-2.0
"""hvd.DistributedOptimizer for Keras (steps 1 and 2 of a gradient's way): an optimizer becomes distributed in place, so
its slots, its iterations and the name it is saved under stay what they are.

Keras 3, on every backend: one subclass of the optimizer's own class that overrides apply(). Clipping and Keras' own
gradient accumulation come after that, so they see averages. tf-keras: aggregate_gradients (new optimizers) and
_aggregate_gradients (legacy ones) are where gradients of several devices would be put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod.core.exceptions import InvalidRequestError
from horovod.core.gradient_lists import GradientList
from horovod.core.native import Adasum
from horovod.keras.accumulation import accumulation
from horovod.keras.gradients import backend_gradients

__all__ = ["distributed", "distributed_by", "is_distributed", "start_from", "undistributed"]


class _Distributed:
    """Mixed into the optimizer's class. `_hvd_gradients` and `_hvd_accumulation` are set beside Keras' own tracking of
    attributes; `_hvd_start` runs before an update, until it is taken away."""

    _hvd_gradients: GradientList
    _hvd_accumulation: Any = None
    _hvd_start: Callable[[], None] | None = None

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced: every rank trains its own."""
        self._hvd_gradients.register_local(variable)

    def _hvd_begin(self) -> None:
        if self._hvd_start is not None:
            self._hvd_start()


class _Keras3(_Distributed):
    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if not self.built and variables:  # type: ignore[has-type]
            self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        self._hvd_begin()
        update = super().apply  # type: ignore[misc]
        if self._hvd_accumulation is None:
            return update(self._hvd_gradients(grads, variables), trainable_variables)
        return self._hvd_accumulation(
            grads, lambda whole: update(self._hvd_gradients(whole, variables), trainable_variables)
        )


class _TfKeras(_Distributed):
    """tf-keras' new optimizers."""

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """The ranks' averages."""
        pairs = list(grads_and_vars)
        reduced = self._hvd_gradients([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        pairs = list(grads_and_vars)
        if not getattr(self, "_built", True):
            self.build([variable for _, variable in pairs])  # type: ignore[attr-defined]
        self._hvd_begin()
        update = super().apply_gradients  # type: ignore[misc]
        if self._hvd_accumulation is None:
            return update(pairs, *args, **kwargs)
        variables = [variable for _, variable in pairs]

        def apply(whole: Sequence[Any]) -> Any:
            return update(list(zip(whole, variables, strict=True)), *args, **kwargs)

        return self._hvd_accumulation([gradient for gradient, _ in pairs], apply)


class _LegacyTfKeras(_TfKeras):
    """tf-keras' optimizers from before TensorFlow 2.11."""

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self.aggregate_gradients(grads_and_vars)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        pairs = list(grads_and_vars)
        self._create_all_weights([variable for _, variable in pairs])  # type: ignore[attr-defined]
        return super().apply_gradients(pairs, *args, **kwargs)


def _mixin_of(optimizer: Any) -> type[_Distributed]:
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return _Keras3
    if hasattr(optimizer, "aggregate_gradients") and hasattr(optimizer, "apply_gradients"):
        return _TfKeras
    if hasattr(optimizer, "_aggregate_gradients") and hasattr(optimizer, "apply_gradients"):
        return _LegacyTfKeras
    raise InvalidRequestError(
        f"DistributedOptimizer: cannot wrap a {type(optimizer).__module__}.{type(optimizer).__name__}: expected an "
        "optimizer object of Keras 3, tf-keras or tf.compat.v1.train"
        + ("\nhint: an object, not its class or name" if isinstance(optimizer, (str, type)) else "")
    )


def is_distributed(optimizer: Any) -> bool:
    """Whether DistributedOptimizer has made it so."""
    return isinstance(optimizer, _Distributed)


def distributed(
    optimizer: Any,
    *,
    name: str | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    **options: Any,
) -> Any:
    """Makes `optimizer` distributed, in place, and returns it. Options: the fields of GradientList."""
    mixin = _mixin_of(optimizer)
    if is_distributed(optimizer):
        raise InvalidRequestError(f"DistributedOptimizer: this {type(optimizer).__name__} is distributed already")
    if backward_passes_per_step < 1:
        raise InvalidRequestError(f"backward_passes_per_step={backward_passes_per_step}: expected 1 or more")
    if options.get("op") == Adasum:
        raise NotImplementedError(
            "DistributedOptimizer with op=Adasum is not supported for Keras yet\nhint: Average is the default"
        )
    options = {"name": name or "DistributedOptimizer", **options}
    if mixin is _Keras3:
        gradients = backend_gradients(**options)
    else:
        from horovod.tensorflow.gradients import TensorFlowGradients

        gradients = TensorFlowGradients(**options)
    passes = None
    if backward_passes_per_step > 1:
        passes = accumulation(
            backward_passes_per_step, average_aggregated_gradients, options.get("sparse_as_dense", False)
        )
    return distributed_by(optimizer, {"_hvd_gradients": gradients, "_hvd_accumulation": passes})


def distributed_by(optimizer: Any, parts: dict[str, Any]) -> Any:
    """Makes `optimizer` distributed, in place, with what reduces its gradients."""
    own = type(optimizer)
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__}
    # Not by setattr: Keras would track them as parts of the optimizer, and save them.
    optimizer.__dict__.update(parts)
    optimizer.__class__ = type(own.__name__, (_mixin_of(optimizer), own), names)
    return optimizer


def undistributed(optimizer: Any) -> dict[str, Any]:
    """Takes it back: the optimizer is its own class again. Returns what reduced its gradients, for distributed_by."""
    parts = {name: optimizer.__dict__.pop(name, None) for name in ("_hvd_gradients", "_hvd_accumulation", "_hvd_start")}
    optimizer.__class__ = type(optimizer).__bases__[1]
    return parts


def start_from(optimizer: Any, broadcast: Callable[[], None] | None) -> None:
    """Has `broadcast` run when the optimizer is about to make an update (its variables exist then), until this is
    called with None."""
    optimizer.__dict__["_hvd_start"] = broadcast
