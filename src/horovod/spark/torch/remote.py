# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator's ranks: the training loop.

An integer label that has the output's shape is compared by value, so it takes the output's type. With another shape it
is the index of a class, and stays an integer. A whole number of float type is an index too if the loss takes classes:
Spark ML's own indices are of type double.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import horovod.torch as hvd
from horovod.core.wording import counted, quoted
from horovod.spark.common.training import Saver, Task, data_module_of, device_kind, same_device, saver_of, say
from horovod.spark.torch.datamodule import ParquetTorchDataModule
from horovod.spark.torch.util import deserialize, serialize

__all__ = ["Losses", "call_model", "explained", "inputs_of", "listed", "train"]

_INDICES = (torch.nn.MultiLabelMarginLoss,)  # whose labels are indices in the output's shape
# Losses whose labels are indices unless these have the output's shape.
_CLASSES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.MultiMarginLoss)
_OF_SHAPES = re.compile("shape|size|dimension", re.IGNORECASE)
_CLASS_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)


def train(task: Task) -> dict[str, Any] | None:
    """Trains in a rank; the result of rank 0."""
    hvd.init()
    kind = device_kind(task, torch.cuda.is_available())
    same_device(hvd.allgather_object(kind))
    device = torch.device("cpu")
    if kind == "gpu":
        index = 0 if torch.cuda.device_count() == 1 else hvd.local_rank()
        torch.cuda.set_device(index)
        device = torch.device("cuda", index)
    if task.seed is not None:
        torch.manual_seed(task.seed + hvd.rank())
    model, optimizer = deserialize(task.model)
    if task.checkpoint is not None:
        checkpoint = deserialize(task.checkpoint)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    model.to(device)
    optimizer.load_state_dict(optimizer.state_dict())  # moves its state to the parameters' device
    _scale_rate(optimizer, hvd.size())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = task.options["compression"]
    wrapped = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=task.options["passes"],
        **({} if compression is None else {"compression": compression}),
    )
    data = data_module_of(task, ParquetTorchDataModule, hvd.rank(), hvd.size(), drop_last=True, **task.options["data"])
    with data, saver_of(task, hvd.rank()) as saver:
        return _Loop(task, model, wrapped, device, data, saver).run()


def _scale_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor


class Losses:
    """The labels of a task and the losses of its model."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        options = task.options
        losses = options["losses"] or [make() for make in options["loss_constructors"]]
        self.losses = losses * len(task.labels) if len(losses) == 1 else losses
        self.weights = options["loss_weights"] or [1 / len(task.labels)] * len(task.labels)
        self.sizes: list[int] = [1] * len(task.labels)

    def parts(self, batch: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        task = self.task
        inputs = inputs_of([batch[name].to(self.device) for name in task.features], task.options["input_shapes"])
        labels = [batch[name].to(self.device) for name in task.labels]
        if task.label_shapes:
            labels = [label.reshape(tuple(shape)) for label, shape in zip(labels, task.label_shapes, strict=True)]
        weights = batch[task.sample_weight].to(self.device).float() if task.sample_weight else None
        return inputs, labels, weights

    def fitted(self, outputs: Any, labels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and labels as lists, each label with the shape and type that its loss needs."""
        found = listed(outputs)
        if len(found) != len(labels):
            raise ValueError(
                f"the model has {counted(len(found), 'output')}, and there are {counted(len(labels), 'label column')}: "
                f"{', '.join(map(quoted, self.task.labels))}"
            )
        self.sizes = [output[:1].numel() for output in found]
        fitted = []
        for output, label, loss in zip(found, labels, self.losses, strict=True):
            if not self.task.label_shapes and label.numel() == output.numel():
                label = label.reshape(output.shape)
            if label.is_floating_point() and label.numel() != output.numel() and _takes_classes(loss):
                label = _classes(label)
            elif label.is_floating_point() or label.shape == output.shape and not isinstance(loss, _INDICES):
                label = label.to(output.dtype)
            else:
                label = label.long()
            fitted.append(label)
        return found, fitted

    def loss(self, outputs: Sequence[Tensor], labels: Sequence[Tensor], sample_weights: Tensor | None) -> Tensor:
        outputs, labels = self.fitted(outputs, labels)
        total: Any = 0
        for loss, weight, output, label in zip(self.losses, self.weights, outputs, labels, strict=True):
            total = total + weight * _weighted(loss, output, label, sample_weights)
        return total


