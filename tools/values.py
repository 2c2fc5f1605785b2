# SPDX-License-Identifier: Apache-2.0
"""Every operation of Horovod on the tensors of a device, beside NumPy. For tools/cpu/check and tools/gpu/check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def wrong_values(
    hvd: Any, dtypes: Sequence[str], make: Callable[[Any, str], Any], read: Callable[[Any], Any]
) -> list[str]:
    """Run them in every rank of a world of 2, 4, 8, ... up to 64. Return what was wrong, a sentence each.

    make: a tensor of an array of float64, and a dtype's name. read: an array of float64 of a tensor. The values are
    small whole numbers, so that every order of additions gives the same in every dtype.
    """
    rank, size, wrong = hvd.rank(), hvd.size(), []

    def expect(what: str, seen: Any, wanted: Any) -> None:
        got = read(seen)
        if got.shape != wanted.shape or not np.array_equal(got, wanted):
            wrong.append(f"{what}: expected {wanted.flatten()[:4]}, got {got.flatten()[:4]} in {got.shape}")

    for dtype in dtypes:
        for count in (1, 1001, 1_200_000 // size + 1):
            shifted = np.array([np.arange(count) + r for r in range(size)])
            inputs, factors = shifted % 3.0, 1.0 + (shifted % max(3, size // 4) == 0)  # these are 2 four times at most
            for op, given, wanted in (
                ("Sum", inputs, inputs.sum(0)),
                ("Average", inputs, inputs.sum(0) / size if dtype in FLOATS else None),
                ("Min", inputs, inputs.min(0)),
                ("Max", inputs, inputs.max(0)),
                ("Product", factors, factors.prod(0)),
            ):
                if wanted is not None:
                    what = f"{op} {dtype} {count}"
                    expect(what, hvd.allreduce(make(given[rank], dtype), op=getattr(hvd, op), name=what), wanted)
        rows = [np.arange(3.0 * (r + 1)).reshape(-1, 3) % 7 + r for r in range(size)]
        expect(f"allgather {dtype}", hvd.allgather(make(rows[rank], dtype), name=f"g {dtype}"), np.concatenate(rows))
        root = size - 1
        expect(
            f"broadcast {dtype}", hvd.broadcast(make(rows[0] + rank, dtype), root, name=f"b {dtype}"), rows[0] + root
        )
        parts = [[(r + to) % 5 for to in range(size)] for r in range(size)]
        given = np.full((sum(parts[rank]), 2), float(rank))
        got, _ = hvd.alltoall(make(given, dtype), splits=parts[rank], name=f"t {dtype}")
        wanted = np.concatenate([np.full((parts[r][rank], 2), float(r)) for r in range(size)])
        expect(f"alltoall {dtype}", got, wanted)
        uneven = np.array([(np.arange(2.0 * (size + 1)).reshape(-1, 2) + r) % 3 for r in range(size)])
        scattered = hvd.reducescatter(make(uneven[rank], dtype), op=hvd.Sum, name=f"s {dtype}")
        expect(f"reducescatter {dtype}", scattered, np.array_split(uneven.sum(0), size)[rank])
    return wrong


def wrong_values_of_torch(hvd: Any, place: Callable[[Any], Any] = lambda tensor: tensor) -> list[str]:
    """The same for PyTorch's tensors. place: moves one to the device."""
    import torch

    def make(array: Any, dtype: str) -> Any:
        return place(torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, dtype)))

    return wrong_values(hvd, (*FLOATS, *INTEGERS), make, lambda tensor: tensor.cpu().double().numpy())


def wrong_values_of_numpy(hvd: Any) -> list[str]:
    dtypes = [dtype for dtype in (*FLOATS, *INTEGERS) if dtype != "bfloat16"]
    return wrong_values(hvd, dtypes, lambda array, dtype: array.astype(dtype), lambda array: array.astype(np.float64))
