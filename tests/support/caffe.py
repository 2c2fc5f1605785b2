# SPDX-License-Identifier: Apache-2.0
"""Nets and solvers written by tests, and the commands as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["caffe", "digits_lmdb", "losses", "net_of", "write"]


def write(folder: Path, name: str, text: str) -> str:
    """The path of a new file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def net_of(folder: Path, text: str, phase: int = 1, **options: Any) -> Any:
    """The Net of a prototxt's text."""
    from horovod.caffe import Net

    return Net(write(folder, "net.prototxt", text), phase, **options)


def digits_lmdb(path: Path, count: int, seed: int = 0) -> str:
    """An LMDB of images of 12 x 12 bytes in three classes that differ in where they are bright."""
    from horovod.caffe.data.records import write_lmdb
    from horovod.caffe.schema import message

    random = np.random.default_rng(seed)

    def records() -> Any:
        for index in range(count):
            label = int(random.integers(3))
            pixels = random.integers(0, 120, (1, 12, 12))
            pixels[:, label * 4 : label * 4 + 4] += 100
            datum = message("Datum")(channels=1, height=12, width=12, label=label)
            datum.data = pixels.astype(np.uint8).tobytes()
            yield b"%08d" % index, datum

    assert write_lmdb(str(path), records()) == count
    return str(path)


def caffe(
    *arguments: str, ranks: int = 1, cwd: Path | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """The command; with several ranks, under horovodrun."""
    command = [sys.executable, "-m", "horovod.caffe", *arguments]
    if ranks > 1:
        command = [sys.executable, "-m", "horovod.launcher", "-np", str(ranks), *command]
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=env)


def losses(log: str) -> list[tuple[int, float]]:
    """Iterations and losses, as scripts read them from the log."""
    found = re.findall(r"Iteration (\d+)(?: \([^)]*\))?, loss = (\S+)", log)
    return [(int(iteration), float(loss)) for iteration, loss in found]
