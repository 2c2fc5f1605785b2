# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of each framework: a worker is killed in the middle and replaced, slots come and go, no step is lost or
counted twice.

Every gradient is 1, whatever the rank and the number of ranks, and a step takes it from the weight. So the weight says
how many steps it has seen, and has to fit the state's counters and the optimizer's.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest
from support.elastic.elastic_jobs import ElasticJob
from support.frameworks import TENSORFLOW_ENV

HEAD = """
import os, sys, time
worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
def enter(steps):
    print("enter", worker, hvd.rank(), hvd.size(), steps, os.getpid(), flush=True)
def finished(steps, right):
    print("finished", worker, hvd.rank(), hvd.size(), steps, 0, bool(right), flush=True)
def is_over(state):
    # All ranks see the file at the same step.
    return bool(max(allgather_object(os.path.exists("end"))))
from horovod.core.objects import allgather_object
from horovod.elastic.worker.decorator import run
"""

KERAS = (
    HEAD
    + """
import keras, numpy as np
import horovod.keras as hvd
from horovod.keras.elastic_callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from horovod.keras.elastic_state import KerasState
hvd.init()
STEPS = 20
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
model.compile(optimizer=optimizer, loss=lambda truth, guess: keras.ops.mean(guess, axis=-1))
state = KerasState(model, epoch=0, batch=0)
class Slow(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        time.sleep(0.02)
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = is_over(state)
def right():
    weight = float(model.get_weights()[0][0, 0])
    return -weight == int(optimizer.iterations.numpy()) == state.epoch * STEPS + state.batch
@run
def train(state):
    enter(state.epoch * STEPS + state.batch)
    assert right(), (state.epoch, state.batch, model.get_weights())
    inputs = np.ones((4 * STEPS, 1), np.float32)
    callbacks = [
        Slow(), CommitStateCallback(state, 2), UpdateBatchStateCallback(state), UpdateEpochStateCallback(state)
    ]
    model.fit(inputs, inputs, batch_size=4, epochs=1000, shuffle=False, verbose=0, callbacks=callbacks)
train(state)
finished(state.epoch * STEPS + state.batch, right())
"""
)

LOOP = """
@run
def train(state):
    enter(state.step)
    assert right(), (state.step, weight_of())
    over = False
    while not over:
        step()
        state.step += 1
        over = is_over(state)
        time.sleep(0.02)
        state.commit() if state.step % 3 else state.check_host_updates()
def right():
    return -weight_of() == state.step
train(state)
finished(state.step, right())
"""

TENSORFLOW = (
    HEAD
    + """
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.elastic_state import TensorFlowState
hvd.init()
weight = tf.Variable([0.0])
state = TensorFlowState([weight], step=0)
@tf.function(jit_compile=os.environ.get("COMPILED") == "1", autograph=False)
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight)
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    weight.assign_sub(gradient)
def weight_of():
    return float(weight[0])
"""
    + LOOP
)

JAX = (
    HEAD
    + """
import jax, optax
import jax.numpy as jnp
import horovod.jax as hvd
from horovod.jax.elastic_state import JaxState
hvd.init()
optimizer = hvd.DistributedGradientTransformation(optax.sgd(1.0))
params = {"w": jnp.zeros(1)}
state = JaxState(params, optimizer.init(params), step=0)
@jax.jit
def compiled(params, opt_state):
    gradients = jax.grad(lambda params: params["w"].sum())(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state
def step():
    state.params, state.opt_state = compiled(state.params, state.opt_state)
def weight_of():
    return float(state.params["w"][0])
"""
    + LOOP
)

SCRIPTS = {
    "keras-tensorflow": (KERAS, {"KERAS_BACKEND": "tensorflow"}),
    "keras-torch": (KERAS, {"KERAS_BACKEND": "torch"}),
    "keras-jax": (KERAS, {"KERAS_BACKEND": "jax"}),
    "tensorflow": (TENSORFLOW, {}),
    "tensorflow-compiled": (TENSORFLOW, {"COMPILED": "1"}),
    "jax": (JAX, {}),
}


def job_of(tmp_path: Path, name: str, *flags: str, hosts: str | None = None) -> ElasticJob:
    for framework in name.removesuffix("-compiled").split("-"):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"not run: {framework} is not installed")
    script, env = SCRIPTS[name]
    # PyTorch keeps these for its next process.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    return ElasticJob(tmp_path, *flags, script=script, hosts=hosts, env={**TENSORFLOW_ENV, **cache, **env})


# The cheapest to import.
DAILY = ("jax",)


@pytest.mark.slow("an elastic job of several worlds")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DAILY else pytest.mark.thorough) for name in SCRIPTS]
)
def test_a_killed_worker_is_replaced_and_no_step_is_lost(tmp_path: Path, name: str) -> None:
    with job_of(tmp_path, name, "-np", "2", "--min-np", "1") as job:
        pids = job.wait_for_world(2)
        os.kill(pids[1], signal.SIGKILL)
        job.wait_for_world(1)
        job.wait_for_line(r"enter 2 \d 2 ")
        said = job.finish()
    assert "1 loss survived: worker 1 on localhost was killed by SIGKILL" in said
    assert any(int(steps) > 0 for steps in re.findall(r"enter 2 \d 2 (\d+)", said)), "it has got the others' state"


@pytest.mark.slow("an elastic job of several worlds")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("keras-tensorflow", marks=pytest.mark.thorough),
        pytest.param("tensorflow-compiled", marks=pytest.mark.thorough),
        "jax",
    ],
)
def test_slots_come_and_go_and_nobody_is_rolled_back(tmp_path: Path, name: str) -> None:
    with job_of(tmp_path, name, "-np", "1", "--min-np", "1", hosts="localhost:1") as job:
        job.wait_for_world(1)
        job.set_hosts("localhost:2")
        job.wait_for_world(2)
        job.set_hosts("localhost:1")
        job.wait_for_line(r"enter 0 0 1 [1-9]")
        assert "survived" not in job.finish()
