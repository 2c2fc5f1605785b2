# SPDX-License-Identifier: Apache-2.0
"""The profile of a job on one rank, which `horovodrun --profile` writes (gradients/recording.py), as a workload."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from horovod.core import native
from horovod.core.wording import counted
from horovod.gradients.recording import FEWEST_STEPS, FORMAT, VERSION
from horovod.simulate.errors import InputError, number, read_json, table, unfit, waited_share, whole
from horovod.simulate.step import Workload

__all__ = ["Profile", "read_profile", "sparse_in_words"]

_DTYPES = (*native.DTYPE_NAMES, "complex64", "complex128")
_MOST_RANKS = 100_000
_MOST_BYTES = 10**15
_LEAST_MS = 0.001  # the last digit that is recorded


class _Gradients(NamedTuple):
    """Columns of the file, one row for each gradient. ready_ms: medians. sparse: rows of the sparse ones."""

    dtypes: list[str]
    sizes: list[int]
    ready_ms: list[float]
    sparse: list[int]


@dataclasses.dataclass(frozen=True)
class Profile:
    """A workload, and what the forecast says of its origin.

    device: cpu or gpu. busy_ranks: as many trained side by side. halves: most bytes of the gradients are of 16 bits.
    sparse: how many gradients are sparse, and their bytes on one rank. core_wait: the share of its time in which the
    rank waited for a core.
    """

    work: Workload
    device: str
    busy_ranks: int
    halves: bool
    sparse: tuple[int, float] = (0, 0.0)
    core_wait: float = 0.0


def sparse_in_words(sparse: tuple[int, float]) -> str:
    """A warning that sparse gradients count as dense ones; empty if there are none. sparse: as in Profile."""
    count, size = sparse
    if count == 0:
        return ""
    return (
        f"warning: {counted(count, 'gradient')} of {size / 1e6:.1f} MB {'are' if count > 1 else 'is'} sparse and "
        f"{'count' if count > 1 else 'counts'} as if dense, with the bytes of one rank: ranks gather them, so their "
        "bytes grow with the number of ranks, and the result is too good\n"
        "hint: record with sparse_as_dense=True, if the job may run so"
    )


def read_profile(path: str) -> Profile:
    """Raises InputError, which names the field that does not fit."""
    content = read_json(path, FORMAT, VERSION, "a profile", "record it again, with the same version of Horovod")
    name, device = content.get("name"), content.get("device")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise unfit(path, "name", "a text that can be printed", name)
    if device not in ("cpu", "gpu"):
        raise unfit(path, "device", '"cpu" or "gpu"', device)
    busy_ranks = whole(content.get("busy_ranks"), "busy_ranks", path, 1, _MOST_RANKS)
    core_wait = waited_share(content, path)
    steps = _steps(content, path)
    gradients = _gradients(content, path)
    forward, backward, update = (_median(content, part, path) for part in ("forward_ms", "backward_ms", "update_ms"))
    if backward < _LEAST_MS:
        raise InputError(f'{path}: field "backward_ms": the job made no backward pass\nhint: record training')
    for place, ready in enumerate(gradients.ready_ms):
        if ready > max(steps):
            raise unfit(path, f"gradients.ready_ms[{place}]", f"at most the longest step, {max(steps):g} ms", ready)
    at = 1e-3 * (forward + np.array(gradients.ready_ms, np.float64))
    order = np.argsort(at, kind="stable")
    sizes = np.array(gradients.sizes, np.float64)
    compute_s = max(1e-3 * (forward + backward), float(at[order][-1]))
    update_s = 1e-3 * update
    # Ranks and samples/s are counted by the mean of the steps, of which the sum of medians may be far.
    to_mean = 1e-3 * float(np.mean(steps)) / (compute_s + update_s)
    work = Workload(name, to_mean * at[order], sizes[order], to_mean * compute_s, to_mean * update_s, steps)
    of_16_bits = sizes[["16" in dtype for dtype in gradients.dtypes]].sum()
    sparse = (len(gradients.sparse), float(sizes[gradients.sparse].sum()))
    return Profile(work, device, busy_ranks, bool(of_16_bits > sizes.sum() / 2), sparse, core_wait)


def _steps(content: dict[str, Any], path: str) -> tuple[float, ...]:
    steps = content.get("step_ms")
    if not isinstance(steps, list):
        raise unfit(path, "step_ms", f"a list of {FEWEST_STEPS} steps or more", steps)
    if len(steps) < FEWEST_STEPS:
        raise InputError(
            f'{path}: field "step_ms": expected {FEWEST_STEPS} steps or more, got {len(steps)}\n'
            "hint: record a job that trains for longer"
        )
    return tuple(number(step, f"step_ms[{place}]", path, _LEAST_MS) for place, step in enumerate(steps))


def _gradients(content: dict[str, Any], path: str) -> _Gradients:
    gradients = table(content, "gradients", path)
    columns = [gradients.get(name) for name in ("name", "dtype", "bytes", "ready_ms")]
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) < len(columns) or len(set(map(len, lists))) > 1:
        raise InputError(f'{path}: field "gradients": expected lists name, dtype, bytes and ready_ms of one length')
    names, dtypes, sizes, ready = lists
    sparse = gradients.get("sparse", [])
    if not isinstance(sparse, list):
        raise unfit(path, "gradients.sparse", "a list of rows", sparse)
    if not sizes:
        raise InputError(
            f'{path}: field "gradients": it has none: the job made no backward pass\nhint: record training'
        )
    for column, texts in (("name", names), ("dtype", dtypes)):
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise unfit(path, f"gradients.{column}[{place}]", "a text", text)
    for place, text in enumerate(dtypes):
        if text not in _DTYPES:
            raise unfit(path, f"gradients.dtype[{place}]", "a type that can be reduced, such as float32", text)
    return _Gradients(
        dtypes,
        [whole(size, f"gradients.bytes[{place}]", path, 0, _MOST_BYTES) for place, size in enumerate(sizes)],
        [_median_of_row(row, f"gradients.ready_ms[{place}]", path) for place, row in enumerate(ready)],
        [whole(row, f"gradients.sparse[{place}]", path, 0, len(sizes) - 1) for place, row in enumerate(sparse)],
    )


def _median_of_row(row: Any, field: str, path: str) -> float:
    if not isinstance(row, list) or len(row) != 3:
        raise unfit(path, field, "a list of three numbers: median, p10 and p90", row)
    return [number(value, f"{field}[{place}]", path) for place, value in enumerate(row)][0]


def _median(content: dict[str, Any], name: str, path: str) -> float:
    return number(table(content, name, path).get("median"), f"{name}.median", path)
