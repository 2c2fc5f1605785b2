# SPDX-License-Identifier: Apache-2.0
"""The start values of weights, by the name that a filler's `type` gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from horovod.caffe.errors import CaffeError, nearest

__all__ = ["check_filler", "fill"]


def _scale_count(blob: Tensor, filler: Any) -> float:
    """The n of xavier and msra: fan-in, fan-out, or their mean."""
    fan_in = blob.numel() / blob.shape[0]
    fan_out = blob.numel() / blob.shape[1] if blob.ndim > 1 else blob.numel()
    return float((fan_in, fan_out, (fan_in + fan_out) / 2)[filler.variance_norm])


def _constant(blob: Tensor, filler: Any) -> None:
    blob.fill_(filler.value)


def _uniform(blob: Tensor, filler: Any) -> None:
    blob.uniform_(filler.min, filler.max)


def _gaussian(blob: Tensor, filler: Any) -> None:
    blob.normal_(filler.mean, filler.std)
    if filler.sparse >= 0:  # the mean number of weights of an output that are not zero
        blob.mul_(torch.empty_like(blob).bernoulli_(min(1.0, filler.sparse / blob.shape[0])))


def _positive_unitball(blob: Tensor, filler: Any) -> None:
    rows = blob.uniform_(0, 1).view(blob.shape[0], -1)
    rows.div_(rows.sum(1, keepdim=True))


def _xavier(blob: Tensor, filler: Any) -> None:
    limit = math.sqrt(3 / _scale_count(blob, filler))
    blob.uniform_(-limit, limit)


def _msra(blob: Tensor, filler: Any) -> None:
    blob.normal_(0, math.sqrt(2 / _scale_count(blob, filler)))


def _bilinear(blob: Tensor, filler: Any) -> None:
    """Interpolation, for a Deconvolution that enlarges."""
    if blob.ndim != 4 or blob.shape[2] != blob.shape[3]:
        raise CaffeError(f"the filler bilinear needs a square kernel of four axes, got {list(blob.shape)}")
    half = math.ceil(blob.shape[3] / 2)
    centre = (blob.shape[3] - 1) / (2 * half)
    line = 1 - (torch.arange(blob.shape[3]) / half - centre).abs()
    blob.copy_(line[:, None] * line[None, :])


_FILLERS: dict[str, Callable[[Tensor, Any], None]] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
}


def check_filler(filler: Any) -> None:
    """Raises CaffeError if no filler has that name."""
    if filler.type not in _FILLERS:
        raise CaffeError(f"unknown filler {filler.type!r}{nearest(filler.type, _FILLERS)}")


def fill(blob: Tensor, filler: Any) -> None:
    """Fills the blob as the FillerParameter says."""
    check_filler(filler)
    with torch.no_grad():
        _FILLERS[filler.type](blob, filler)