class _Loop(Losses):
    """The epochs of one rank."""

    def __init__(
        self, task: Task, model: torch.nn.Module, optimizer: Any, device: torch.device, data: Any, saver: Saver | None
    ) -> None:
        super().__init__(task, device)
        self.model, self.optimizer, self.data, self.saver = model, optimizer, data, saver
        self.minibatch = task.options["train_minibatch_fn"] or _minibatch
        self.batches = 0

    def run(self) -> dict[str, Any] | None:
        """All epochs; on rank 0 the result for the driver."""
        history = []
        batches = iter(self.data.train_data())
        for epoch in range(self.task.epochs):
            entry: dict[str, Any] = {"epoch": epoch, "train": self._train(_some(batches, self.task.train_steps))}
            if self.task.val_plan is not None:
                entry["validation"] = self._validate(_some(iter(self.data.val_data()), self.task.val_steps))
            history.append(entry)
            if hvd.rank() == 0:
                self._report(entry)
                if self.saver is not None:
                    self.saver.log(entry)
                    self._save(self.saver, epoch)
        if hvd.rank() != 0:
            return None
        return {
            "history": history,
            "model": serialize(self._state()),
            "sizes": self.sizes,
            "failure": self.saver.failure if self.saver is not None else "",
        }

    def _state(self) -> dict[str, Any]:
        """Model and optimizer, with the learning rate of one rank."""
        _scale_rate(self.optimizer, 1 / hvd.size())
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        content = deserialize(serialize(state))
        _scale_rate(self.optimizer, hvd.size())
        return content

    def _save(self, saver: Saver, epoch: int) -> None:
        with open(saver.checkpoint, "wb") as file:
            file.write(serialize({**self._state(), "epoch": epoch}))
        saver.upload()

    def _report(self, entry: dict[str, Any]) -> None:
        parts = [
            f"{kind} loss {entry[key]['loss']:.4g}"
            for key, kind in (("train", "training"), ("validation", "validation"))
            if key in entry
        ]
        say(self.task, f"epoch {entry['epoch'] + 1} of {self.task.epochs}: {', '.join(parts)}")

    def _train(self, batches: Iterable[dict[str, Tensor]]) -> dict[str, Any]:
        self.model.train()
        means = _Means(self.task)
        for batch in batches:
            inputs, labels, sample_weights = self.parts(batch)
            with explained(inputs, self.task.options["input_shapes"]):
                outputs, loss = self.minibatch(
                    self.model,
                    self.optimizer,
                    self.fitted,
                    self.loss,
                    inputs,
                    labels,
                    sample_weights,
                    self.task.options["passes"],
                    self.batches,
                )
            self.batches += 1
            means.add(loss, *self.fitted(outputs, labels), sample_weights)
        return means.of_all_ranks()

    def _validate(self, batches: Iterable[dict[str, Tensor]]) -> dict[str, Any]:
        self.model.eval()
        means = _Means(self.task)
        with torch.no_grad():
            for batch in batches:
                inputs, labels, sample_weights = self.parts(batch)
                outputs, labels = self.fitted(self.model(*inputs), labels)
                means.add(self.loss(outputs, labels, sample_weights), outputs, labels, sample_weights)
        return means.of_all_ranks()


def _takes_classes(loss: Any) -> bool:
    return isinstance(loss, _CLASSES) or loss in _CLASS_FUNCTIONS


def _classes(label: Tensor) -> Tensor:
    whole = label.long()
    if not torch.equal(whole.to(label.dtype), label):
        raise ValueError(
            "the label column has fractions, but the loss takes indices of classes\n"
            "hint: index the labels, for example with StringIndexer"
        )
    return whole


def _some(batches: Any, count: int) -> Iterable[Any]:
    return itertools.islice(batches, count)


