# SPDX-License-Identifier: Apache-2.0
"""What every collective has to give, bit by bit, in NumPy: the expression of native/collectives/levels.h."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
AVERAGE, SUM, _, MIN, MAX, PRODUCT, AND, OR, XOR = range(9)
_BITWISE: dict[int, Any] = {AND: np.bitwise_and, OR: np.bitwise_or, XOR: np.bitwise_xor}


@functools.lru_cache(maxsize=1024)  # a table of operations asks for the same inputs again and again
def values(rank: int, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    """A rank's input: small enough that no sum of a few ranks overflows, different on every rank. Read-only."""
    random = np.random.default_rng((seed, rank, *shape))
    kind = np.dtype(dtype).kind
    if kind == "b":
        drawn = random.integers(0, 2, shape).astype(bool)
    elif kind == "u":
        drawn = random.integers(0, 30, shape).astype(dtype)
    elif kind == "i":
        drawn = random.integers(-20, 20, shape).astype(dtype)
    else:
        drawn = np.asarray(random.standard_normal(shape)).astype(dtype)
    drawn.flags.writeable = False
    return drawn


def _minimum(a: Array, b: Array) -> Array:
    # -0 is below +0, which np.minimum does not promise; a NaN stays
    return np.where((a == b) & np.signbit(a), a, np.minimum(a, b)) if a.dtype.kind == "f" else np.minimum(a, b)


def _maximum(a: Array, b: Array) -> Array:
    return np.where((a == b) & ~np.signbit(a), a, np.maximum(a, b)) if a.dtype.kind == "f" else np.maximum(a, b)


def hosts_of(ranks: Sequence[int]) -> list[list[int]]:
    """The places in `ranks` of those on each host of this rank's world, hosts by their lowest rank."""
    sizes = [int(size) for size in os.environ.get("HOROVOD_PRETEND_HOSTS", "").split(",") if size]
    host_of_rank = [host for host, size in enumerate(sizes) for _ in range(size)] or [0] * (max(ranks) + 1)
    hosts: dict[int, list[int]] = {}
    for place, rank in enumerate(ranks):
        hosts.setdefault(host_of_rank[rank], []).append(place)
    return list(hosts.values())


def allreduce(
    inputs: list[Array],
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    ranks: Sequence[int] | None = None,
) -> Array:
    """Each host's fold(prescale * x) from the left in rank order; postscale * the fold of those / size. `ranks`: whose
    inputs these are, by default those of all ranks."""
    hosts = hosts_of(range(len(inputs)) if ranks is None else ranks)
    is_exact = inputs[0].dtype.kind in "biu"
    if is_exact or len(hosts) in (1, len(inputs)):
        return _fold(inputs, op, prescale, postscale, len(inputs))
    inside = SUM if op == AVERAGE else op
    results = [_fold([inputs[place] for place in host], inside, prescale, 1.0, 1) for host in hosts]
    return _fold(results, op, 1.0, postscale, len(inputs))


def _fold(inputs: list[Array], op: int, prescale: float, postscale: float, size: int) -> Array:
    dtype = inputs[0].dtype
    if dtype.kind == "b":
        return functools.reduce({MIN: np.logical_and, MAX: np.logical_or, **_BITWISE}[op], inputs)
    combine = {AVERAGE: np.add, SUM: np.add, PRODUCT: np.multiply, MIN: _minimum, MAX: _maximum, **_BITWISE}[op]
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            return _integers(inputs, combine, op, prescale, postscale)
        # bfloat16 is of kind "V" to NumPy
        wide: Any = np.float64 if dtype == np.float64 else np.float32
        terms = [array.astype(wide) for array in inputs]
        if prescale != 1.0:
            terms = [term * wide(prescale) for term in terms]
        total = functools.reduce(combine, terms)
        factor = postscale / (size if op == AVERAGE else 1)
        if factor != 1.0:
            total = total * wide(factor)
        return np.asarray(total).astype(dtype)


def adasum(inputs: list[Array]) -> Array:
    """Adasum in float64: of neighbours first, then of pairs; a vector of zeros counts for nothing."""
    vectors = [array.astype(np.float64) for array in inputs]
    while len(vectors) > 1:
        vectors = [_adasum_of(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _adasum_of(a: Array, b: Array) -> Array:
    dot, norm_a, norm_b = float((a * b).sum()), float((a * a).sum()), float((b * b).sum())
    return np.asarray(a * (1 - dot / (2 * norm_a) if norm_a else 1.0) + b * (1 - dot / (2 * norm_b) if norm_b else 1.0))


def _integers(inputs: list[Array], combine: Any, op: int, prescale: float, postscale: float) -> Array:
    dtype = inputs[0].dtype
    if op == AVERAGE and prescale == postscale == 1.0:
        total = functools.reduce(np.add, [array.astype(np.int64) for array in inputs])
        return (np.sign(total) * (np.abs(total) // len(inputs))).astype(dtype)
    terms = [np.trunc(array.astype(np.float64) * prescale).astype(dtype) for array in inputs]
    total = functools.reduce(combine, terms)
    if postscale != 1.0:
        total = np.trunc(total.astype(np.float64) * postscale)
    return np.asarray(total).astype(dtype)


def rows_of(array: Array, size: int, rank: int) -> Array:
    """A rank's rows: dealt in rank order, one more to the first ranks where they do not come out even."""
    return np.array_split(array, size)[rank]


def same_bits(a: Array, b: Array) -> bool:
    """Equal dtype, shape and bytes; two NaN are equal whatever their payload."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind in "biu":
        return False
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.all((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)))


def same_but_for_rounding(a: Array, b: Array) -> bool:
    return same_bits(a, b) or (a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-6))
