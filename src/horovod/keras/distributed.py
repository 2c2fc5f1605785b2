# SPDX-License-Identifier: Apache-2.0
"""How a Keras optimizer becomes distributed (steps 1 and 2 of a gradient's way): in place.

So its slots, its iterations and the name under which it is saved do not change.

Keras 3, on every backend: one subclass of the optimizer's own class that overrides apply(). Clipping and Keras' own
gradient accumulation come after that, so they see averages. tf-keras: aggregate_gradients (new optimizers) and
_aggregate_gradients (legacy ones) are where gradients of several devices would be put together.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod.core.exceptions import InvalidRequestError
from horovod.gradients.lists import GradientList
from horovod.gradients.replica_check import ReplicaCheck, numbered
from horovod.keras import backends
from horovod.keras.replicas import array_of, of_slots, options_of

__all__ = [
    "Keras3",
    "distributed_by",
    "is_distributed",
    "mixin_of",
    "reducing",
    "start_from",
    "undistributed",
]


class _Distributed:
    """Mixed into the optimizer's class.

    `_hvd_gradients` and `_hvd_accumulation` are set beside Keras' own tracking of attributes; `_hvd_start` runs before
    an update, until it is taken away.
    """

    _hvd_gradients: GradientList
    _hvd_accumulation: Any = None
    _hvd_check: ReplicaCheck | None = None
    _hvd_start: Callable[[], None] | None = None
    _hvd_again: Callable[[Any], Any]  # of the class, which is each optimizer's own: makes another one distributed

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """A new optimizer, as the optimizer's own class makes it, distributed in the same way."""
        return cls._hvd_again(_own_class(cls).from_config(*args, **kwargs))

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: every rank trains its own."""
        self._hvd_gradients.register_local(var)

    def _hvd_begin(self) -> None:
        if self._hvd_start is not None:
            self._hvd_start()

    def _hvd_compare(self, variables: Sequence[Any]) -> None:
        """Eagerly, before the second step: scripts may broadcast after the first, which makes some variables."""
        if not backends.is_eager():
            return
        if self._hvd_check is None:
            options = self._hvd_gradients.options
            name = options.name or type(self).__name__
            self.__dict__["_hvd_check"] = ReplicaCheck(name, options.process_set, first=1)
        check = self.__dict__["_hvd_check"]
        if check.is_due():
            shared = [variable for variable in variables if not self._hvd_gradients.is_local(variable)]
            parts = numbered(shared, array_of, whole=check.is_whole)
            # Slots do not say of which variable they are, and those of local ones differ.
            has_equal_slots = check.is_whole and len(shared) == len(variables)
            check.compare([*parts, *(of_slots(self) if has_equal_slots else ())])

    @property
    def _hvd_by_moves(self) -> bool:
        return self._hvd_gradients.options.is_adasum

    def _hvd_step(self, variables: Sequence[Any], update: Callable[[], Any]) -> Any:
        """Runs `update`. With Adasum: then applies the combination of all ranks' updates instead."""
        if not self._hvd_by_moves or not self._hvd_gradients.is_active:
            return update()
        shared = [variable for variable in variables if not self._hvd_gradients.is_local(variable)]
        starts = [_copy(variable) for variable in shared]
        result = update()
        moves = [_copy(variable) - start for variable, start in zip(shared, starts, strict=True)]
        for variable, start, move in zip(shared, starts, self._hvd_gradients(moves, shared), strict=True):
            variable.assign(start + move)
        return result


class Keras3(_Distributed):
    """Keras 3's optimizers."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if not self.built and variables:  # type: ignore[has-type]
            self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        self._hvd_begin()
        update = super().apply  # type: ignore[misc]

        def step(whole: Sequence[Any]) -> Any:
            reduced = list(whole) if self._hvd_by_moves else self._hvd_gradients(whole, variables)
            self._hvd_compare(variables)
            return self._hvd_step(variables, lambda: update(reduced, trainable_variables))

        return step(grads) if self._hvd_accumulation is None else self._hvd_accumulation(grads, step)


class _LossScale(Keras3):
    """Keras' scaling of the loss, around an optimizer.

    JAX takes its stateless_apply, which does not go through apply().
    """

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        if self._hvd_by_moves:
            raise NotImplementedError(
                "op=Adasum with scaling of the loss is not supported with Keras' backend JAX\n"
                "hint: mixed_bfloat16 needs no scaling"
            )
        self._hvd_begin()
        reduced = self._hvd_gradients(list(grads), self._trainable_variables)  # type: ignore[attr-defined]
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


class _TfKeras(_Distributed):
    """tf-keras' new optimizers."""

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """The ranks' averages; not with Adasum, which combines later."""
        pairs = list(grads_and_vars)
        if self._hvd_by_moves:
            return pairs
        reduced = self._hvd_gradients([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)]

    def _hvd_check_mode(self) -> None:
        several = self._hvd_by_moves or self._hvd_accumulation is not None
        if several and backends.named("tensorflow").is_graph_of_tensorflow_1():
            raise NotImplementedError(
                "op=Adasum and backward_passes_per_step > 1 with a Keras optimizer are not supported in a graph of "
                "TensorFlow 1\nhint: an optimizer of tf.compat.v1.train does both"
            )

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        self._hvd_check_mode()
        pairs = list(grads_and_vars)
        if not getattr(self, "_built", True):
            self.build([variable for _, variable in pairs])  # type: ignore[attr-defined]
        self._hvd_begin()
        update = super().apply_gradients  # type: ignore[misc]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

        def step(whole: Sequence[Any]) -> Any:
            self._hvd_compare(variables)
            return self._hvd_step(variables, lambda: update(list(zip(whole, variables, strict=True)), *args, **kwargs))

        return step(gradients) if self._hvd_accumulation is None else self._hvd_accumulation(gradients, step)


