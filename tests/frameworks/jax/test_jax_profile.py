# SPDX-License-Identifier: Apache-2.0
"""horovodrun --profile of JAX: gradients of a compiled step become ready one by one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.forecasts import warnings_of
from support.jobs import run_job

pytest.importorskip("jax", reason="not run: jax is not installed")

TRAIN = """
import jax, jax.numpy as jnp, optax, horovod.jax as hvd
hvd.init()
keys = jax.random.split(jax.random.key(hvd.rank()), 3)
weights = [jax.random.normal(key, (64, 64), jnp.bfloat16) for key in keys]
optimizer = hvd.DistributedGradientTransformation(optax.sgd(0.01))
state = optimizer.init(weights)
def loss(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x.astype(jnp.float32) ** 2)
@jax.jit
def step(weights, state, x):
    updates, state = optimizer.update(jax.grad(loss)(weights, x), state, weights)
    return optax.apply_updates(weights, updates), state
x = jnp.ones((32, 64), jnp.bfloat16)
for _ in range(45):
    weights, state = jax.block_until_ready(step(weights, state, x))
"""


@pytest.mark.slow("jobs that import JAX")
def test_in_optax_multi_steps_each_pass_is_a_step_with_its_reduction(tmp_path: Path) -> None:
    """It calls the optimizer in each pass, and a real job reduces then."""
    pytest.importorskip("optax", reason="not run: optax is not installed")
    accumulating = TRAIN.replace("\nstate =", "\noptimizer = optax.MultiSteps(optimizer, every_k_schedule=4)\nstate =")
    accumulating = accumulating.replace("range(45)", "range(100)")
    command = [sys.executable, "-c", accumulating]
    done = run_job(tmp_path, "-np", "1", "--profile", "profile.json", command, env={"JAX_PLATFORMS": "cpu"})
    assert done.code == 0 and not warnings_of(done.stderr), done
    content = json.loads((tmp_path / "profile.json").read_text())
    left_out = re.search(r"(\d+) of 60 steps had .*: left out", done.stderr)
    assert len(content["step_ms"]) + (int(left_out[1]) if left_out else 0) == 60
    assert sorted(content["gradients"]["name"]) == ["0", "1", "2"]


@pytest.mark.slow("jobs that import JAX")
def test_a_compiled_step_leaves_a_profile_of_each_gradient(tmp_path: Path) -> None:
    pytest.importorskip("optax", reason="not run: optax is not installed")
    command = [sys.executable, "-c", TRAIN]
    done = run_job(tmp_path, "-np", "2", "--profile", "profile.json", command, env={"JAX_PLATFORMS": "cpu"})
    assert done.code == 0 and not warnings_of(done.stderr), done
    content = json.loads((tmp_path / "profile.json").read_text())
    gradients = content["gradients"]
    assert gradients["dtype"] == ["bfloat16"] * 3 and gradients["bytes"] == [8192] * 3
    assert sorted(gradients["name"]) == ["0", "1", "2"] and len(content["step_ms"]) >= 30
    assert all(step > 0 for step in content["step_ms"])
