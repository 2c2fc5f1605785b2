# SPDX-License-Identifier: Apache-2.0
"""Training with several ranks is training with one on the whole batch; snapshots, signals and tests keep to it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import RECORDS, by_rank, losses, small_training
from support.world import WorldPool

for module in ("torch", "google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

import torch

from horovod.caffe import TRAIN, Net, Solver
from horovod.caffe.files import write_weights
from horovod.caffe.replicas import Replicas
from horovod.caffe.schema import message
from horovod.caffe.signals import Signals


def train(
    path: str, resume: str | None = None, send: tuple[int, int] | None = None, precision: str = "float64"
) -> dict[str, Any]:
    """Runs in a rank: what it logs, and the weights. `send`: (iteration, signal) on this rank."""
    torch.set_default_dtype(getattr(torch, precision))
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
    alone = worlds(1).run(train, small_training(tmp_path, 12, LOSSES[loss]))[0]
    together = worlds(size).run(train, small_training(tmp_path, 12 // size, LOSSES[loss]))
    kept = [lines(result) for result in (alone, together[0])]
    if loss == "some labels ignored":  # means over the valid labels of a batch, and tests have other batches
        kept = [[line for line in one if not re.search("Test (net output #1|loss)", line)] for one in kept]
    assert kept[0] == kept[1] and len(kept[0]) > 60, "every loss, output and test is the same to six digits"
    assert all(not result["log"] for result in together[1:]), "one rank talks for all"
    for result in together:
        for one, other in zip(alone["weights"], result["weights"], strict=True):
            assert np.abs(one - other).max() < 1e-10
    assert (
        "Iteration 10, Testing net (#0)" in alone["log"]
        and "Test loss: " in alone["log"]
        and "Optimization Done." in alone["log"]
    )


def test_training_begins_with_the_weights_that_the_solver_names(worlds: WorldPool, tmp_path: Path) -> None:
    """Several files, too, with commas between them."""
    first = worlds(1).run(train, small_training(tmp_path, 12))[0]
    (tmp_path / "s12_iter_20.caffemodel").rename(tmp_path / "first.caffemodel")
    other = tmp_path / "other.caffemodel"
    worlds(1).run(save_net_without_weights, str(other))
    path = Path(small_training(tmp_path, 6, more=f'weights: "{other},{tmp_path}/first.caffemodel"'))
    path.write_text(path.read_text().replace("max_iter: 20", "max_iter: 0"))
    for result in worlds(2).run(train, str(path)):
        for one, begun in zip(first["weights"], result["weights"], strict=True):
            assert np.abs(one - begun).max() < 1e-6, "files have single precision"


def save_net_without_weights(path: str) -> None:
    write_weights(path, message("NetParameter")(), [])


def test_passes_of_iter_size_are_one_batch(worlds: WorldPool, tmp_path: Path) -> None:
    whole = worlds(1).run(train, small_training(tmp_path, 12))[0]
    parts = worlds(2).run(train, small_training(tmp_path, 3, more="iter_size: 2"))
    for one, other in zip(whole["weights"], parts[1]["weights"], strict=True):
        assert np.abs(one - other).max() < 1e-10, "the records of an iteration are the same, in another order"


def test_two_ranks_are_one_that_adds_the_halves_of_its_batch_bit_for_bit(worlds: WorldPool, tmp_path: Path) -> None:
    """In single precision: nothing but the order of the sums tells two ranks from one."""
    together = worlds(2).run(train, small_training(tmp_path, 6), None, None, "float32")[0]
    by_rank(tmp_path / "train", RECORDS, batch=12, ranks=2)
    alone = worlds(1).run(train, small_training(tmp_path, 6, more="iter_size: 2"), None, None, "float32")[0]
    assert losses(together["log"])[:20] == losses(alone["log"])[:20]
    for one, other in zip(together["weights"], alone["weights"], strict=True):
        assert one.dtype == np.float32 and one.tobytes() == other.tobytes()


NORM = """
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "sc" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
"""


def test_statistics_stay_each_ranks_own_and_tests_use_their_mean(worlds: WorldPool, tmp_path: Path) -> None:
    results = worlds(2).run(train, small_training(tmp_path, 6, extra=NORM))
    names = ("conv.0", "conv.1", "bn mean", "bn variance", "bn count")
    first, second = (dict(zip(names, result["weights"], strict=False)) for result in results)
    assert np.array_equal(first["conv.0"], second["conv.0"])
    assert not np.array_equal(first["bn mean"], second["bn mean"])
    assert np.array_equal(first["bn count"], second["bn count"])
    weights = [(one + other) / 2 for one, other in zip(results[0]["weights"], results[1]["weights"], strict=True)]
    tested = worlds(1).run(mean_loss, str(tmp_path / "net6.prototxt"), weights, 8)[0]
    printed = re.findall(r"Test net output #1: loss = (\S+)", results[0]["log"])
    assert float(printed[-1]) == pytest.approx(tested, rel=1e-5)


def mean_loss(path: str, weights: list[Any], batches: int) -> float:
    """Runs in a rank: the test net's mean loss with these weights, in double precision."""
    torch.set_default_dtype(torch.float64)
    try:
        net = Net(path)
        with torch.no_grad():
            for one, values in zip(net.parameters, weights, strict=True):
                one.tensor.copy_(torch.from_numpy(values))
            losses = [float(net.forward()["loss"]) for _ in range(batches)]
        net.close()
    finally:
        torch.set_default_dtype(torch.float32)
    return sum(losses) / batches


