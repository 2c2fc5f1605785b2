# SPDX-License-Identifier: Apache-2.0
"""What is left of a traceback that ends a script."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import horovod.core as hvd
from horovod.core import pickling
from horovod.core.tracebacks import without_internals
from horovod.launcher.function import answers, run_task


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


CHILDREN = """
import multiprocessing
import os
import sys
import threading

import numpy as np

import horovod.core as hvd


def use():
    hvd.allreduce(np.ones(1))


def of_script():
    raise KeyError("of the script")


if __name__ == "__main__":
    hvd.init()
    for way in ("fork", "spawn"):
        for target in (use, of_script):
            child = multiprocessing.get_context(way).Process(target=target, name=f"{way} {target.__name__}")
            child.start()
            child.join()
    hvd.shutdown()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
"""


def test_children_and_threads_end_in_the_script_too(tmp_path: Path) -> None:
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stderr
    shown = told.split("Traceback (most recent call last):")
    assert len(shown) == 6 and "operations_api" not in told
    assert all(text.count("children.py") == 1 for text in shown[1:])
    assert shown[1].count("this process was forked from a rank") == 1
    assert "has not been initialized" in shown[3] and "was shut down" in shown[5]
    everything = {**os.environ, "HOROVOD_FULL_TRACEBACK": "1"}
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=everything).stderr
    assert told.count("in _reduce") == 3


def test_a_function_of_horovod_run_is_shown_without_what_has_called_it() -> None:
    def function() -> None:
        hvd.rank()

    def called(function: Callable[[], None]) -> list[str]:
        class Caller:
            def task(self) -> bytes:
                return pickle.dumps({"path": sys.path, "call": pickling.dumps((function, (), {}))})

        return [
            line.rsplit(" ", 1)[1] for line in run_task._called(0, Caller()).traceback.splitlines() if ", in " in line
        ]  # type: ignore[arg-type]

    assert called(function) == ["function"]
    assert called(lambda: {}["missing"]) == ["<lambda>"]
    try:
        raise KeyError("missing") from answers.WorkerTraceback("rank 0: ...")
    except KeyError as error:
        (trace,) = traceback.extract_tb(error.__traceback__)
        assert trace.name == functions(error)[-1]
