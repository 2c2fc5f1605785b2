# SPDX-License-Identifier: Apache-2.0
"""What an elastic job has trained is what static jobs train, bit for bit, and each item has been counted once.

An elastic job goes through worlds of several sizes, with a kill among the changes. Then its history is done again by
static jobs: one for each world, of as many ranks on the same hosts, which begin with what the one before has saved.
Steps that were rolled back are no part of that history. Every rank has other items, so that it matters who did what.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.elastic.elastic_jobs import LEDGER, ElasticJob, World, check_items, history, ledgers
from support.extent import later
from support.frameworks import TENSORFLOW_ENV, missing
from support.jobs import run_job
from support.patience import wait_until

ONE, TWO = "localhost", "127.0.0.1"

# UNTIL: at which step a static job ends. It may begin with what is in the file FROM, and saves to the file TO.
HEAD = (
    LEDGER
    + """
import hashlib
import numpy as np
from horovod.core.objects import allgather_object
from horovod.elastic.worker.decorator import run

until = int(os.environ.get("UNTIL", "-1"))
def is_over(step):
    time.sleep(0.01)
    # All ranks see the file at the same step.
    return step == until or until < 0 and max(allgather_object(os.path.exists("end")))

def ended(step, arrays):
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
    print("finished", worker, hvd.rank(), hvd.size(), step, 0, True, flush=True)
    print("weights", digest, flush=True)
"""
)

# For scripts to which `arrays()` are all that there is to keep.
FILES = """
saved = np.load(os.environ["FROM"]) if "FROM" in os.environ else {"step": 0}

def save(step):
    if hvd.rank() == 0 and "TO" in os.environ:
        np.savez(os.environ["TO"], *arrays(), step=step)
    ended(step, arrays())
"""

# For scripts with a `state`, and a `step` over items.
LOOP = """
@run
def train(state):
    enter(state.step)
    while True:
        items = [(state.step * 31 + 7 * i + hvd.rank() * 3) % 1000 for i in range(3)]
        took(state.step + 1, 0, items)
        step(items)
        state.step += 1
        if is_over(state.step):
            return
        state.commit() if state.step % 2 else state.check_host_updates()

train(state)
save(state.step)
"""

# Sums of halves and of numbers that are no powers of two: another order of ranks, or a step too many, changes the bits.
CORE = """
import horovod.core as hvd
from horovod.core.objects import broadcast_object
from horovod.elastic.state.state import ObjectState

hvd.init()
inputs = np.random.default_rng(1).standard_normal((1000, 8))
state = ObjectState(broadcast_object, hvd.rank, weights=saved.get("arr_0", np.zeros(8)), step=int(saved["step"]))

def step(items):
    rows = inputs[items]
    gradient = rows.T @ (rows @ state.weights - np.sin(rows).sum(1))
    state.weights = state.weights - 0.01 * hvd.allreduce(gradient, name="gradient")

def arrays():
    return [state.weights]
"""

JAX = """
import jax, optax
import jax.numpy as jnp
import horovod.jax as hvd

hvd.init()
inputs = jnp.asarray(np.random.default_rng(1).standard_normal((1000, 8)), jnp.float32)
optimizer = hvd.DistributedGradientTransformation(optax.adam(0.01))
params = {"w": jnp.zeros(8)}
leaves, structure = jax.tree_util.tree_flatten((params, optimizer.init(params)))
trees = structure.unflatten([jnp.asarray(saved.get(f"arr_{i}", leaf)) for i, leaf in enumerate(leaves)])
state = hvd.elastic.JaxState(*trees, step=int(saved["step"]))

