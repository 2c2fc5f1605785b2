# SPDX-License-Identifier: Apache-2.0
"""The callbacks that keep a state up to date in model.fit(), and commit it; for Keras 3 and for tf-keras.

A commit saves weights and counters of one moment. So it first asks the callbacks that count for the same state to bring
their counters up to date. Then the order in which callbacks are listed does not matter.

An epoch that was interrupted is resumed with the batches that it still lacks. Keras has no way to say so beforehand;
but if a callback sets `model.stop_training` after a batch, Keras ends the epoch. It ends the training only if that is
still set when the epoch's last callback has run.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import keras

from horovod.core.process_sets import speaks
from horovod.core.tracebacks import warn

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "elastic_callback_classes"]


def _counting(state: Any) -> dict[str, Any]:
    """The callbacks that count for the state, by what they count: those of the newest fit()."""
    counting: dict[str, Any] = state.__dict__.setdefault("_hvd_counting", {})
    return counting


def _counters(state: Any, model: Any) -> list[Any]:
    return [callback for callback in _counting(state).values() if callback.model is model]


class Commit:
    """Commits every so many batches, and at the end of each epoch."""

    model: Any

    def _hvd_setup(self, state: Any, batches_per_commit: int) -> None:
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts the batches anew: all ranks have to commit at the same ones."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits if it is time. The end of an epoch is one commit, which comes when the epoch has ended."""
        self.batches_remaining -= 1
        if self.batches_remaining > 0:
            return
        self.batches_remaining = self.batches_per_commit
        counters = _counters(self.state, self.model)
        for callback in counters:
            callback._hvd_batch_done(batch)
        if not any(callback._hvd_is_last(batch) for callback in counters):
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        for callback in _counters(self.state, self.model):
            callback._hvd_epoch_done(epoch)
        self.commit()

    def commit(self) -> None:
        """Commits the state. Raises HostsUpdatedInterrupt on all ranks if the hosts have changed."""
        self.state.commit()


class _Counter:
    model: Any
    state: Any
    _hvd_what = ""

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts for the state from now on, in place of the last fit()'s callback."""
        _counting(self.state)[self._hvd_what] = self

    def _hvd_batch_done(self, batch: int) -> None:
        """After batch number `batch` of the epoch; again is the same as once."""

    def _hvd_epoch_done(self, epoch: int) -> None:
        """After an epoch; again is the same as once."""

    def _hvd_is_last(self, batch: int) -> bool:
        return False


class UpdateBatch(_Counter):
    """`state.batch` is the number of batches of the epoch that are done. An epoch that has begun is resumed there."""

    params: dict[str, Any]
    _hvd_what = "batch"

    def _hvd_setup(self, state: Any) -> None:
        self.state = state
        self._hvd_done = 0  # batches of this epoch that an earlier fit() has trained
        self._hvd_steps: int | None = None  # of a whole epoch
        self._hvd_stop = object()  # as the model's stop_training it says: of the epoch, by us

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how long an epoch is."""
        super().on_train_begin(logs)
        self._hvd_steps = self.params.get("steps")
        self._hvd_done = self.state.batch
        if self._hvd_done and self._hvd_steps is None and speaks():
            warn(
                f"{self._hvd_done} batches of this epoch are done, but the number of its batches is not known: it "
                "is trained as a whole\nhint: model.fit(..., steps_per_epoch=...)"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The progress bar shows what is left."""
        if self._hvd_done and self._hvd_steps is not None:
            self.params["steps"] = self._hvd_left

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts, and ends an epoch that is resumed when it is complete."""
        self._hvd_batch_done(batch)
        if self._hvd_done and self._hvd_is_last(batch) and not self.model.stop_training:
            self.model.stop_training = self._hvd_stop
            _end_epoch_of_data()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """No batch of the next epoch is done. The training goes on, unless other code has stopped it."""
        self._hvd_epoch_done(epoch)

    @property
    def _hvd_left(self) -> int:
        assert self._hvd_steps is not None
        return max(1, self._hvd_steps - self._hvd_done)  # Keras trains one batch at least

    def _hvd_batch_done(self, batch: int) -> None:
        self.state.batch = self._hvd_done + batch + 1

    def _hvd_epoch_done(self, epoch: int) -> None:
        self.state.batch = self._hvd_done = 0
        if self._hvd_steps is not None:
            self.params["steps"] = self._hvd_steps
        if self.model.stop_training is self._hvd_stop:
            self.model.stop_training = False

    def _hvd_is_last(self, batch: int) -> bool:
        return self._hvd_steps is not None and batch + 1 >= self._hvd_left


class UpdateEpoch(_Counter):
    """`state.epoch` is the number of epochs that are done, over all calls of fit()."""

    _hvd_what = "epoch"

    def _hvd_setup(self, state: Any) -> None:
        self.state = state
        self.initial_epoch = 0
        self._hvd_first: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """The first epoch of this fit() is `state.epoch`, whatever number fit() gives it."""
        super().on_train_begin(logs)
        self.initial_epoch, self._hvd_first = self.state.epoch, None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Learns fit()'s number of its first epoch: 0, or its initial_epoch."""
        if self._hvd_first is None:
            self._hvd_first = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts."""
        self._hvd_epoch_done(epoch)

    def _hvd_epoch_done(self, epoch: int) -> None:
        self.state.epoch = self.initial_epoch + epoch - (self._hvd_first or 0) + 1


def _end_epoch_of_data() -> None:
    """Tells the data that its epoch has ended. Keras does not if an epoch is stopped; a PyDataset needs to know."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        adapter = getattr(frame.f_locals.get("epoch_iterator"), "data_adapter", None)
        if frame.f_code.co_name == "fit" and adapter is not None:
            adapter.on_epoch_end()
            return
        frame = frame.f_back


def elastic_callback_classes(own: Any) -> types.SimpleNamespace:
    """`own`: the module `callbacks` of Keras 3 or tf-keras."""

    class CommitStateCallback(Commit, own.Callback):
        """Commits `state` every `batches_per_commit` batches, and at the end of each epoch.

        A commit is the point to which training returns if a worker is lost, and at which workers join and leave. The
        other callbacks may come before or after this one.
        """

        def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
            super().__init__()
            self._hvd_setup(state, batches_per_commit)

    class UpdateBatchStateCallback(UpdateBatch, own.Callback):
        """Keeps `state.batch`, the number of batches of the epoch that are done; 0 between epochs.

        The first epoch of fit() is shorter by that many batches, but Keras trains at least one.
        """

        def __init__(self, state: Any) -> None:
            super().__init__()
            self._hvd_setup(state)

    class UpdateEpochStateCallback(UpdateEpoch, own.Callback):
        """Keeps `state.epoch`, the number of epochs that are done: fit(epochs=total - state.epoch, ...)."""

        def __init__(self, state: Any) -> None:
            super().__init__()
            self._hvd_setup(state)

    classes = [CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback]
    return types.SimpleNamespace(**{made.__name__: made for made in classes})


_classes = elastic_callback_classes(keras.callbacks)

CommitStateCallback = _classes.CommitStateCallback
UpdateBatchStateCallback = _classes.UpdateBatchStateCallback
UpdateEpochStateCallback = _classes.UpdateEpochStateCallback
