# SPDX-License-Identifier: Apache-2.0
"""The work of Horovod's callbacks, for Keras 3 and for tf-keras: mixed into a subclass of either's Callback."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from horovod.core import context as contexts
from horovod.core.arrays import operations
from horovod.core.exceptions import InvalidRequestError, MismatchError
from horovod.core.objects import allgather_object
from horovod.core.tracebacks import warn
from horovod.core.variables import broadcast_arrays
from horovod.core.wording import shown
from horovod.elastic.state.keras_state import build_optimizer, optimizer_variables
from horovod.keras import backends
from horovod.keras.distributed import is_distributed, start_from
from horovod.keras.patches import has_own_step
from horovod.keras.replicas import array_of, check_replicas

__all__ = [
    "Broadcast",
    "CheckReplicas",
    "LearningRateSchedule",
    "LearningRateWarmup",
    "MetricAverage",
    "broadcast_values",
]


def broadcast_values(variables: Sequence[Any], root_rank: int) -> None:
    """Assigns the root's values to Keras variables of any backend.

    Raises MismatchError if the ranks' variables differ in number, shape or dtype.
    """
    received = broadcast_arrays([array_of(variable) for variable in variables], root_rank, "broadcast_variables")
    contexts.note_replicas(value.size for value in received)
    for variable, value in zip(variables, received, strict=True):
        variable.assign(value)


class Broadcast:
    """The start values: weights, slots and iterations become the root's, as soon as they exist."""

    model: Any

    def _hvd_setup(self, root_rank: int, device: str, local_variables: Any) -> None:
        self._hvd_root_rank = root_rank
        self._hvd_local = {id(variable) for variable in local_variables or ()}
        self._hvd_of: Any = None  # the model that the next two are about
        self._hvd_done = False
        self._hvd_first_run: Any = None

    def register_local_var(self, var: Any) -> None:
        """This variable is not broadcast: every rank has its own."""
        self._hvd_local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if the model is built on all ranks; otherwise all do so at the first update.

        Once for each model: scripts give one list of callbacks to the models of all folds.
        """
        _check_steps(self)
        if self._hvd_of is not self.model:
            self._hvd_of, self._hvd_done, self._hvd_first_run = self.model, False, None
        if self._hvd_done:
            return
        self._hvd_warn_of_training_apart()
        is_built = bool(self.model.built and self.model.weights)
        # A rank that has loaded its model would not meet the others, whose first batch builds it.
        if all(allgather_object(is_built, "BroadcastGlobalVariablesCallback.built")):
            self._hvd_broadcast()
        elif is_distributed(getattr(self.model, "optimizer", None)):
            start_from(self.model.optimizer, self._hvd_broadcast)

    def _hvd_warn_of_training_apart(self) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        if (
            contexts.size() > 1
            and optimizer is not None
            and not (has_own_step(self.model) or is_distributed(optimizer))
        ):
            warn(
                f"rank {contexts.rank()}: the model's optimizer ({type(optimizer).__name__}) is not distributed: each "
                "rank trains a model of its own\nhint: compile with hvd.DistributedOptimizer(...), load with "
                "hvd.load_model"
            )

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """The last chance, for an optimizer that is not distributed."""
        if self._hvd_done:
            return
        if self._hvd_first_run is None:
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            self._hvd_broadcast()
        self._hvd_done = True
        if is_distributed(getattr(self.model, "optimizer", None)):
            start_from(self.model.optimizer, None)

    def _hvd_broadcast(self) -> None:
        model, optimizer = self.model, getattr(self.model, "optimizer", None)
        variables = list(model.weights)
        if optimizer is not None:
            build_optimizer(optimizer, model.trainable_variables)
            variables += optimizer_variables(optimizer)
        wanted = [variable for variable in variables if id(variable) not in self._hvd_local]
        in_tensorflow = backends.of_tensorflow()
        if in_tensorflow is not None and in_tensorflow.is_traced():
            self._hvd_broadcast_in_graph(in_tensorflow, wanted)
        elif not self._hvd_done:
            self._hvd_done = True
            broadcast_values(wanted, self._hvd_root_rank)

    def _hvd_broadcast_in_graph(self, in_tensorflow: Any, variables: list[Any]) -> None:
        if in_tensorflow.is_compiled():
            return  # it cannot be part of the step: on_batch_end does it
        session_of = in_tensorflow.graph_backend()
        if session_of is not None:
            self._hvd_done = True
            in_tensorflow.run_broadcast(session_of, variables, self._hvd_root_rank)
        else:
            self._hvd_first_run = self._hvd_first_run or in_tensorflow.FirstRun()
            self._hvd_first_run.broadcast(variables, self._hvd_root_rank)


def _check_steps(callback: Any) -> None:
    """At the begin of fit(): ranks with different numbers of steps would wait for each other in different calls."""
    if not is_distributed(getattr(callback.model, "optimizer", None)):
        return
    steps = allgather_object((callback.params or {}).get("steps"), f"{type(callback).__name__}.steps")
    known = {rank: count for rank, count in enumerate(steps) if count}
    first = next(iter(known), 0)
    for rank, count in known.items():
        if count != known[first]:
            raise MismatchError(
                f"fit: rank {first} has {known[first]} steps in an epoch, rank {rank} has {count}\n"
                "hint: give all ranks equal shares of the data, or fit(..., steps_per_epoch=...)"
            )


class MetricAverage:
    """Every numeric log becomes the average over the ranks, in place, at the end of an epoch."""

    model: Any

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises MismatchError if the ranks are known to have different numbers of steps."""
        _check_steps(self)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises MismatchError if the ranks have different metrics."""
        if not logs:
            return
        numeric = sorted(name for name, value in logs.items() if _is_number(value))
        all_names = allgather_object(numeric, "MetricAverageCallback.names")
        for rank, theirs in enumerate(all_names):
            if theirs != all_names[0]:
                raise MismatchError(
                    f"MetricAverageCallback: rank 0 has the metrics {all_names[0]}, rank {rank} {theirs}\n"
                    "hint: give all ranks the same metrics and validation data, or none"
                )
        values = np.array([float(logs[name]) for name in numeric], np.float64)
        averages = operations.allreduce(values, name="MetricAverageCallback.values")
        for name, average in zip(numeric, averages, strict=True):
            logs[name] = float(average)


def _is_number(value: Any) -> bool:
    return isinstance(value, (numbers.Real, np.ndarray)) and np.asarray(value).size == 1


class LearningRateSchedule:
    """The learning rate is initial_lr * multiplier(epoch) from start_epoch on, before end_epoch."""

    model: Any
    params: dict[str, Any]

    def _hvd_setup(
        self,
        initial_lr: float | None,
        multiplier: Callable[[float], float] | float,
        start_epoch: int,
        end_epoch: int | None,
        staircase: bool,
        momentum_correction: bool,
        steps_per_epoch: int | None,
    ) -> None:
        if initial_lr is None:
            raise InvalidRequestError(
                "initial_lr: expected the learning rate to multiply, got None\n"
                "hint: give the rate of the optimizer, for example initial_lr=0.001 * hvd.size()"
            )
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - self.start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many steps an epoch has, which a smooth schedule needs."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise InvalidRequestError(
                    "the number of steps in an epoch is not known from the data: expected steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate: at an epoch's first batch, or (not staircase) at every one."""
        epoch = self.current_epoch
        if epoch is None or epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase:
            if batch == 0:
                self._hvd_set(self.multiplier(epoch))
        else:
            self._hvd_set(self.multiplier(epoch + float(batch) / self.steps_per_epoch))  # type: ignore[operator]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Puts the rate into the logs, by the name that Keras itself uses, and as `lr` into what `fit` returns."""
        if logs is None:
            return
        rate = self._hvd_rate()
        if not isinstance(self.model, keras.Model):  # of tf-keras
            logs["lr"] = rate
            return
        logs["learning_rate"] = rate
        history = getattr(self.model, "history", None)
        if history is not None:
            rates = history.history.setdefault("lr", [])
            rates[len(history.epoch) :] = [rate]  # history comes last in an epoch; there may be several schedules

    def _hvd_rate(self) -> float:
        return float(keras.ops.convert_to_numpy(_as_plain(self.model.optimizer.learning_rate)))

    def _hvd_set(self, factor: float) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # what is set now must be what the next step reads
        before = self._hvd_rate()
        after = self.initial_lr * factor
        self.model.optimizer.learning_rate = after
        if self.momentum_correction and before > 0 and after != before:
            # Momentum scaled for one batch, and then restored: the same, once and for all, done to the velocities. A
            # compiled step has the momentum as a constant, but reads these.
            backend = backends.graph_backend()
            for velocity in _velocities(self.model.optimizer):
                if backend is None:
                    velocity.assign(velocity * (after / before))
                else:
                    backend.set_value(velocity, backend.get_value(velocity) * (after / before))