@pytest.mark.parametrize("more", ["", "snapshot_format: HDF5", 'type: "Adam" momentum2: 0.99'])
def test_a_training_goes_on_from_its_snapshot(more: str, worlds: WorldPool, tmp_path: Path) -> None:
    more = f"{more} snapshot: 10"
    path = small_training(tmp_path, 30, more=more)  # two batches an epoch: the data are where they were at iteration 10
    whole = worlds(1).run(train, path)[0]
    suffix = ".h5" if "HDF5" in more else ""
    state = str(tmp_path / f"s30_iter_10.solverstate{suffix}")
    written = {path.name for path in tmp_path.glob("s30_iter_*")}
    assert written == {f"s30_iter_{i}.{kind}{suffix}" for i in (10, 20) for kind in ("caffemodel", "solverstate")}
    rest = worlds(1).run(train, path, state)[0]
    assert rest["iteration"] == 20 and "Restoring previous solver status" in rest["log"]
    assert np.abs(rest["weights"][0] - whole["weights"][0]).max() < 1e-5, "files have single precision"
    shared = worlds(2).run(train, small_training(tmp_path, 15, more=more), state)
    for one, other in zip(shared[0]["weights"], shared[1]["weights"], strict=True):
        assert np.array_equal(one, other) and one.size
    assert np.abs(shared[0]["weights"][0] - whole["weights"][0]).max() < 1e-5


def test_a_signal_to_any_rank_stops_all_with_a_snapshot(worlds: WorldPool, tmp_path: Path) -> None:
    path = small_training(tmp_path, 6)
    send = [(path, None, None), (path, None, (4, signal.SIGINT))]
    results = worlds(2).run(train, per_rank=send)
    assert [(result["done"], result["iteration"]) for result in results] == [(False, 5)] * 2
    assert "Optimization stopped early." in results[0]["log"]
    assert (tmp_path / "s6_iter_5.solverstate").exists() and (tmp_path / "s6_iter_5.caffemodel").exists()


def test_a_hangup_takes_a_snapshot_and_goes_on(worlds: WorldPool, tmp_path: Path) -> None:
    path = small_training(tmp_path, 6)
    result = worlds(1).run(train, path, None, (6, signal.SIGHUP))[0]
    assert result["done"] and (tmp_path / "s6_iter_7.solverstate").exists()


def test_gradients_are_reduced_while_backward_goes_on(worlds: WorldPool, tmp_path: Path) -> None:
    traces = worlds(2).run(traced, small_training(tmp_path, 6))
    events = [(event, name) for event, name, _ in traces[0]]
    assert events.index(("start", "ip.0")) < events.index(("ready", "conv.0")), "the last layer's comes first"


def traced(path: str) -> list[tuple[str, str, int]]:
    """Runs in a rank: the reducer's events of one iteration."""
    solver = Solver(path)
    trace: list[tuple[str, str, int]] = []
    solver.reducing._hvd_reducer.trace = trace
    solver.step(1)
    solver.close()
    return trace


def data_of(path: str, batches: int) -> list[Any]:
    """Runs in a rank: a number for each image of the first batches."""
    net = Net(path, TRAIN, replicas=Replicas.of_this_job(), seed=7)
    found = []
    for _ in range(batches):
        net.forward()
        found.append((net.blobs["data"].flatten(1) ** 3).sum(1).tolist())
    net.close()
    return found


@pytest.mark.parametrize("shuffle", ["", "shuffle: true"])
def test_the_ranks_read_different_records_and_together_all(shuffle: str, worlds: WorldPool, tmp_path: Path) -> None:
    small_training(tmp_path, 10)
    path = tmp_path / "net10.prototxt"
    path.write_text(path.read_text().replace("batch_size: 10", f"batch_size: 10 {shuffle}"))
    ranks = worlds(2).run(data_of, str(path), 6)
    seen = [[sum(batch, start=0.0) for batch in rank] for rank in ranks]
    epochs = [sorted(value for rank in ranks for batch in rank[a : a + 3] for value in batch) for a in (0, 3)]
    assert epochs[0] == epochs[1] and len(set(epochs[0])) == RECORDS, "each record once an epoch"
    assert (seen[0][:3] == seen[0][3:]) == (not shuffle), "a shuffled epoch has another order"