class _LegacyTfKeras(_TfKeras):
    """tf-keras' optimizers from before TensorFlow 2.11."""

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self.aggregate_gradients(grads_and_vars)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with gradients averaged over the ranks."""
        pairs = list(grads_and_vars)
        self._create_all_weights([variable for _, variable in pairs])  # type: ignore[attr-defined]
        return super().apply_gradients(pairs, *args, **kwargs)


def _copy(variable: Any) -> Any:
    """The variable's value now, whatever becomes of the variable."""
    if isinstance(variable, keras.Variable):
        return keras.ops.copy(keras.ops.stop_gradient(variable.value))
    return variable.read_value()


def _own_class(made: type) -> Any:
    """The class that an optimizer had before it became distributed."""
    return made.__bases__[1]


def mixin_of(optimizer: Any) -> type[_Distributed]:
    """The class to mix into the optimizer's class. Raises ValueError for anything but an optimizer object."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _LossScale
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return Keras3
    if hasattr(optimizer, "aggregate_gradients") and hasattr(optimizer, "apply_gradients"):
        return _TfKeras
    if hasattr(optimizer, "_aggregate_gradients") and hasattr(optimizer, "apply_gradients"):
        return _LegacyTfKeras
    raise InvalidRequestError(
        f"DistributedOptimizer: cannot wrap a {type(optimizer).__module__}.{type(optimizer).__name__}: expected an "
        "optimizer object of Keras 3, tf-keras or tf.compat.v1.train"
        + ("\nhint: an object, not its class or name" if isinstance(optimizer, (str, type)) else "")
    )


def reducing(optimizer: Any) -> Any:
    """The optimizer that reduces, or is to reduce.

    tf-keras' LossScaleOptimizer asks its inner optimizer to put the gradients together, before it checks them for
    overflow.
    """
    is_scaling = not isinstance(optimizer, keras.optimizers.Optimizer) and hasattr(optimizer, "get_scaled_loss")
    return optimizer.inner_optimizer if is_scaling else optimizer


def is_distributed(optimizer: Any) -> bool:
    """True if DistributedOptimizer has made it distributed."""
    return isinstance(reducing(optimizer), _Distributed)


def distributed_by(optimizer: Any, parts: dict[str, Any]) -> Any:
    """Makes `optimizer` distributed, in place, with what reduces its gradients."""
    own = type(optimizer)
    again = staticmethod(parts["_hvd_again"])
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "_hvd_again": again}
    # Not by setattr: Keras would track them as parts of the optimizer, and save them.
    optimizer.__dict__.update((name, part) for name, part in parts.items() if name != "_hvd_again")
    reference = weakref.ref(optimizer)
    parts["_hvd_gradients"].watched_options = lambda: options_of(reference())
    optimizer.__class__ = type(own.__name__, (mixin_of(optimizer), own), names)
    _save_as(own, optimizer.__class__)
    return optimizer


def _save_as(own: type, made: type) -> None:
    """Has files name the class that was registered for saving, so that they load wherever `own` is known."""
    tables = [("keras.src.saving.object_registration", "GLOBAL_CUSTOM_NAMES")]
    tables += [("tf_keras.src.saving.object_registration", "_GLOBAL_CUSTOM_NAMES")]
    for module, name in tables:
        names = getattr(sys.modules.get(module), name, {})
        if own in names:
            names[made] = names[own]


def undistributed(optimizer: Any) -> dict[str, Any]:
    """Takes it back: the optimizer is its own class again. Returns what reduced its gradients, for distributed_by."""
    parts = {name: optimizer.__dict__.pop(name, None) for name in ("_hvd_gradients", "_hvd_accumulation", "_hvd_start")}
    optimizer.__dict__.pop("_hvd_check", None)
    parts["_hvd_again"] = type(optimizer)._hvd_again
    optimizer.__class__ = _own_class(type(optimizer))
    return parts


def start_from(optimizer: Any, broadcast: Callable[[], None] | None) -> None:
    """Has `broadcast` run when the optimizer is about to make an update, until this is called with None.

    Its variables exist then. Not for tf-keras' LossScaleOptimizer, whose first updates are those that it does not skip.
    """
    if isinstance(optimizer, _Distributed):
        optimizer.__dict__["_hvd_start"] = broadcast