def _as_plain(rate: Any) -> Any:
    if callable(rate) and not hasattr(rate, "shape"):
        raise InvalidRequestError(
            "the optimizer's learning rate is a schedule of its own: expected a number\n"
            "hint: use either the schedule or Horovod's callback"
        )
    backend = backends.graph_backend()
    if backend is not None:
        return backend.get_value(rate)
    return rate if isinstance(rate, (float, int)) or not hasattr(rate, "numpy") else rate.numpy()


def _velocities(optimizer: Any) -> list[Any]:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of one that scales the loss
    if hasattr(optimizer, "get_slot") and hasattr(optimizer, "_weights"):
        if "momentum" not in optimizer.get_slot_names():
            return []
        return [variable for variable in optimizer.weights if "/momentum" in variable.name]
    if not getattr(optimizer, "momentum", 0):
        return []
    kept = getattr(optimizer, "momentums", getattr(optimizer, "_momentums", []))  # SGD's, RMSprop's
    return [velocity for velocity in kept if velocity is not None]


class CheckReplicas:
    """Compares the ranks' variables every so many batches."""

    model: Any

    def _hvd_setup_check(self, every: int) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidRequestError(f"every={shown(every)}: expected a number of batches, 1 or more")
        self.every = every
        self._hvd_batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts a batch. Raises HorovodInternalError if the ranks differ."""
        self._hvd_batches += 1
        if self._hvd_batches % self.every == 0:
            check_replicas(self.model)


class LearningRateWarmup(LearningRateSchedule):
    """From initial_lr / size to initial_lr within warmup_epochs, smoothly."""

    def _hvd_setup_warmup(
        self,
        initial_lr: float,
        warmup_epochs: int,
        momentum_correction: bool,
        steps_per_epoch: int | None,
        verbose: int,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = contexts.size()
            # + 1 / steps_per_epoch: the last batch of the warm-up has the full rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        self._hvd_setup(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says once, on rank 0, that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and contexts.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._hvd_rate():g}.")
