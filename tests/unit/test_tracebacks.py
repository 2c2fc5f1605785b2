# SPDX-License-Identifier: Apache-2.0
"""What is left of a traceback that ends a script."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

import horovod.core as hvd
from horovod.core import pickling
from horovod.core.tracebacks import without_internals


def functions(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(without_internals(error, error.__traceback__))]


def test_an_error_of_ours_ends_in_the_script() -> None:
    def step() -> None:
        hvd.allreduce(np.ones(1))  # before init

    with pytest.raises(ValueError) as caught:
        step()
    assert functions(caught.value)[-1] == "step"
    assert len(traceback.extract_tb(caught.value.__traceback__)) > len(functions(caught.value))


def test_an_error_of_the_script_stays_whole_behind_our_frames() -> None:
    class Wrong:
        def __reduce__(self) -> None:
            raise KeyError("of the script")

    with pytest.raises(KeyError) as caught:
        pickling.dumps(Wrong())
    assert "dumps" in functions(caught.value) and functions(caught.value)[-1] == "__reduce__"


def test_a_bug_of_ours_stays_whole() -> None:
    with pytest.raises(AttributeError) as caught:
        pickling._code_of_file("train.py", int, ())
    assert functions(caught.value)[-1] == "_code_of_file"
