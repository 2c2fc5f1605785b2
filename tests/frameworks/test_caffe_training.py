# SPDX-License-Identifier: Apache-2.0
"""Training with several ranks is training with one on the whole batch; snapshots, signals and tests keep to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import digits_lmdb, write
from support.world import WorldPool

for module in ("torch", "google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

RECORDS = 60
NET = """
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
SOLVER = """
net: "{folder}/net{batch}.prototxt" test_iter: 8 test_interval: 10 base_lr: 0.1 momentum: 0.9 weight_decay: 0.001
lr_policy: "fixed" display: 1 max_iter: 20 random_seed: 5 solver_mode: CPU snapshot_prefix: "{folder}/s{batch}" {more}
"""


def files(folder: Path, batch: int, loss: str = "", extra: str = "", more: str = "") -> str:
    """The solver's path, with the databases beside it."""
    for name, count, seed in (("train", RECORDS, 1), ("test", 40, 2)):
        if not (folder / name).exists():
            digits_lmdb(folder / name, count, seed)
    write(folder, f"net{batch}.prototxt", NET.format(folder=folder, batch=batch, loss=loss, extra=extra))
    return write(folder, f"solver{batch}.prototxt", SOLVER.format(folder=folder, batch=batch, more=more))


def train(path: str, resume: str | None = None, send: tuple[int, int] | None = None) -> dict[str, Any]:
    """Runs in a rank, in double precision: what it logs, and the weights. `send`: (iteration, signal) on this rank."""
    import contextlib
    import io

    import torch

    from horovod.caffe import Solver
    from horovod.caffe.signals import Signals

    torch.set_default_dtype(torch.float64)
    log = io.StringIO()
    try:
        with contextlib.redirect_stderr(log):
            solver = Solver(path)
            with Signals(replicas=solver.replicas) as signals:
                if send is not None:
                    update, (when, number) = solver._update, send

                    def updating(*arguments: Any) -> None:
                        update(*arguments)
                        if solver.iteration == when:
                            os.kill(os.getpid(), number)

                    solver._update = updating
                done = solver.solve(resume, signals)
            solver.close()
    finally:
        torch.set_default_dtype(torch.float32)
    weights = [one.tensor.detach().numpy().copy() for one in solver.net.parameters]
    return {"log": log.getvalue(), "weights": weights, "done": done, "iteration": solver.iteration}


def lines(result: dict[str, Any]) -> list[str]:
    """The log's lines without what differs from run to run."""
    import re

    texts = [line.split("] ", 1)[-1] for line in result["log"].splitlines()]
    return [re.sub(r" \(.* iters\)", "", text) for text in texts if "napshot" not in text]


