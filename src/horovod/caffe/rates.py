# SPDX-License-Identifier: Apache-2.0
"""The learning rate of an iteration: BVLC's seven policies, and Intel's plateau, multifixed and warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horovod.caffe.errors import CaffeError, nearest

__all__ = ["Progress", "Rates"]


@dataclass
class Progress:
    """The memory of a policy. A solver state keeps it."""

    current_step: int = 0
    minimum_loss: float = math.inf
    iteration_of_last_event: int = 0


class Rates:
    """rate(i) is the rate of iteration i; iterations come in order. Raises CaffeError for settings that are missing."""

    def __init__(self, solver: Any) -> None:
        self._solver = solver
        self.progress = Progress()
        if not solver.HasField("lr_policy"):
            raise CaffeError("lr_policy is missing")
        if solver.lr_policy not in _POLICIES:
            raise CaffeError(f"unknown lr_policy {solver.lr_policy!r}{nearest(solver.lr_policy, _POLICIES)}")
        self._policy, needed = _POLICIES[solver.lr_policy]
        for name in needed:
            present = len(getattr(solver, name)) if name in _LISTS else solver.HasField(name)
            if not present:
                raise CaffeError(f"lr_policy {solver.lr_policy!r} needs {name}")
        if solver.lr_policy == "step" and solver.stepsize < 1:
            raise CaffeError(f"stepsize must be at least 1, got {solver.stepsize}")
        if len(solver.stagelr) != len(solver.stageiter):
            raise CaffeError(f"expected as many stageiter as stagelr, got {len(solver.stageiter)}")

    @property
    def follows_loss(self) -> bool:
        """True if rate() needs the loss."""
        return bool(self._solver.lr_policy == "plateau")

    def rate(self, iteration: int, loss: float = math.inf) -> float:
        """`loss`: the smoothed loss, the same on all ranks; only plateau uses it."""
        warm, start = self._solver.warmup_iter, self._solver.warmup_start_lr
        if iteration < warm:
            return float((iteration * self._solver.base_lr + (warm - iteration) * start) / warm)
        return float(self._policy(self._solver, self.progress, iteration, loss))

    def momentum_factor(self, iteration: int) -> float:
        """Intel's correction: in the warm-up, SGD's momentum grows with the rate."""
        if not 0 < iteration < self._solver.warmup_iter:
            return 1.0
        before = self.rate(iteration - 1)
        return self.rate(iteration) / before if before > 0 else 1.0


def _power(base: float, exponent: float) -> float:
    """As in C: infinity where the result is too large for a float, and not a number where there is none."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def _fixed(solver: Any, progress: Progress, i: int, loss: float) -> float:
    return float(solver.base_lr)


def _step(solver: Any, progress: Progress, i: int, loss: float) -> float:
    progress.current_step = i // solver.stepsize
    return float(solver.base_lr * _power(solver.gamma, progress.current_step))


def _exp(solver: Any, progress: Progress, i: int, loss: float) -> float:
    return float(solver.base_lr * _power(solver.gamma, i))


def _inv(solver: Any, progress: Progress, i: int, loss: float) -> float:
    return float(solver.base_lr * _power(1 + solver.gamma * i, -solver.power))


def _poly(solver: Any, progress: Progress, i: int, loss: float) -> float:
    return float(solver.base_lr * _power(max(0.0, 1 - i / solver.max_iter), solver.power))


def _multistep(solver: Any, progress: Progress, i: int, loss: float) -> float:
    if progress.current_step < len(solver.stepvalue) and i >= solver.stepvalue[progress.current_step]:
        progress.current_step += 1
    return float(solver.base_lr * _power(solver.gamma, progress.current_step))


def _sigmoid(solver: Any, progress: Progress, i: int, loss: float) -> float:
    return float(solver.base_lr / (1 + _power(math.e, -solver.gamma * (i - solver.stepsize))))


def _plateau(solver: Any, progress: Progress, i: int, loss: float) -> float:
    """Lowers the rate if the smoothed loss has not improved for as many iterations as this step's window has."""
    if loss < progress.minimum_loss:
        progress.minimum_loss, progress.iteration_of_last_event = loss, i
    windows = solver.plateau_winsize
    if progress.current_step < len(windows) and i - progress.iteration_of_last_event >= windows[progress.current_step]:
        progress.current_step += 1
        progress.iteration_of_last_event = i
    return float(solver.base_lr * _power(solver.gamma, progress.current_step))


def _multifixed(solver: Any, progress: Progress, i: int, loss: float) -> float:
    stages = zip(solver.stagelr, solver.stageiter, strict=True)
    return float(next((rate for rate, last in stages if i <= last), solver.stagelr[-1]))


_Policy = Callable[[Any, Progress, int, float], float]
_LISTS = ("stepvalue", "plateau_winsize", "stagelr", "stageiter")
# Each with the settings that it needs.
_POLICIES: dict[str, tuple[_Policy, tuple[str, ...]]] = {
    "fixed": (_fixed, ("base_lr",)),
    "step": (_step, ("base_lr", "gamma", "stepsize")),
    "exp": (_exp, ("base_lr", "gamma")),
    "inv": (_inv, ("base_lr", "gamma", "power")),
    "multistep": (_multistep, ("base_lr", "gamma")),
    "poly": (_poly, ("base_lr", "power", "max_iter")),
    "sigmoid": (_sigmoid, ("base_lr", "gamma", "stepsize")),
    "plateau": (_plateau, ("base_lr", "gamma", "plateau_winsize")),
    "multifixed": (_multifixed, ("stagelr", "stageiter")),
}
