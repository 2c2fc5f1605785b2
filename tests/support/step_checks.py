# SPDX-License-Identifier: Apache-2.0
"""In a rank: data and rates of which the checks of horovod.gradients.step_check have something to say, and what they
say."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

STEPS, CHANGES_AT = 40, 32


def heard(work: Callable[[], Any]) -> list[str]:
    """What is said while `work` runs: the options that differ, or "same rows", or the gradient that is not finite."""
    from horovod.core import context

    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()) as printed:
        warnings.simplefilter("always")
        work()
        for complete in context.before_leaving:
            complete()
    lines = [str(one.message).splitlines()[0] for one in caught]
    lines += [line for line in printed.getvalue().splitlines() if line.startswith("horovod: warning: in ")]
    return [_short(line) for line in lines if "in step " in line or "in each of " in line]


def _short(line: str) -> str:
    if "same rows" in line:
        return "same rows"
    return line.partition("in step ")[2].replace(" of ", ", ", 1)


def batch(step: int, rank: int, same: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """8 rows of 4 numbers, and their targets: of the rank, or the same on all ranks."""
    random = np.random.default_rng(step if same else 1000 + 1000 * rank + step)
    return random.standard_normal((8, 4)).astype(np.float32), random.standard_normal((8, 1)).astype(np.float32)


def rate(step: int, rank: int) -> float:
    """The learning rate: another one on rank 1 at the end."""
    return 0.03125 if rank == 1 and step >= CHANGES_AT else 0.0625
