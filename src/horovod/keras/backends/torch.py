# SPDX-License-Identifier: Apache-2.0
"""Keras on PyTorch: all reductions of a list of gradients are in flight at once (steps 1 and 2 of a gradient's way)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import horovod.torch as hvd
from horovod.gradients.options import ReductionOptions
from horovod.keras.backends import DenseGradients
from horovod.torch.parameter_gradients import sample_of
from horovod.torch.tensors import collectives

__all__ = ["accumulation", "can_compile", "gradient_list"]


class _Gradients(DenseGradients):
    def to_dense(self, gradient: Any) -> Any:
        return gradient.to_dense() if gradient.is_sparse else gradient

    def when_ready(self, gradient: Any, act: Callable[[int], None]) -> Any:
        gradient.reshape(-1)[:1].tolist()  # on a GPU, a kernel that was only queued has run then
        act(gradient.nbytes)
        return gradient

    def sample(self, gradient: Any) -> Any:
        return sample_of(gradient)

    def is_finite(self, gradient: Any) -> bool:
        return bool(gradient.isfinite().all())

    def device(self) -> str:
        return "gpu" if torch.cuda.is_available() else "cpu"

    def tell(self, grouped: list[list[int]], name: str, error: Exception) -> None:
        # Under the name of what they wait for first.
        collectives.tell("grouped_allreduce", f"{name}.{grouped[0][0]}", error, self.options.process_set)

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        prescale, postscale = self.options.factors
        handles = [
            hvd.grouped_allreduce_async(
                [tensors[position].detach() for position in group],
                name=f"{name}.{group[0]}",
                op=self.options.op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=self.options.process_set,
            )
            for group in grouped
        ]
        received = list(tensors)
        for group, handle in zip(grouped, handles, strict=True):
            for position, tensor in zip(group, hvd.synchronize(handle), strict=True):
                received[position] = tensor
        return received


gradient_list = _Gradients


class _Accumulation:
    """Sums gradients, and applies the sums in the last pass of a step."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._divisor = passes if average else 1
        self._count = 0
        self._sums: list[Any] = []

    def __call__(self, gradients: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        if self._count == 0:
            self._sums = [None] * len(gradients)
        for index, gradient in enumerate(gradients):  # a pass may leave a variable out
            if self._sums[index] is None:
                self._sums[index] = None if gradient is None else gradient.detach().clone()
            elif gradient is not None:
                self._sums[index] += gradient
        self._count = (self._count + 1) % self._passes
        if self._count != 0:
            return None
        sums, self._sums = self._sums, []
        return apply([None if total is None else total / self._divisor for total in sums])

    def restart(self) -> None:
        """Forgets the passes of a step that is not complete."""
        self._count, self._sums = 0, []


def accumulation(options: ReductionOptions) -> Any:
    """See horovod.keras.backends."""
    return _Accumulation(options.backward_passes_per_step, options.average_aggregated_gradients)


def can_compile() -> bool:
    """False: Keras compiles no step of PyTorch by XLA."""
    return False