@jax.jit
def compiled(params, opt_state, rows):
    gradients = jax.grad(lambda params: jnp.mean((rows @ params["w"] - jnp.sin(rows).sum(1)) ** 2))(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

def step(items):
    state.params, state.opt_state = compiled(state.params, state.opt_state, inputs[jnp.asarray(items)])

def arrays():
    return jax.tree_util.tree_leaves((state.params, state.opt_state))
"""

PYTORCH = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(1)
inputs = torch.randn(100, 8)
targets = inputs.sin().sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
sampler = hvd.elastic.ElasticSampler(inputs, seed=3)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
kept = {"model": model, "optimizer": optimizer, "sampler": sampler}
if "FROM" in os.environ:
    saved = torch.load(os.environ["FROM"])
    for name, value in kept.items():
        value.load_state_dict(saved[name])
    state.step = saved["step"]

@run
def train(state):
    enter(state.step)
    while True:
        mine = list(sampler)
        for begin in range(0, len(mine), 3):
            items = mine[begin : begin + 3]
            took(state.step + 1, sampler.epoch, items)  # it may be killed when the others have what it gave
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs[items]), targets[items]).backward()
            optimizer.step()
            sampler.record_batch(begin // 3, len(items))
            state.step += 1
            if is_over(state.step):
                return
            state.commit() if state.step % 2 else state.check_host_updates()
        sampler.set_epoch(sampler.epoch + 1)

train(state)
if hvd.rank() == 0 and "TO" in os.environ:
    torch.save({"step": state.step, **{name: value.state_dict() for name, value in kept.items()}}, os.environ["TO"])
ended(state.step, [value.numpy() for value in model.state_dict().values()])
"""

VARIABLES = """
def load(variables):
    for i, variable in enumerate(variables):
        variable.assign(saved.get(f"arr_{i}", variable.numpy()))
    return int(saved["step"])

def arrays():
    return [variable.numpy() for variable in variables]
"""

TENSORFLOW = """
import tensorflow as tf, keras
import horovod.tensorflow as hvd

hvd.init()
keras.utils.set_random_seed(1)
inputs = tf.random.stateless_normal((1000, 8), (1, 2))
targets = tf.reduce_sum(tf.sin(inputs), axis=1, keepdims=True)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(33, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
variables = model.trainable_variables + optimizer.variables
state = hvd.elastic.TensorFlowState([variable.value for variable in variables], step=0)
state.step = load(variables)

@tf.function(autograph=False, jit_compile="COMPILED" in os.environ)
def traced(items):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(tf.gather(inputs, items)) - tf.gather(targets, items)) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

def step(items):
    traced(tf.constant(items))
"""

KERAS = """
import keras
import horovod.keras as hvd

class Enough(Exception):
    pass

class Slow(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        step = state.epoch * STEPS + state.batch
        took(step, state.epoch, [])
        if is_over(step):
            state.save()
            raise Enough

hvd.init()
keras.utils.set_random_seed(1)
STEPS = 20
inputs = np.random.default_rng(2).standard_normal((4 * STEPS * 4, 8), np.float32)
targets = np.sin(inputs).sum(1, keepdims=True)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(33, "tanh"), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
model.compile(optimizer=optimizer, loss="mse")
state = hvd.elastic.KerasState(model, epoch=0, batch=0)
variables = model.weights + optimizer.variables
state.epoch, state.batch = divmod(load(variables), STEPS)

@run
def train(state):
    enter(state.epoch * STEPS + state.batch)
    mine = slice(hvd.rank() * 4 * STEPS, (hvd.rank() + 1) * 4 * STEPS)
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        Slow(),
        hvd.elastic.CommitStateCallback(state, 2),
    ]
    try:
        model.fit(inputs[mine], targets[mine], batch_size=4, epochs=1000, shuffle=False, verbose=0, callbacks=callbacks)
    except Enough:
        state.restore()

train(state)
save(state.epoch * STEPS + state.batch)
"""

SCRIPTS = {
    "core": HEAD + FILES + CORE + LOOP,
    "torch": HEAD + PYTORCH,
    "jax": HEAD + FILES + JAX + LOOP,
    "tensorflow": HEAD + FILES + VARIABLES + TENSORFLOW + LOOP,
    "keras": HEAD + FILES + VARIABLES + KERAS,
}


def done_again(directory: Path, script: str, worlds: list[World], env: dict[str, str]) -> str:
    """The digest of the weights that static jobs have at the end."""
    (directory / "train.py").write_text(script)
    before: dict[str, str] = {}
    for index, world in enumerate(worlds):
        hosts = ",".join(f"{name}:{ranks}" for name, ranks in zip((ONE, TWO), world.ranks, strict=False))
        saved = str(directory / f"{index}.npz")
        env = {"OMP_NUM_THREADS": "1", **env, **before, "UNTIL": str(world.end), "TO": saved}
        done = run_job(directory, "-np", str(sum(world.ranks)), "-H", hosts, [sys.executable, "train.py"], env=env)
        assert done.code == 0, done.stderr
        before = {"FROM": saved}
    return digest_of(done.stdout)


def digest_of(said: str) -> str:
    (digest,) = set(re.findall("weights ([0-9a-f]{64})", said))
    return digest


def trains(job: ElasticJob, size: int) -> dict[int, int]:
    """Blocks until there is a world of that size, and until it has done some steps. Its pids by worker."""
    pids = job.wait_for_world(size)
    before = len(ledgers(job.directory))
    wait_until(lambda: len(ledgers(job.directory)) >= before + 10 * size, job.shown)
    return pids


def on_one_host(job: ElasticJob) -> None:
    """2, 3, 2, 3 and 1 workers."""
    trains(job, 2)
    job.set_hosts(f"{ONE}:3")
    os.kill(trains(job, 3)[0], signal.SIGKILL)
    trains(job, 2)
    trains(job, 3)
    job.set_hosts(f"{ONE}:1")
    trains(job, 1)


def on_two_hosts(job: ElasticJob) -> None:
    """2 + 2, 2 + 1, 2 + 2, 1 + 2 and 2 workers."""
    os.kill(trains(job, 4)[3], signal.SIGKILL)
    trains(job, 3)
    trains(job, 4)
    job.set_hosts(f"{ONE}:1 {TWO}:2")
    trains(job, 3)
    job.set_hosts(f"{TWO}:2")
    trains(job, 2)


def one_joins(job: ElasticJob) -> None:
    """1 and 2 workers."""
    trains(job, 1)
    job.set_hosts(f"{ONE}:2")
    trains(job, 2)


def one_is_replaced(job: ElasticJob) -> None:
    """2, 1 and 2 workers."""
    os.kill(trains(job, 2)[1], signal.SIGKILL)
    trains(job, 1)
    trains(job, 2)


class Plan(NamedTuple):
    play: Callable[[ElasticJob], None]
    hosts: str
    np: int
    worlds: int  # at least


SHORT = Plan(one_joins, f"{ONE}:1", 1, 2)
REPLACED = Plan(one_is_replaced, f"{ONE}:2", 2, 3)
ONE_HOST = Plan(on_one_host, f"{ONE}:2", 2, 4)
TWO_HOSTS = Plan(on_two_hosts, f"{ONE}:2 {TWO}:2", 4, 4)
TCP = {"HOROVOD_TRANSPORT": "tcp"}


@pytest.mark.slow("an elastic job of several worlds")
@pytest.mark.parametrize(
    ("name", "plan", "env"),
    [
        pytest.param("core", TWO_HOSTS, {}, id="core-hierarchical"),
        pytest.param("jax", SHORT, {}, id="jax-short"),
        later("core", ONE_HOST, {}, id="core-shm"),
        later("torch", ONE_HOST, {}, id="torch-shm"),
        later("torch", TWO_HOSTS, {}, id="torch-hierarchical"),
        later("torch", ONE_HOST, TCP, id="torch-tcp"),
        later("jax", REPLACED, {}, id="jax"),
        later("tensorflow", ONE_HOST, {}, id="tensorflow"),
        later("tensorflow", REPLACED, {"COMPILED": "1"}, id="tensorflow-compiled"),
        later("keras", ONE_HOST, {}, id="keras"),
        *(later("keras", REPLACED, {"KERAS_BACKEND": name}, id=f"keras-{name}") for name in ("torch", "jax")),
    ],
)
def test_what_was_trained_equals_static_jobs(tmp_path: Path, name: str, plan: Plan, env: dict[str, str]) -> None:
    for framework in (name, env.get("KERAS_BACKEND", "core")):
        if why := missing(framework):
            pytest.skip(why)
    elastic, static = tmp_path / "elastic", tmp_path / "static"
    elastic.mkdir()
    static.mkdir()
    # PyTorch keeps these for its next process.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    env = {**TENSORFLOW_ENV, **cache, **env}
    flags = ["-np", str(plan.np), "--min-np", "1"]
    blame = {"HOROVOD_ELASTIC_BLAME": "worker"}
    with ElasticJob(elastic, *flags, script=SCRIPTS[name], hosts=plan.hosts, env={**env, **blame}) as job:
        plan.play(job)
        said = job.finish()
    (steps,) = set(re.findall(r"finished \d+ \d+ \d+ (\d+)", said))
    entries = ledgers(elastic)
    worlds = history(entries, int(steps))
    assert len(worlds) >= plan.worlds, worlds
    assert digest_of(said) == done_again(static, SCRIPTS[name], worlds, env), worlds
    if name == "torch":
        check_items(entries, worlds, 100)
