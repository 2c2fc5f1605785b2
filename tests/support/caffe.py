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

__all__ = ["RECORDS", "by_rank", "caffe", "digits_lmdb", "losses", "net_of", "small_training", "write"]

RECORDS = 60
_NET = """
layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }}
  transform_param {{ scale: 0.01 mean_value: 60 }}
  data_param {{ source: "{folder}/train" backend: LMDB batch_size: {batch} }} }}
layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TEST }}
  transform_param {{ scale: 0.01 mean_value: 60 }}
  data_param {{ source: "{folder}/test" backend: LMDB batch_size: 5 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {{ num_output: 4 kernel_size: 3
  weight_filler {{ type: "xavier" }} }} }}
{extra}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {{ kernel_size: 2 stride: 2 }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" param {{ lr_mult: 1 }} param {{ lr_mult: 2 }}
  inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" {loss} }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include {{ phase: TEST }} }}
"""
_SOLVER = """
net: "{folder}/net{batch}.prototxt" test_iter: 8 test_interval: 10 base_lr: 0.1 momentum: 0.9 weight_decay: 0.001
lr_policy: "fixed" display: 1 max_iter: 20 test_compute_loss: true random_seed: 5 solver_mode: CPU
snapshot_prefix: "{folder}/s{batch}" {more}
"""


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


def small_training(folder: Path, batch: int, loss: str = "", extra: str = "", more: str = "") -> str:
    """The path of a solver that trains a small net for 20 iterations, with the databases beside it."""
    for name, count, seed in (("train", RECORDS, 1), ("test", 40, 2)):
        if not (folder / name).exists():
            digits_lmdb(folder / name, count, seed)
    write(folder, f"net{batch}.prototxt", _NET.format(folder=folder, batch=batch, loss=loss, extra=extra))
    return write(folder, f"solver{batch}.prototxt", _SOLVER.format(folder=folder, batch=batch, more=more))


def by_rank(path: Path, count: int, batch: int, ranks: int) -> None:
    """Puts an LMDB's first records into the order in which one process has to read them for what each rank reads.

    Within each batch those of rank 0 come first, then those of rank 1, and so on.
    """
    from horovod.caffe.data.records import Lmdb, write_lmdb

    old = path.rename(path.with_name(f"{path.name}.old"))
    records = Lmdb(str(old))
    order = [
        start + rank + i for start in range(0, count, batch) for rank in range(ranks) for i in range(0, batch, ranks)
    ]
    write_lmdb(str(path), ((b"%08d" % place, records[index]) for place, index in enumerate(order)))
    records.close()


def caffe(*arguments: str, ranks: int = 1, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command; with several ranks, under horovodrun."""
    command = [sys.executable, "-m", "horovod.caffe", *arguments]
    if ranks > 1:
        command = [sys.executable, "-m", "horovod.launcher", "-np", str(ranks), *command]
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


def losses(log: str) -> list[tuple[int, float]]:
    """Iterations and losses, as scripts read them from the log."""
    found = re.findall(r"Iteration (\d+)(?: \([^)]*\))?, loss = (\S+)", log)
    return [(int(iteration), float(loss)) for iteration, loss in found]
