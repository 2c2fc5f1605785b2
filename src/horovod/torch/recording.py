# SPDX-License-Identifier: Apache-2.0
"""The size of a gradient and the clock of its device, for a profile (gradients/recording.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.gradients.recording import Clock, Recorder, WallClock, recorder_of_job

__all__ = ["recorder_of_parameters"]


class _GpuClock:
    """Moments of the current stream: a kernel that backward has only queued is not done."""

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end))


def recorder_of_parameters(parameters: Sequence[Tensor]) -> Recorder | None:
    """The recorder for an optimizer of these parameters; None if this rank, or this optimizer, is not recorded."""
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    clock: Clock = _GpuClock() if on_gpu else WallClock()
    return recorder_of_job("gpu" if on_gpu else "cpu", _described, clock)


def _described(gradient: Tensor) -> tuple[str, int, bool]:
    parts = (gradient._indices(), gradient._values()) if gradient.is_sparse else (gradient,)
    size = sum(part.numel() * part.element_size() for part in parts)
    return str(gradient.dtype).removeprefix("torch."), size, gradient.is_sparse
