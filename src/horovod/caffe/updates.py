# SPDX-License-Identifier: Apache-2.0
"""The six solvers' update rules, as a PyTorch optimizer, so that horovod.torch.DistributedOptimizer wraps it.

Caffe's SGD has the rate inside its velocity, and its Adam leaves delta outside of the bias correction: both differ from
PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from horovod.caffe.errors import CaffeError, nearest
from horovod.caffe.net import Parameter

__all__ = ["CaffeOptimizer"]


class CaffeOptimizer(torch.optim.Optimizer):
    """step() clips, divides by iter_size, decays, and updates, in this order.

    `rate`, `momentum` and `iteration` are set before each step. `history`: one tensor a parameter, or first all of one
    kind and then all of the other. Raises CaffeError for settings that do not fit the type.
    """

    def __init__(self, parameters: list[Parameter], solver: Any) -> None:
        trained = [one for one in parameters if one.tensor.requires_grad]
        if not trained:
            raise CaffeError("the net has no weights to train")
        self._solver, self._all = solver, parameters
        self.rate, self.momentum, self.iteration = 0.0, float(solver.momentum), 0
        if solver.type not in _RULES:
            raise CaffeError(f"unknown solver type {solver.type!r}{nearest(solver.type, _RULES)}")
        if solver.regularization_type not in ("L1", "L2"):
            raise CaffeError(f"unknown regularization_type {solver.regularization_type!r}; expected L1 or L2")
        if solver.type in ("AdaGrad", "RMSProp") and solver.momentum:
            raise CaffeError(f"{solver.type} has no momentum, got {solver.momentum:g}")
        if solver.type == "RMSProp" and not 0 <= solver.rms_decay < 1:
            raise CaffeError(f"rms_decay must be at least 0 and less than 1, got {solver.rms_decay:g}")
        kinds = 2 if solver.type in ("AdaDelta", "Adam") else 1
        self.history = [torch.zeros_like(one.tensor, requires_grad=False) for _ in range(kinds) for one in parameters]
        super().__init__([one.tensor for one in trained], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Uses the gradients, which are sums over iter_size passes."""
        scale = self._clipping() / self._solver.iter_size
        for index, one in enumerate(self._all):
            if one.lr_mult == 0:
                continue
            weight = one.tensor
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            if scale != 1:
                gradient.mul_(scale)
            self._decay(gradient, one)
            rate = self.rate * self._local_rate(gradient, one)
            _RULES[self._solver.type](self, weight, gradient, index, rate)

    def _clipping(self) -> float:
        """The factor for the gradients that keeps their common norm within clip_gradients."""
        limit = self._solver.clip_gradients
        if limit < 0:
            return 1.0
        gradients = [one.tensor.grad for one in self._all if one.tensor.grad is not None]
        norm = math.sqrt(sum(float(gradient.square().sum(dtype=torch.float64)) for gradient in gradients))
        return limit / norm if norm > limit else 1.0

    def _decay(self, gradient: Tensor, one: Parameter) -> None:
        decay = self._solver.weight_decay * one.decay_mult
        if decay:
            weight = one.tensor
            gradient.add_(weight if self._solver.regularization_type == "L2" else weight.sign(), alpha=decay)

    def _local_rate(self, gradient: Tensor, one: Parameter) -> float:
        """lr_mult, or with local_lr_auto (LARS) a ratio of the norms of weights and gradient."""
        if not self._solver.local_lr_auto or one.lr_mult <= 0:
            return one.lr_mult
        weight_norm, gradient_norm = float(one.tensor.norm()), float(gradient.norm())
        if not (weight_norm > 0 and gradient_norm > 0):
            return one.lr_mult
        decay = self._solver.weight_decay * weight_norm
        return float(self._solver.local_gw_ratio * weight_norm / (gradient_norm + decay))

    def _second(self, index: int) -> Tensor:
        return self.history[len(self._all) + index]

    def _sgd(self, weight: Tensor, gradient: Tensor, index: int, rate: float) -> None:
        velocity = self.history[index].mul_(self.momentum).add_(gradient, alpha=rate)
        weight.sub_(velocity)

    def _nesterov(self, weight: Tensor, gradient: Tensor, index: int, rate: float) -> None:
        velocity, m = self.history[index], self.momentum
        weight.add_(velocity, alpha=m)
        velocity.mul_(m).add_(gradient, alpha=rate)
        weight.sub_(velocity, alpha=1 + m)

    def _adagrad(self, weight: Tensor, gradient: Tensor, index: int, rate: float) -> None:
        squares = self.history[index].addcmul_(gradient, gradient)
        weight.addcdiv_(gradient, squares.sqrt().add_(self._solver.delta), value=-rate)

    def _rmsprop(self, weight: Tensor, gradient: Tensor, index: int, rate: float) -> None:
        decay = self._solver.rms_decay
        squares = self.history[index].mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        weight.addcdiv_(gradient, squares.sqrt().add_(self._solver.delta), value=-rate)

    def _adadelta(self, weight: Tensor, gradient: Tensor, index: int, rate: float) -> None:
        m, delta = self.momentum, self._solver.delta
        squares, steps = self.history[index], self._second(index)
        squares.mul_(m).addcmul_(gradient, gradient, value=1 - m)
        value = ((steps + delta) / (squares + delta)).sqrt_().mul_(gradient)
        steps.mul_(m).addcmul_(value, value, value=1 - m)
        weight.sub_(value, alpha=rate)

    def _adam(self, weight: Tensor, gradient: Tensor, index: int, rate: float) -> None:
        first, second, time = self.momentum, self._solver.momentum2, self.iteration + 1
        mean = self.history[index].mul_(first).add_(gradient, alpha=1 - first)
        squares = self._second(index).mul_(second).addcmul_(gradient, gradient, value=1 - second)
        correction = math.sqrt(1 - second**time) / (1 - first**time)
        weight.addcdiv_(mean, squares.sqrt().add_(self._solver.delta), value=-rate * correction)


_RULES = {
    "SGD": CaffeOptimizer._sgd,
    "Nesterov": CaffeOptimizer._nesterov,
    "AdaGrad": CaffeOptimizer._adagrad,
    "RMSProp": CaffeOptimizer._rmsprop,
    "AdaDelta": CaffeOptimizer._adadelta,
    "Adam": CaffeOptimizer._adam,
}
