# SPDX-License-Identifier: Apache-2.0
"""Horovod's callbacks as classes of Keras 3's Callback or of tf.keras'.

horovod.keras.callbacks has the first, horovod.tensorflow.keras.callbacks the second, which may be tf-keras'.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from horovod.core import context as contexts
from horovod.keras import callback_parts as parts

__all__ = ["callback_classes"]


def callback_classes(own: Any) -> types.SimpleNamespace:
    """`own`: the module `callbacks` of Keras 3 or tf-keras."""

    class BroadcastGlobalVariablesCallback(parts.Broadcast, own.Callback):
        """All ranks start as the root does: weights, slots, iterations.

        Nothing is broadcast again when fit() of the same model is called again.
        """

        def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
            super().__init__()
            self._hvd_setup(root_rank, device, local_variables)

    class MetricAverageCallback(parts.MetricAverage, own.Callback):
        """Averages metrics over the ranks at the end of each epoch. To stand before callbacks that read them."""

        def __init__(self, device: str = "") -> None:
            super().__init__()

    class LearningRateScheduleCallback(parts.LearningRateSchedule, own.Callback):
        """Sets the learning rate to initial_lr * multiplier(epoch) while start_epoch <= epoch < end_epoch.

        multiplier: a function, or a number for number ** (epoch - start_epoch). staircase: once an epoch, else every
        batch. momentum_correction: the velocities of an optimizer with momentum follow.
        """

        def __init__(
            self,
            initial_lr: float,
            multiplier: Callable[[float], float] | float,
            start_epoch: int = 0,
            end_epoch: int | None = None,
            staircase: bool = True,
            momentum_correction: bool = True,
            steps_per_epoch: int | None = None,
        ) -> None:
            super().__init__()
            self._hvd_setup(
                initial_lr, multiplier, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch
            )

    class LearningRateWarmupCallback(parts.LearningRateWarmup, own.Callback):
        """Raises the learning rate from initial_lr / size to initial_lr within warmup_epochs.

        See Goyal et al. 2017, "Accurate, Large Minibatch SGD". verbose: rank 0 says when it is over.
        """

        def __init__(
            self,
            initial_lr: float,
            warmup_epochs: int = 5,
            momentum_correction: bool = True,
            steps_per_epoch: int | None = None,
            verbose: int = 0,
        ) -> None:
            super().__init__()
            self._hvd_setup_warmup(initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)

    class CheckReplicasCallback(parts.CheckReplicas, own.Callback):
        """Compares all bits of the ranks' trainable variables and of the optimizer's, after every so many batches.

        Training ends with HorovodInternalError if some differ. Not for models with variables that each rank trains
        alone. Raises ValueError if `every` is not a positive number.
        """

        def __init__(self, every: int = 1000) -> None:
            super().__init__()
            self._hvd_setup_check(every)

    class BestModelCheckpoint(own.ModelCheckpoint):
        """ModelCheckpoint with save_best_only, written by rank 0 only.

        `filepath` may be set later, as the Spark estimator does.
        """

        def __init__(
            self,
            monitor: str = "val_loss",
            verbose: int = 0,
            save_weights_only: bool = False,
            mode: str = "auto",
            save_freq: Any = "epoch",
            filepath: Any = None,
        ) -> None:
            ending = ".weights.h5" if save_weights_only else ".keras"
            super().__init__(
                filepath=filepath or f"best_model{ending}",
                monitor=monitor,
                verbose=verbose,
                save_best_only=True,
                save_weights_only=save_weights_only,
                mode=mode,
                save_freq=save_freq,
            )
            if filepath is None:
                self.filepath = None

        def _save_model(self, *args: Any, **kwargs: Any) -> None:
            if contexts.rank() != 0:
                return
            if self.filepath is None:
                raise ValueError("BestModelCheckpoint: set its `filepath` before training")
            super()._save_model(*args, **kwargs)

    classes = [
        BroadcastGlobalVariablesCallback,
        MetricAverageCallback,
        LearningRateScheduleCallback,
        LearningRateWarmupCallback,
        CheckReplicasCallback,
        BestModelCheckpoint,
    ]
    return types.SimpleNamespace(**{made.__name__: made for made in classes})
