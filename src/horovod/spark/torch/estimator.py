# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator and the TorchModel that its `fit` returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyspark import keyword_only

from horovod.core.wording import counted
from horovod.launcher.function.unpicklable import named
from horovod.spark.common import util
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.inference import Predictor, transform
from horovod.spark.common.params import Row, with_params
from horovod.spark.torch import remote
from horovod.spark.torch.util import deserialize, serialize

__all__ = ["Call", "TorchEstimator", "TorchModel"]


class _WithOptimizer:
    """Model and optimizer are saved as one: the optimizer holds the model's parameters."""

    def _to_save(self, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("model") is not None:
            values["model"] = serialize((values["model"], values.pop("optimizer", None)))
        return values

    def _from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("model") is not None:
            model, optimizer = deserialize(values["model"])
            values |= {"model": model, "optimizer": optimizer}
        return values


@with_params(
    Row("data_module", "the class that reads the data in a rank"),
    Row("input_shapes", "the shape of each feature, -1 for the batch"),
    Row("loss_constructors", "functions that make the losses in the ranks, in place of loss"),
    Row("train_minibatch_fn", "a function that trains one batch"),
)
class TorchEstimator(_WithOptimizer, HorovodEstimator):
    """Trains a PyTorch model on a DataFrame, on ranks that Spark starts.

    `model` and `optimizer` are the user's own; the optimizer has the model's parameters. `loss` is a function of
    (output, label), or one for each label; the labels' losses are weighted by `loss_weights`. `metrics` is a list of
    such functions, or of lists with one for each label. Features arrive as float32, in `input_shapes` if given. An
    integer label stays an integer unless it has the output's shape.
    """

    _prefix = "pytorch"
    _calls_callbacks = False
    _sent_apart: tuple[str, ...] = ("model", "optimizer", "callbacks")

    @keyword_only
    def __init__(
        self,
        num_proc: int | None = None,
        data_module: Any = None,
        model: torch.nn.Module | None = None,
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
        continuous_cols: Sequence[str] | None = None,
        categorical_cols: Sequence[str] | None = None,
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
        train_reader_num_workers: int | None = None,
        val_reader_num_workers: int | None = None,
        reader_pool_type: str = "thread",
        label_shapes: Sequence[Sequence[int]] | None = None,
        inmemory_cache_all: bool = False,
        use_gpu: bool = True,
        mp_start_method: str | None = None,
        backward_passes_per_step: int = 1,
    ) -> None:
        given = self._input_kwargs
        super().__init__()
        self.setParams(**given)

    def get_model_class(self) -> type:
        """The class of the models that `fit` returns."""
        return TorchModel

    def _check(self) -> None:
        super()._check()
        optimizer, loss, makers = self.getOptimizer(), self.getLoss(), self.getLossConstructors()
        if optimizer is None:
            raise ValueError("Optimizer parameter is required")
        if not isinstance(self.getModel(), torch.nn.Module):
            raise ValueError(f"model is a {type(self.getModel()).__name__}: expected a torch.nn.Module")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(
                f"optimizer is {optimizer!r}: expected an optimizer of the model's parameters\n"
                "hint: torch.optim.SGD(model.parameters(), lr=0.01)"
            )
        if loss and makers:
            raise ValueError("both loss and loss_constructors were given: expected one")
        if not loss and not makers:
            raise ValueError("loss is required: a function, or one for each label; or loss_constructors")
        labels = len(self.getLabelCols())
        for name, found in (("loss", loss), ("loss_constructors", makers)):
            if isinstance(found, (list, tuple)) and len(found) not in (1, labels):
                raise ValueError(
                    f"{name} has {counted(len(found), 'entry', 'entries')}: expected one"
                    + (f", or {labels}, one for each label" if labels > 1 else "")
                )
            for one in _listed(found):
                if not callable(one):
                    raise ValueError(f"{name} is {one!r}: expected a function, such as torch.nn.MSELoss()")
        for group in _groups(self.getMetrics()):
            for one in group:
                if not callable(one):
                    raise ValueError(f"a metric is {one!r}: expected a function of outputs and labels")
            if len(group) not in (1, labels):
                raise ValueError(f"a group of {counted(len(group), 'metric')}: expected 1 or {labels}, one for a label")
        shapes, features = self.getInputShapes(), self.getFeatureCols()
        if shapes and features and len(shapes) != len(features):
            raise ValueError(f"{counted(len(shapes), 'input shape')} for {counted(len(features), 'feature column')}")
        ours = {id(parameter) for parameter in self.getModel().parameters()}
        if any(id(each) not in ours for group in optimizer.param_groups for each in group["params"]):
            raise ValueError(
                "the optimizer has parameters that are not the model's\n"
                "hint: make it after the model: torch.optim.SGD(model.parameters(), ...)"
            )
        if self.getCallbacks() and not self._calls_callbacks:
            warnings.warn("TorchEstimator calls no callbacks; those of Keras and Lightning do", stacklevel=2)

    def _check_shapes(self, metadata: Any, features: list[str]) -> None:
        util.check_shape_compatibility(
            metadata, features, self.getLabelCols(), self.getInputShapes(), label_shapes=self.getLabelShapes()
        )

    def _model_bytes(self) -> bytes:
        parts = {"model": self.getModel(), "optimizer": self.getOptimizer()}
        with named(self._caller, parts, serialize):
            return serialize(tuple(parts.values()))

    def _options(self) -> Mapping[str, Any]:
        columns = {"label_cols": self.getLabelCols()}
        named = {"continuous_cols": self.getContinuousCols(), "categorical_cols": self.getCategoricalCols()}
        return {
            "losses": _listed(self.getLoss()),
            "loss_constructors": _listed(self.getLossConstructors()),
            "loss_weights": self.getLossWeights(),
            "metrics": _groups(self.getMetrics()),
            "input_shapes": self.getInputShapes(),
            "train_minibatch_fn": self.getTrainMinibatchFn(),
            "passes": self.getBackwardPassesPerStep(),
            "compression": self.getGradientCompression(),
            "data": {**columns, **named} if self.getDataModule() else {},
        }

    def _trainer(self) -> Any:
        return remote.train

    def _model_of(self, result: Mapping[str, Any], metadata: Any, features: list[str], run_id: str) -> Any:
        model, optimizer = deserialize(self._model_bytes())
        state = deserialize(result["model"])
        model.load_state_dict(state["model"])
        if optimizer is not None:  # a LightningModule makes its own
            optimizer.load_state_dict(state["optimizer"])
        return self.get_model_class()(
            history=result["history"],
            model=model,
            feature_columns=features,
            input_shapes=self.getInputShapes(),
            label_columns=self.getLabelCols(),
            optimizer=optimizer,
            run_id=run_id,
            _metadata=metadata,
            loss=self.getLoss(),
            loss_constructors=self.getLossConstructors(),
        )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _groups(metrics: Any) -> list[list[Any]]:
    return [_listed(group) for group in _listed(metrics)]


@with_params(
    Row("optimizer", "the optimizer, with its state after the training"),
    Row("input_shapes", "the shape of each feature, -1 for the batch"),
    Row("loss", "the loss, or one for each label"),
    Row("loss_constructors", "functions that make the losses"),
)
class TorchModel(_WithOptimizer, HorovodModel):
    """A trained PyTorch model. `getModel()` is the module, `getHistory()` the losses and metrics of each epoch."""

    @keyword_only
    def __init__(
        self,
        history: Any = None,
        model: torch.nn.Module | None = None,
        feature_columns: Sequence[str] | None = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
        label_columns: Sequence[str] | None = None,
        optimizer: Any = None,
        run_id: str | None = None,
        _metadata: Any = None,
        loss: Any = None,
        loss_constructors: Any = None,
    ) -> None:
        given = dict(self._input_kwargs)
        self._metadata = given.pop("_metadata", None)
        super().__init__()
        self.setParams(**given)

    def _transform(self, df: Any) -> Any:
        features, labels, shapes = self.getFeatureColumns(), self.getLabelColumns(), self.getInputShapes()
        model = self.getModel()
        with named(f"{type(self).__name__}.transform", {"model": model}, serialize):
            content = serialize(model)
        predictor = Predictor(content, _loaded, Call(shapes), _one_thread)
        return transform(df, predictor, features, labels, self.getOutputCols(), self._metadata)


def _loaded(content: bytes) -> torch.nn.Module:
    model: torch.nn.Module = deserialize(content)
    return model.eval()


def _one_thread() -> None:
    torch.set_num_threads(1)  # Spark runs one worker for each core


class Call:
    """Calls a model in a Spark worker."""

    def __init__(self, shapes: Sequence[Sequence[int]] | None) -> None:
        self._shapes = shapes

    def __call__(self, model: torch.nn.Module, inputs: Sequence[Any]) -> list[Any]:
        return remote.call_model(model, inputs, self._shapes)
