# SPDX-License-Identifier: Apache-2.0
"""The six solvers, the rates, clipping, decay and iter_size, replayed in numpy from Caffe's formulas."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import write
from support.world import WorldPool

for module in ("torch", "google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

import h5py

from horovod.caffe import CaffeError, Solver
from horovod.caffe.rates import Rates
from horovod.caffe.replicas import Replicas
from horovod.caffe.schema import message

Array = np.ndarray[Any, Any]
ROWS, INPUTS, OUTPUTS, BATCH, STEPS = 24, 5, 3, 4, 12
NET = """
layer { name: "data" type: "HDF5Data" top: "x" top: "target" hdf5_data_param { source: "%s/list" batch_size: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" param { lr_mult: 1 decay_mult: 1 }
  param { lr_mult: 2 decay_mult: 0.5 } inner_product_param { num_output: 3 weight_filler { type: "xavier" }
  bias_filler { type: "uniform" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "target" top: "loss" }
"""
FIXED = {"base_lr": 0.05, "lr_policy": "fixed", "max_iter": STEPS}
CASES: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "Nesterov": {"momentum": 0.9, "weight_decay": 0.01},
    "AdaGrad": {"weight_decay": 0.01, "delta": 1e-3},
    "RMSProp": {"rms_decay": 0.9, "delta": 1e-3},
    "AdaDelta": {"momentum": 0.95, "delta": 1e-4, "base_lr": 1.0},
    "Adam": {"momentum": 0.9, "momentum2": 0.99, "delta": 1e-6},
    "SGD, falling": {"momentum": 0.9, "lr_policy": "step", "gamma": 0.5, "stepsize": 3},
    "SGD, exp": {"momentum": 0.5, "lr_policy": "exp", "gamma": 0.9},
    "SGD, inv": {"momentum": 0.5, "lr_policy": "inv", "gamma": 0.1, "power": 0.75},
    "SGD, poly": {"momentum": 0.5, "lr_policy": "poly", "power": 2.0},
    "SGD, multistep": {"momentum": 0.5, "lr_policy": "multistep", "gamma": 0.5, "stepvalue": [2, 5, 6]},
    "SGD, sigmoid": {"momentum": 0.5, "lr_policy": "sigmoid", "gamma": -0.5, "stepsize": 6},
    "SGD, multifixed": {"lr_policy": "multifixed", "stagelr": [0.1, 0.01, 0.02], "stageiter": [3, 7, 9]},
    "SGD, warm-up": {"momentum": 0.9, "warmup_iter": 5, "warmup_start_lr": 0.01},
    "SGD, plateau": {"lr_policy": "plateau", "gamma": 0.1, "plateau_winsize": [1, 2], "average_loss": 2},
    "SGD, LARS": {"momentum": 0.9, "local_lr_auto": True, "local_gw_ratio": 0.1, "weight_decay": 0.01},
    "SGD, clipped": {"momentum": 0.9, "clip_gradients": 2.5, "weight_decay": 0.02, "iter_size": 2},
    "SGD, L1": {"momentum": 0.9, "weight_decay": 0.02, "regularization_type": "L1", "iter_size": 3},
    "Adam, clipped": {"momentum": 0.9, "clip_gradients": 0.5, "delta": 1e-8},
}


def text_of(settings: dict[str, Any]) -> str:
    """The settings as a prototxt."""
    lines = []
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            shown = f'"{one}"' if isinstance(one, str) else str(one).lower() if isinstance(one, bool) else one
            lines.append(f"{name}: {shown}")
    return "\n".join(lines)


def policy_rate(s: dict[str, Any], i: int, step: int) -> float:
    """The rate of step `i` without warm-up. `step`: how often multistep or plateau have lowered it."""
    b, g, p = s["base_lr"], s.get("gamma", 0), s.get("power", 0)
    if s["lr_policy"] == "multifixed":
        return next((rate for rate, last in zip(s["stagelr"], s["stageiter"], strict=True) if i <= last), 0.02)
    return {
        "fixed": lambda: b,
        "step": lambda: b * g ** (i // s["stepsize"]),
        "exp": lambda: b * g**i,
        "inv": lambda: b * (1 + g * i) ** -p,
        "poly": lambda: b * (1 - i / STEPS) ** p,
        "multistep": lambda: b * g**step,
        "sigmoid": lambda: b / (1 + np.exp(-g * (i - s["stepsize"]))),
        "plateau": lambda: b * g**step,
    }[s["lr_policy"]]()


def rates_of(s: dict[str, Any], losses: list[float]) -> list[float]:
    """The rate of each step."""
    b = s["base_lr"]
    step, found, lowest, event = 0, [], np.inf, 0
    for i in range(STEPS):
        policy = s["lr_policy"]
        if policy == "multistep" and step < len(s["stepvalue"]) and i >= s["stepvalue"][step]:
            step += 1
        if policy == "plateau":
            smoothed = float(np.mean(losses[max(0, i - s["average_loss"] + 1) : i + 1]))
            if smoothed < lowest:
                lowest, event = smoothed, i
            if step < len(s["plateau_winsize"]) and i - event >= s["plateau_winsize"][step]:
                step, event = step + 1, i
        rate = policy_rate(s, i, step)
        warm = s.get("warmup_iter", 0)
        found.append((i * b + (warm - i) * s["warmup_start_lr"]) / warm if i < warm else rate)
    return found


def replay(
    kind: str, s: dict[str, Any], x: Array, target: Array, start: list[Array]
) -> tuple[list[Array], list[float]]:
    """Weights and losses after STEPS steps."""
    w = [one.astype(np.float64) for one in start]
    h1, h2 = [np.zeros_like(one) for one in w], [np.zeros_like(one) for one in w]
    m, passes, losses, row = s.get("momentum", 0.0), s.get("iter_size", 1), [], 0
    rates: list[float] = []
    for i in range(STEPS):
        g, loss = [np.zeros_like(one) for one in w], 0.0
        for _ in range(passes):
            rows = np.arange(row, row + BATCH) % ROWS
            row += BATCH
            error = x[rows] @ w[0].T + w[1] - target[rows]
            loss += (error**2).sum() / (2 * BATCH * passes)
            g[0] += error.T @ x[rows] / BATCH
            g[1] += error.sum(0) / BATCH
        losses.append(loss)
        rates = rates_of(s, [*losses, *[np.inf] * STEPS])
        norm, clip = np.sqrt(sum((one**2).sum() for one in g)), s.get("clip_gradients", -1)
        factor = (clip / norm if 0 <= clip < norm else 1.0) / passes
        momentum = m * (rates[i] / rates[i - 1] if 0 < i < s.get("warmup_iter", 0) else 1)
        for k, (multiple, decay) in enumerate(((1, 1), (2, 0.5))):
            d = s.get("weight_decay", 0) * decay
            grad = g[k] * factor + d * (np.sign(w[k]) if s.get("regularization_type") == "L1" else w[k])
            local = float(multiple)
            if s.get("local_lr_auto"):
                norms = np.linalg.norm(w[k]), np.linalg.norm(grad)
                local = s["local_gw_ratio"] * norms[0] / (norms[1] + s["weight_decay"] * norms[0])
            w[k] = w[k] - update(kind, s, grad, h1, h2, k, rates[i] * local, momentum, i)
    return w, losses


def update(
    kind: str, s: dict[str, Any], g: Array, h1: list[Array], h2: list[Array], k: int, r: float, m: float, i: int
) -> Array:
    """What is subtracted from the weights."""
    delta, before = s.get("delta", 1e-8), h1[k]
    if kind in ("SGD", "Nesterov"):
        h1[k] = m * before + r * g
        return h1[k] if kind == "SGD" else (1 + m) * h1[k] - m * before
    if kind == "AdaGrad":
        h1[k] = before + g**2
        return r * g / (np.sqrt(h1[k]) + delta)
    if kind == "RMSProp":
        h1[k] = s["rms_decay"] * before + (1 - s["rms_decay"]) * g**2
        return r * g / (np.sqrt(h1[k]) + delta)
    if kind == "AdaDelta":
        h1[k] = m * before + (1 - m) * g**2
        v = g * np.sqrt((h2[k] + delta) / (h1[k] + delta))
        h2[k] = m * h2[k] + (1 - m) * v**2
        return r * v
    b2 = s.get("momentum2", 0.999)
    h1[k] = m * before + (1 - m) * g
    h2[k] = b2 * h2[k] + (1 - b2) * g**2
    return r * np.sqrt(1 - b2 ** (i + 1)) / (1 - m ** (i + 1)) * h1[k] / (np.sqrt(h2[k]) + delta)


def train(solver: str) -> tuple[list[Array], list[Array], list[float]]:
    """Runs in a rank: the weights before and after, and the losses."""
    trained = Solver(solver)
    start = [one.tensor.detach().numpy().copy() for one in trained.net.parameters]
    losses = []
    if trained.rates.follows_loss:  # it needs the losses before as well, which step() forgets
        trained.step(STEPS)
    else:
        for _ in range(STEPS):
            trained.step(1)
            losses.append(trained.losses[-1])
    trained.close()
    return start, [one.tensor.detach().numpy().copy() for one in trained.net.parameters], losses


@pytest.mark.parametrize("case", CASES)
def test_training_is_what_the_formulas_say(case: str, worlds: WorldPool, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, target = (random.normal(size=(ROWS, n)).astype(np.float32) for n in (INPUTS, OUTPUTS))
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["target"] = x, target
    write(tmp_path, "list", f"{tmp_path}/data.h5\n")
    kind = case.split(",")[0]
    settings = {**FIXED, **CASES[case]}
    if settings["lr_policy"] == "plateau":
        target *= 0  # the loss falls at first and then goes up and down with the batches
        with h5py.File(tmp_path / "data.h5", "a") as file:
            file["target"][...] = target
    net = write(tmp_path, "net.prototxt", NET % tmp_path)
    more = {"type": kind, "net": net, "random_seed": 1, "snapshot_after_train": False}
    solver = write(tmp_path, "solver.prototxt", text_of({**settings, **more}) + "\nsolver_mode: CPU")
    start, got, losses = worlds(1).run(train, solver)[0]
    expected, replayed = replay(kind, settings, x, target, start)
    if settings["lr_policy"] == "plateau":
        assert len(set(rates_of(settings, replayed))) == 3, "the rate has been lowered twice"
    assert np.abs(got[0] - start[0]).max() > 1e-3, "it has trained"
    for one, other in zip(got, expected, strict=True):
        assert np.abs(one - other).max() < 2e-6
    if settings["lr_policy"] != "plateau":
        assert losses == pytest.approx(replayed, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr_policy": "stepp"}, r"unknown lr_policy 'stepp'\nhint: did you mean 'step'"),
        ({"lr_policy": "step"}, "lr_policy 'step' needs gamma"),
        ({"lr_policy": "fixed", "type": "Adamm"}, r"unknown solver type 'Adamm'\nhint: did you mean 'Adam'"),
        ({"lr_policy": "fixed", "type": "AdaGrad", "momentum": 0.9}, "AdaGrad has no momentum"),
        ({"lr_policy": "fixed", "test_iter": 1}, "test_interval must be at least 1"),
        ({"lr_policy": "fixed", "train_net": "a"}, "expected one train net"),
        ({"lr_policy": "fixed", "iter_size": 0}, "iter_size must be at least 1"),
        ({"lr_policy": "fixed", "snapshot_prefix": "/nowhere/x"}, "the folder '/nowhere' does not exist"),
        ({}, "lr_policy is missing"),
    ],
)
def test_a_solver_that_cannot_work_says_why(settings: dict[str, Any], expected: str, tmp_path: Path) -> None:
    text = 'layer { name: "d" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 2 } } }'
    text += 'layer { name: "i" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 } }'
    given = {"net": write(tmp_path, "net.prototxt", text), "base_lr": 0.1, "max_iter": 1, **settings}
    with pytest.raises(CaffeError, match=expected):
        Solver(write(tmp_path, "solver.prototxt", text_of(given)), replicas=Replicas())


@pytest.mark.parametrize(
    ("settings", "iteration", "expected"),
    [
        ({"lr_policy": "sigmoid", "gamma": 1, "stepsize": 5000}, 0, 0.0),
        ({"lr_policy": "exp", "gamma": 2}, 5000, math.inf),
        ({"lr_policy": "poly", "power": 0.5, "max_iter": 10}, 12, 0.0),
    ],
)
def test_a_rate_beyond_all_numbers_is_as_in_c(settings: dict[str, Any], iteration: int, expected: float) -> None:
    assert Rates(message("SolverParameter")(base_lr=0.1, **settings)).rate(iteration) == expected
