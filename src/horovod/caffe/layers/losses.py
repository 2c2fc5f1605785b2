# SPDX-License-Identifier: Apache-2.0
"""Losses and Accuracy.

A loss is a sum over a divisor, mostly the number of items of the batch. With several ranks the divisor stands for all
of them: a top shows this rank's share times the number of ranks, so that the mean over the ranks is the loss of the
whole batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from horovod.caffe.errors import CaffeError
from horovod.caffe.files import read_blob
from horovod.caffe.layers.base import Context, Layer, canonical_axis, layer

__all__ = ["Accuracy", "SoftmaxWithLoss"]

_LEAST = 1e-20  # what Caffe takes the logarithm of, at least
_MOST = -math.log(torch.finfo(torch.float32).tiny)  # of the softmax loss: its probability is FLT_MIN at least


class Loss(Layer):
    """A loss has the weight 1 if the file gives none."""

    bottoms = (2, 2)

    def default_loss_weight(self, index: int) -> float:
        return 1.0 if index == 0 else 0.0


class _Normalized(Loss):
    """A loss with loss_param: what is ignored, and what the sum is divided by."""

    default_mode = "VALID"

    def __init__(self, proto: Any, context: Context) -> None:
        super().__init__(proto, context)
        param = proto.loss_param
        mode = param.NormalizationMode.Name(param.normalization) if param.HasField("normalization") else None
        if mode is None and param.HasField("normalize"):
            mode = "VALID" if param.normalize else "BATCH_SIZE"
        self.mode: str = mode or self.default_mode
        self.is_mean = self.mode != "NONE"
        self.ignored: int | None = param.ignore_label if param.HasField("ignore_label") else None

    def divisor(self, outer: int, labels: Tensor) -> float | Tensor:
        """The divisor of this rank's sum, as if all ranks had the same one."""
        if self.mode == "NONE":
            return 1.0
        if self.mode == "BATCH_SIZE":
            return max(1.0, float(outer))
        if self.mode == "FULL" or self.ignored is None:
            return max(1.0, float(labels.numel()))
        valid = (labels != self.ignored).sum().to(torch.get_default_dtype())
        if self.training and not valid.is_meta:
            valid = self.context.replicas.mean(valid, f"caffe.{self.name}.valid")
        # At least 1 in total, as for one process.
        return valid.clamp(min=1.0 / self.context.replicas.size if self.training else 1.0)


