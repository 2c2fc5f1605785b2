# SPDX-License-Identifier: Apache-2.0
"""Batches as PyTorch tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from horovod.core.wording import quoted
from horovod.data.parquet import Columns

__all__ = ["to_torch"]


def to_torch(batches: Iterable[Columns], device: Any = None) -> Iterator[dict[str, Any]]:
    """Yields batches as {column: tensor}, without a copy on the CPU; on `device` if it is given.

    Raises TypeError that names the column if PyTorch does not have its type, as text.
    """
    import torch

    for batch in batches:
        tensors = {}
        for name, values in batch.items():
            try:
                tensors[name] = torch.from_numpy(values)
            except TypeError:
                raise TypeError(
                    f"PyTorch cannot make a tensor of column {quoted(name)}, which has the type {values.dtype}\n"
                    "hint: leave the column out, or turn it into numbers before"
                ) from None
        yield tensors if device is None else {name: value.to(device) for name, value in tensors.items()}
