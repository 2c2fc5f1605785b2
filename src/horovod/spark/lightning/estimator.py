# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator on Lightning and its TorchModel: those of horovod.spark.torch, with a Trainer in the ranks."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyspark import keyword_only
from pyspark.ml.param import TypeConverters

from horovod.core.wording import quoted
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.params import Row, with_params
from horovod.spark.lightning import remote
from horovod.spark.torch import estimator as of_torch
from horovod.torch.lightning import PACKAGES, package

__all__ = ["TorchEstimator", "TorchModel"]

_FOR_PLAIN = ("optimizer", "loss", "loss_constructors", "loss_weights", "metrics")  # models without Lightning


@with_params(
    Row("num_gpus", "GPUs of each rank: 1 if there are some, or 0", None, None, "NumGPUs"),
    Row("logger", "a logger of Lightning; without it TensorBoard's, or CSV files"),
    Row("log_every_n_steps", "steps from one line of the log to the next", 50, TypeConverters.toInt),
    Row("loader_num_epochs", "how often the rows are read; without an end if it is not set"),
    Row("terminate_on_nan", "end the training with an error if a loss is not finite", False, TypeConverters.toBoolean),
    Row("profiler", "a profiler of Lightning, or its name"),
    Row("trainer_args", "more arguments for Lightning's Trainer; they override the estimator's"),
    Row("debug_data_loader", "print when threads of data loaders start and end", False),
    Row("train_async_data_loader_queue_size", "training batches that a thread loads ahead; no thread without it"),
    Row("val_async_data_loader_queue_size", "validation batches that a thread loads ahead; no thread without it"),
)
class TorchEstimator(of_torch.TorchEstimator):
    """Trains a LightningModule on a DataFrame, on ranks that Spark starts.

    A batch is {column: tensor}: features are float32, in `input_shapes` if given; labels and weights too, but integers
    stay integers. A torch.nn.Module with `optimizer` and `loss` becomes a LightningModule that logs `train_loss` and
    `val_loss`. `callbacks`, `logger`, `profiler` and `trainer_args` are those of the Trainer. The result has the best
    weights of a ModelCheckpoint among the callbacks, else the last ones. Its history is a list of {epoch, train:
    {loss}, metrics: what the module has logged}.
    """

    _calls_callbacks = True
    _sent_apart = ("model", "optimizer")

    # The parameters that the estimator of plain PyTorch has too: jscpd:ignore-start
    @keyword_only
    def __init__(
        self,
        num_proc: int | None = None,
        model: Any = None,
        backend: Any = None,
        store: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Any = None,
        loss_constructors: Any = None,
        metrics: Any = None,
        loss_weights: Sequence[float] | None = None,
        sample_weight_col: str | None = None,
        gradient_compression: Any = None,
        feature_cols: Sequence[str] | None = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
        validation: float | str | None = None,
        label_cols: Sequence[str] | None = None,
        callbacks: Any = None,
        batch_size: int | None = None,
        val_batch_size: int | None = None,
        epochs: int | None = None,
        verbose: int = 1,
        random_seed: int | None = None,
        shuffle_buffer_size: int | None = None,
        shuffle: bool = True,
        partitions_per_process: int | None = None,
        run_id: str | None = None,
        train_minibatch_fn: Callable[..., Any] | None = None,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        transformation_fn: Callable[[Any], Any] | None = None,
        transformation_edit_fields: Sequence[Any] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        train_reader_num_workers: int | None = None,
        trainer_args: Mapping[str, Any] | None = None,
        val_reader_num_workers: int | None = None,
        reader_pool_type: str | None = None,
        label_shapes: Sequence[Sequence[int]] | None = None,
        inmemory_cache_all: bool = False,
        num_gpus: int | None = None,
        logger: Any = None,
        log_every_n_steps: int = 50,
        data_module: Any = None,
        loader_num_epochs: int | None = None,
        terminate_on_nan: bool = False,
        profiler: Any = None,
        debug_data_loader: bool = False,
        train_async_data_loader_queue_size: int | None = None,
        val_async_data_loader_queue_size: int | None = None,
        use_gpu: bool = True,
        mp_start_method: str | None = None,
        # jscpd:ignore-end
    ) -> None:
        given = self._input_kwargs
        super().__init__()
        self.setParams(**given)

    def get_model_class(self) -> type:
        """The class of the models that `fit` returns."""
        return TorchModel

    def _check(self) -> None:
        lightning = importlib.import_module(self._package())
        model = self.getModel()
        if isinstance(model, lightning.LightningModule):
            HorovodEstimator._check(self)
            unused = [name for name in _FOR_PLAIN if self.getOrDefault(name)]
            if unused:
                warnings.warn(
                    f"{', '.join(unused)}: not used, as the model is a LightningModule with its own", stacklevel=2
                )
            if type(model).forward is lightning.LightningModule.forward:
                raise ValueError("the model has no `forward`, which the trained model's transform calls")
        else:
            super()._check()
        if self.getTrainMinibatchFn():
            raise ValueError(
                "train_minibatch_fn is for horovod.spark.torch\nhint: write training_step in a LightningModule"
            )
        if (self.getNumGPUs() or 0) > 1:
            raise ValueError(f"num_gpus is {self.getNumGPUs()}: expected 0 or 1, as each rank has a GPU of its own")
        _check_trainer_args(self.getTrainerArgs() or {}, lightning)

    def _package(self) -> str:
        """The import name of the Lightning of the model, or of one that can be imported."""
        found = [name for name in PACKAGES if name in sys.modules]
        model = self.getModel()
        return next((name for name in found if isinstance(model, sys.modules[name].LightningModule)), package())

    def _options(self) -> Mapping[str, Any]:
        return {
            **super()._options(),
            "package": self._package(),
            "num_gpus": self.getNumGPUs(),
            "callbacks": list(self.getCallbacks() or []),
            "terminate_on_nan": self.getTerminateOnNan(),
            "trainer": {
                "logger": True if self.getLogger() is None else self.getLogger(),
                "log_every_n_steps": self.getLogEveryNSteps(),
                "profiler": self.getProfiler(),
            },
            "trainer_args": dict(self.getTrainerArgs() or {}),
            "loading": {
                "num_reader_epochs": self.getLoaderNumEpochs(),
                "debug_data_loader": self.getDebugDataLoader(),
                "train_async_data_loader_queue_size": self.getTrainAsyncDataLoaderQueueSize(),
                "val_async_data_loader_queue_size": self.getValAsyncDataLoaderQueueSize(),
            },
        }

    def _trainer(self) -> Any:
        return remote.train


def _check_trainer_args(given: Mapping[str, Any], lightning: Any) -> None:
    hint = "hint: leave it out; the estimator's ranks are Horovod's already"
    for name in ("accelerator", "strategy", "distributed_backend"):
        if given.get(name) not in (None, "cpu", "gpu", "auto") and (name != "accelerator" or given[name] == "horovod"):
            raise ValueError(f"trainer_args has {name}={given[name]!r}\n{hint}")
    known = inspect.signature(lightning.Trainer.__init__).parameters
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(
            f"trainer_args has {quoted(unknown[0])}, which the Trainer of {lightning.__name__} {lightning.__version__} "
            "does not have"
        )


class TorchModel(of_torch.TorchModel):
    """A trained model. `getModel()` is the LightningModule, or the module that was given."""

    def get_prediction_fn(self) -> Callable[[Any, Sequence[Any]], list[Any]]:
        """The function that `transform` calls with a model and the feature columns of some rows, as NumPy arrays."""
        return of_torch.Call(self.getInputShapes())
