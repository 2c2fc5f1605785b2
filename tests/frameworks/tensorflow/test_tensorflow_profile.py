# SPDX-License-Identifier: Apache-2.0
"""horovodrun --profile of TensorFlow and Keras: gradients of a list become ready one by one in a graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.forecasts import warnings_of
from support.frameworks import TENSORFLOW_ENV
from support.jobs import Done, run_job

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

KERAS = """
import numpy as np, tensorflow as tf, horovod.keras as hvd
hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
layers = tf.keras.layers
dense = [layers.Dense(512) for _ in range(4)]
model = tf.keras.Sequential([layers.Embedding(50, 64), layers.Flatten(), *dense, layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01))
model.compile(optimizer, "mse")
broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
model.fit(np.random.randint(0, 50, (4800, 4)), np.random.rand(4800), 64, callbacks=[broadcast], verbose=0)
print("weight", float(np.asarray(model.weights[-1])[0]), flush=True)
"""
TAPE = """
import tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Dense(16), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
WRAPPED
for _ in range(STEPS):
    step(tf.random.normal([8, 4]))
"""
COMPILED = "step = tf.function(step, jit_compile=True)"
REFUSED = f"""
{COMPILED}
try:
    step(tf.ones([8, 4]))
except Exception as error:
    print(error)
"""


def profiled(folder: Path, script: str, ranks: int) -> tuple[Done, dict[str, Any]]:
    path = folder / "profile.json"
    command = [sys.executable, "-c", script]
    done = run_job(folder, "-np", str(ranks), "--profile", "profile.json", command, env=TENSORFLOW_ENV)
    return done, json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.slow("a job that imports TensorFlow")
def test_keras_fit_leaves_a_profile_of_each_gradient(tmp_path: Path) -> None:
    done, content = profiled(tmp_path, KERAS, 2)
    assert done.code == 0 and "the times for the input and for the update count as forward" in done.stderr, done
    assert not warnings_of(done.stderr), done
    gradients = content["gradients"]
    sizes = {name.split("/", 1)[1]: size for name, size in zip(gradients["name"], gradients["bytes"], strict=True)}
    rows = 64 * 4 * (64 * 4 + 4)  # sparse: 64 samples of 4 words, and of each a row of floats and an index
    assert len(sizes) == 11 and sizes["embedding/embeddings"] == rows
    assert sizes["dense/kernel"] == 256 * 512 * 4 and sizes["dense_4/kernel"] == 512 * 4 == sizes["dense/bias"]
    assert [gradients["name"][row] for row in gradients["sparse"]] == [
        next(name for name in gradients["name"] if "embedding" in name)
    ]
    assert content["busy_ranks"] == 2 and 40 <= len(content["step_ms"]) <= 60
    ready = dict(zip(sizes, (median for median, _, _ in gradients["ready_ms"]), strict=True))
    assert ready["dense_4/kernel"] < ready["dense_2/kernel"] < ready["dense/kernel"], "as backward computes them"
    # Two may be first in turns, so the median need not be 0.
    assert min(p10 for _, p10, _ in gradients["ready_ms"]) == 0
    assert content["update_ms"]["median"] < content["forward_ms"]["median"]
    assert len({line.split()[-1] for line in done.stdout.splitlines()}) == 2, "ranks train apart"


@pytest.mark.thorough
def test_an_eager_tape_is_recorded_and_what_xla_compiles_is_refused(tmp_path: Path) -> None:
    script = TAPE.replace("WRAPPED", "").replace("STEPS", "40") + REFUSED
    done, content = profiled(tmp_path, script, 1)
    assert done.code == 0 and sorted(content["gradients"]["bytes"]) == [4, 64, 64, 256], done
    # A busy machine may make pauses, and steps after a pause are left out.
    assert 20 <= len(content["step_ms"]) <= 29 and content["gradients"]["dtype"] == ["float32"] * 4
    assert "a step that XLA compiles cannot be profiled" in done.stdout and "hint: jit_compile=False" in done.stdout


@pytest.mark.thorough
def test_a_job_whose_step_is_refused_leaves_no_profile(tmp_path: Path) -> None:
    done, content = profiled(tmp_path, TAPE.replace("WRAPPED", COMPILED).replace("STEPS", "1"), 1)
    assert done.code == 1 and content == {}
    assert "a step that XLA compiles cannot be profiled" in done.said and "hint: jit_compile=False" in done.said, done