def listed(outputs: Any) -> list[Tensor]:
    """The outputs of a model as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def inputs_of(columns: Sequence[Tensor], shapes: Sequence[Sequence[int]] | None) -> list[Tensor]:
    """The features as float32, in the shapes that the model takes."""
    floats = [column.float() for column in columns]
    if shapes is None:
        return floats
    return [column.reshape(tuple(shape)) for column, shape in zip(floats, shapes, strict=True)]


@contextlib.contextmanager
def explained(inputs: Sequence[Tensor], shapes: Sequence[Sequence[int]] | None) -> Iterator[None]:
    """Adds a hint to an error of PyTorch about shapes, if no shapes were given and a feature is one number of a row."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if shapes is None and any(each.ndim == 1 for each in inputs) and _OF_SHAPES.search(str(error)):
            wanted = [[-1, *(each.shape[1:] or (1,))] for each in inputs]
            error.args = (
                f"{error}\nhint: a feature of one number has the shape [rows], unless input_shapes says otherwise: "
                f"input_shapes={wanted} makes it [rows, 1]",
            )
        raise


def call_model(model: torch.nn.Module, columns: Sequence[Any], shapes: Sequence[Sequence[int]] | None) -> list[Any]:
    """The outputs of a model for NumPy features, as arrays."""
    # A copy: Arrow's memory is read-only.
    inputs = inputs_of([torch.from_numpy(column.copy()) for column in columns], shapes)
    with torch.no_grad(), explained(inputs, shapes):
        outputs = model(*inputs)
    return [output.numpy() for output in listed(outputs)]


def _weighted(loss: Callable[..., Tensor], output: Tensor, label: Tensor, weights: Tensor | None) -> Tensor:
    """The loss of one output; with weights, each row's loss is multiplied by its weight, then the mean is taken."""
    if weights is None:
        return loss(output, label)
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        before, loss.reduction = loss.reduction, "none"
        try:
            rows = loss(output, label)
        finally:
            loss.reduction = before
    elif "reduction" in inspect.signature(loss).parameters:
        rows = loss(output, label, reduction="none")
    else:
        raise ValueError(
            "sample_weight_col needs losses of single rows, and the loss has no `reduction`\n"
            "hint: use a loss of torch.nn or torch.nn.functional, or a function with the keyword reduction='none'"
        )
    return (rows.reshape(len(weights), -1).mean(1) * weights).mean()


def _minibatch(
    model: torch.nn.Module,
    optimizer: Any,
    transform_outputs: Callable[..., Any],
    loss_fn: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    labels: Sequence[Tensor],
    sample_weights: Tensor | None,
    backward_passes_per_step: int,
    batch_idx: int,
) -> tuple[Any, Tensor]:
    """One batch: forward, backward, and a step each `backward_passes_per_step` batches."""
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    if (batch_idx + 1) % backward_passes_per_step == 0:
        optimizer.step()
        optimizer.zero_grad()
    return outputs, loss


class _Means:
    """Loss and metrics of an epoch, as means over the rows of all ranks."""

    def __init__(self, task: Task) -> None:
        self._groups = task.options["metrics"]
        self._labels = task.labels
        self._sums: Tensor | None = None
        self._rows = 0

    def add(self, loss: Tensor, outputs: list[Tensor], labels: list[Tensor], weights: Tensor | None) -> None:
        """Counts a batch."""
        rows = len(labels[0])
        values = [loss.detach().reshape(())]
        with torch.no_grad():
            for group in self._groups:
                functions = group * len(labels) if len(group) == 1 else group
                for function, output, label in zip(functions, outputs, labels, strict=True):
                    values.append(torch.as_tensor(function(output.detach(), label)).reshape(()))
        batch = torch.stack([value.to("cpu", torch.float64) for value in values]) * rows
        self._sums = batch if self._sums is None else self._sums + batch
        self._rows += rows

    def of_all_ranks(self) -> dict[str, Any]:
        """{loss, all_metrics: [{group_<i>_<label>: value}]}."""
        count = 1 + len(self._groups) * len(self._labels)
        sums = torch.zeros(count, dtype=torch.float64) if self._sums is None else self._sums
        total = hvd.allreduce(
            torch.cat([sums, torch.tensor([float(self._rows)], dtype=torch.float64)]), op=hvd.Sum, name="means"
        )
        loss, *metrics = (total[:-1] / total[-1].clamp(min=1)).tolist()
        found = iter(metrics)
        groups = [
            {f"group_{index}_{label}": next(found) for label in self._labels} for index in range(len(self._groups))
        ]
        return {"loss": loss, "all_metrics": groups}