LOSSES = {
    "mean": "",
    "some labels ignored": "loss_param { ignore_label: 1 }",
    "over the batch": "loss_param { ignore_label: 1 normalization: BATCH_SIZE }",
    "a sum": "loss_param { normalization: NONE } loss_weight: 0.05",
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_ranks_train_as_one_on_the_whole_batch(loss: str, size: int, worlds: WorldPool, tmp_path: Path) -> None:
    alone = worlds(1).run(train, files(tmp_path, 12, LOSSES[loss]))[0]
    together = worlds(size).run(train, files(tmp_path, 12 // size, LOSSES[loss]))
    kept = [lines(result) for result in (alone, together[0])]
    if loss == "some labels ignored":  # means over the valid labels of a batch, and tests have other batches
        kept = [[line for line in one if "Test net output #1" not in line] for one in kept]
    assert kept[0] == kept[1] and len(kept[0]) > 60, "every loss, output and test is the same to six digits"
    assert all(not result["log"] for result in together[1:]), "one rank talks for all"
    for result in together:
        for one, other in zip(alone["weights"], result["weights"], strict=True):
            assert np.abs(one - other).max() < 1e-10
    assert "Iteration 10, Testing net (#0)" in alone["log"] and "Optimization Done." in alone["log"]


def test_passes_of_iter_size_are_one_batch(worlds: WorldPool, tmp_path: Path) -> None:
    whole = worlds(1).run(train, files(tmp_path, 12))[0]
    parts = worlds(2).run(train, files(tmp_path, 3, more="iter_size: 2"))
    for one, other in zip(whole["weights"], parts[1]["weights"], strict=True):
        assert np.abs(one - other).max() < 1e-10, "the records of an iteration are the same, in another order"


NORM = """
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "sc" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
"""


def test_statistics_stay_each_ranks_own_and_tests_use_their_mean(worlds: WorldPool, tmp_path: Path) -> None:
    results = worlds(2).run(train, files(tmp_path, 6, extra=NORM))
    names = ("conv.0", "conv.1", "bn mean", "bn variance", "bn count")
    first, second = (dict(zip(names, result["weights"], strict=False)) for result in results)
    assert np.array_equal(first["conv.0"], second["conv.0"])
    assert not np.array_equal(first["bn mean"], second["bn mean"])
    assert np.array_equal(first["bn count"], second["bn count"])


@pytest.mark.parametrize("more", ["", "snapshot_format: HDF5", 'type: "Adam" momentum2: 0.99'])
def test_a_training_goes_on_from_its_snapshot(more: str, worlds: WorldPool, tmp_path: Path) -> None:
    more = f"{more} snapshot: 10"
    path = files(tmp_path, 30, more=more)  # two batches an epoch: the data are where they were at iteration 10
    whole = worlds(1).run(train, path)[0]
    suffix = ".h5" if "HDF5" in more else ""
    state = str(tmp_path / f"s30_iter_10.solverstate{suffix}")
    written = {path.name for path in tmp_path.glob("s30_iter_*")}
    assert written == {f"s30_iter_{i}.{kind}{suffix}" for i in (10, 20) for kind in ("caffemodel", "solverstate")}
    rest = worlds(1).run(train, path, state)[0]
    assert rest["iteration"] == 20 and "Restoring previous solver status" in rest["log"]
    assert np.abs(rest["weights"][0] - whole["weights"][0]).max() < 1e-5, "files have single precision"
    shared = worlds(2).run(train, files(tmp_path, 15, more=more), state)
    for one, other in zip(shared[0]["weights"], shared[1]["weights"], strict=True):
        assert np.array_equal(one, other) and one.size
    assert np.abs(shared[0]["weights"][0] - whole["weights"][0]).max() < 1e-5


def test_a_signal_to_any_rank_stops_all_with_a_snapshot(worlds: WorldPool, tmp_path: Path) -> None:
    path = files(tmp_path, 6)
    send = [(path, None, None), (path, None, (4, signal.SIGINT))]
    results = worlds(2).run(train, per_rank=send)
    assert [(result["done"], result["iteration"]) for result in results] == [(False, 5)] * 2
    assert "Optimization stopped early." in results[0]["log"]
    assert (tmp_path / "s6_iter_5.solverstate").exists() and (tmp_path / "s6_iter_5.caffemodel").exists()


def test_a_hangup_takes_a_snapshot_and_goes_on(worlds: WorldPool, tmp_path: Path) -> None:
    path = files(tmp_path, 6)
    result = worlds(1).run(train, path, None, (6, signal.SIGHUP))[0]
    assert result["done"] and (tmp_path / "s6_iter_7.solverstate").exists()


def test_gradients_are_reduced_while_backward_goes_on(worlds: WorldPool, tmp_path: Path) -> None:
    traces = worlds(2).run(traced, files(tmp_path, 6))
    events = [(event, name) for event, name, _ in traces[0]]
    assert events.index(("start", "ip.0")) < events.index(("ready", "conv.0")), "the last layer's comes first"


def traced(path: str) -> list[tuple[str, str, int]]:
    """Runs in a rank: the reducer's events of one iteration."""
    from horovod.caffe import Solver

    solver = Solver(path)
    trace: list[tuple[str, str, int]] = []
    solver.reducing._hvd_reducer.trace = trace
    solver.step(1)
    solver.close()
    return trace


def data_of(path: str, batches: int) -> list[Any]:
    """Runs in a rank: a number for each image of the first batches."""
    from horovod.caffe import TRAIN, Net
    from horovod.caffe.replicas import Replicas

    net = Net(path, TRAIN, replicas=Replicas.of_this_job(), seed=7)
    found = []
    for _ in range(batches):
        net.forward()
        found.append((net.blobs["data"].flatten(1) ** 3).sum(1).tolist())
    net.close()
    return found


@pytest.mark.parametrize("shuffle", ["", "shuffle: true"])
def test_the_ranks_read_different_records_and_together_all(shuffle: str, worlds: WorldPool, tmp_path: Path) -> None:
    files(tmp_path, 10)
    path = tmp_path / "net10.prototxt"
    path.write_text(path.read_text().replace("batch_size: 10", f"batch_size: 10 {shuffle}"))
    ranks = worlds(2).run(data_of, str(path), 6)
    seen = [[sum(batch, start=0.0) for batch in rank] for rank in ranks]
    epochs = [sorted(value for rank in ranks for batch in rank[a : a + 3] for value in batch) for a in (0, 3)]
    assert epochs[0] == epochs[1] and len(set(epochs[0])) == RECORDS, "each record once an epoch"
    assert (seen[0][:3] == seen[0][3:]) == (not shuffle), "a shuffled epoch has another order"