def split_axes(scores: Tensor, labels: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Scores as (outer, classes, inner) and labels, as integers, as (outer, inner)."""
    axis = canonical_axis(axis, scores.ndim)
    outer, inner = scores.shape[:axis].numel(), scores.shape[axis + 1 :].numel()
    if labels.numel() != outer * inner:
        raise CaffeError(f"expected {outer * inner} labels for scores of {list(scores.shape)}, got {labels.numel()}")
    return scores.reshape(outer, scores.shape[axis], inner), labels.reshape(outer, inner).long()


def check_labels(labels: Tensor, classes: int, ignored: int | None) -> None:
    """Raises CaffeError for a label that is not a class."""
    if labels.is_meta:
        return
    low, high = (int(value) for value in torch.aminmax(labels)) if labels.numel() else (0, 0)
    if low >= 0 and high < classes:
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        found = int(labels[wrong][0])
        raise CaffeError(f"label {found}: expected 0 to {classes - 1}, because the scores are for {classes} classes")


class _AtMost(torch.autograd.Function):
    """The values, but none above a bound. The gradient goes through as if there were no bound, as in Caffe."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, bound: float) -> Tensor:
        return values.clamp(max=bound)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


@layer("SoftmaxWithLoss", "SoftmaxLoss")
class SoftmaxWithLoss(_Normalized):
    """Softmax and the negative logarithm of the label's probability. A second top gets the probabilities."""

    tops = (1, 2)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        axis = self.proto.softmax_param.axis
        scores, labels = split_axes(bottoms[0], bottoms[1], axis)
        check_labels(labels, scores.shape[1], self.ignored)
        ignored = -100 if self.ignored is None else self.ignored
        if scores.shape[2] == 1:
            each = F.cross_entropy(scores[:, :, 0], labels[:, 0], ignore_index=ignored, reduction="none")
        else:
            each = F.cross_entropy(scores, labels, ignore_index=ignored, reduction="none")
        tops = [_AtMost.apply(each, _MOST).sum() / self.divisor(scores.shape[0], labels)]
        if len(self.proto.top) == 2:
            tops.append(bottoms[0].softmax(canonical_axis(axis, bottoms[0].ndim)))
        return tops


@layer("InfogainLoss")
class InfogainLoss(_Normalized):
    """Softmax and a sum of the classes' logarithms, weighted by the label's row of a matrix (a file, or a bottom)."""

    bottoms, tops = (2, 3), (1, 2)

    def setup(self, bottoms: list[Tensor]) -> None:
        self.matrix: Tensor | None = None
        if len(bottoms) == 2:
            if not self.proto.infogain_loss_param.source:
                raise CaffeError("expected a third bottom, or infogain_loss_param.source, with the matrix")
            self.matrix = torch.from_numpy(read_blob(self.proto.infogain_loss_param.source)).to(
                torch.get_default_dtype()
            )

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        axis = self.proto.infogain_loss_param.axis
        scores, labels = split_axes(bottoms[0], bottoms[1], axis)
        classes = scores.shape[1]
        matrix = bottoms[2] if self.matrix is None else self.matrix.to(scores.device)
        if matrix.numel() != classes * classes:
            raise CaffeError(f"expected a matrix of {classes} x {classes}, got {list(matrix.shape)}")
        check_labels(labels, classes, self.ignored)
        valid = torch.ones_like(labels) if self.ignored is None else labels != self.ignored
        rows = matrix.reshape(classes, classes)[labels * valid].movedim(-1, 1)
        logarithms = scores.softmax(1).clamp(min=_LEAST).log()
        total = -(rows * logarithms * valid[:, None]).sum()
        tops = [total / self.divisor(scores.shape[0], labels)]
        if len(self.proto.top) == 2:
            tops.append(bottoms[0].softmax(canonical_axis(axis, bottoms[0].ndim)))
        return tops


@layer("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(_Normalized):
    """The cross entropy of each value's sigmoid and its target."""

    default_mode = "BATCH_SIZE"

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        scores, targets = same_size(bottoms)
        each = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        if self.ignored is not None:
            each = each * (targets != self.ignored)
        return [each.sum() / self.divisor(scores.shape[0], targets)]


def same_size(bottoms: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The first two bottoms in the first one's shape."""
    if bottoms[0].numel() != bottoms[1].numel():
        raise CaffeError(f"the bottoms' sizes differ: {list(bottoms[0].shape)} and {list(bottoms[1].shape)}")
    return bottoms[0], bottoms[1].reshape(bottoms[0].shape)


@layer("EuclideanLoss")
class EuclideanLoss(Loss):
    """The sum of squared differences over twice the batch size."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        a, b = same_size(bottoms)
        return [(a - b).square().sum() / (2 * a.shape[0])]


@layer("MultinomialLogisticLoss")
class MultinomialLogisticLoss(Loss):
    """The negative logarithm of the label's probability; the bottom has probabilities."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        probabilities, labels = bottoms[0].flatten(1), bottoms[1].reshape(-1).long()
        check_labels(labels, probabilities.shape[1], None)
        chosen = probabilities.gather(1, labels[:, None])
        return [-chosen.clamp(min=_LEAST).log().sum() / labels.numel()]


@layer("HingeLoss")
class HingeLoss(Loss):
    """The one-against-all hinge of the scores, L1 or L2."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        scores, labels = bottoms[0].flatten(1), bottoms[1].reshape(-1).long()
        check_labels(labels, scores.shape[1], None)
        sign = torch.ones_like(scores).scatter(1, labels[:, None], -1.0)
        margin = (1 + sign * scores).clamp(min=0)
        param = self.proto.hinge_loss_param
        return [(margin if param.norm == param.L1 else margin.square()).sum() / scores.shape[0]]


@layer("ContrastiveLoss")
class ContrastiveLoss(Loss):
    """Draws pairs that are similar (third bottom 1) together, and pushes others apart up to the margin."""

    bottoms = (3, 3)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param = self.proto.contrastive_loss_param
        squared = (bottoms[0] - bottoms[1]).flatten(1).square().sum(1)
        similar = bottoms[2].reshape(-1) != 0
        if param.legacy_version:
            apart = (param.margin - squared).clamp(min=0)
        else:
            # The root's gradient at 0 is infinite; there is none to follow there.
            distance = torch.where(squared > 0, squared, torch.ones_like(squared)).sqrt() * (squared > 0)
            apart = (param.margin - distance).clamp(min=0).square()
        return [torch.where(similar, squared, apart).sum() / (2 * squared.shape[0])]


@layer("Accuracy")
class Accuracy(Layer):
    """The share of items whose label is among the top_k scores. A second top gets the share of each class."""

    bottoms, tops = (2, 2), (1, 2)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param = self.proto.accuracy_param
        scores, labels = split_axes(bottoms[0].detach(), bottoms[1], param.axis)
        classes = scores.shape[1]
        ignored = param.ignore_label if param.HasField("ignore_label") else None
        check_labels(labels, classes, ignored)
        if param.top_k > classes:
            raise CaffeError(f"top_k is {param.top_k}, and the scores are for {classes} classes")
        valid = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
        chosen = torch.where(valid, labels, 0)
        # Equal scores count against the label.
        others = (scores >= scores.gather(1, chosen[:, None])).sum(1) - 1
        hits = (others < param.top_k) & valid
        tops = [hits.sum() / valid.sum().clamp(min=1)]
        if len(self.proto.top) == 2:
            wanted = F.one_hot(chosen, classes) * valid[..., None] if not labels.is_meta else None
            if wanted is None:
                tops.append(torch.empty(classes, device="meta"))
            else:
                each = wanted.sum((0, 1))
                tops.append((wanted * hits[..., None]).sum((0, 1)) / each.clamp(min=1))
        return tops
