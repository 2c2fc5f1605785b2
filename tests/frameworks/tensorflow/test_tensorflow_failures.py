# SPDX-License-Identifier: Apache-2.0
"""What a rank learns inside TensorFlow's kernels, where Python does not hear it, reaches the launcher all the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.frameworks import TENSORFLOW_ENV
from support.jobs import run_job
from support.world import World

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

# Rank 0 ends with an error, rank 1, the cause, without one.
GRAPH = """
import sys
import tensorflow.compat.v1 as tf
import horovod.tensorflow as hvd
tf.disable_v2_behavior()
hvd.init()
reduced = hvd.allreduce(tf.ones(3), name="gradient")
with tf.Session() as session:
    session.run(reduced)
    if hvd.rank() == 1:
        sys.exit(0)
    session.run(reduced)
"""
COMPILED = """
import sys
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
@tf.function(jit_compile=True)
def step(x):
    return hvd.allreduce(x, name="gradient")
step(tf.ones(3))
if hvd.rank() == 1:
    sys.exit(0)
step(tf.ones(3))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script", [pytest.param(GRAPH, id="graph"), pytest.param(COMPILED, id="compiled", marks=pytest.mark.thorough)]
)
def test_the_launcher_names_the_rank_that_left_others_in_a_kernel(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=TENSORFLOW_ENV)
    assert done.code != 0
    last_words = done.stderr.rpartition("horovodrun: ")[2]
    # Its end takes TensorFlow a while: the launcher may see the shutdown first, and end it.
    left = "(exited with code 0|shut down) while other ranks still waited for it"
    assert re.match(f"rank 1 on host localhost {left}", last_words), done.stderr
    assert "gradient" in last_words.partition("as the ranks saw it:")[2], done.stderr


# Rank 0's thread waits inside of what XLA has compiled, for a rank that does not call.
SHUT_DOWN_MEANWHILE = """
import os, threading, time
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow import xla
hvd.init()
thread = None
@tf.function(jit_compile=True, autograph=False)
def step(x):
    return hvd.allreduce(x, name="gradient")
step(tf.ones(3))
refused = []
def wait():
    try:
        step(tf.ones(3))
    except tf.errors.OpError as error:
        refused.append(str(error))
if hvd.rank() == 0:
    os.environ["HOROVOD_FAULT_POINT"] = "waited:pause500"  # from the next init on
for turn in range(3):
    if hvd.rank() == 0:
        thread = threading.Thread(target=wait)
        before = xla.calls()
        thread.start()
        while xla.calls() == before:
            time.sleep(0.01)
        time.sleep(0.2)  # from the call to the wait
        open(f"waits{turn}", "w").close()
    while not os.path.exists(f"waits{turn}"):
        time.sleep(0.01)
    hvd.shutdown()
    if thread is not None:
        thread.join()
    hvd.init()
print("refused", len(refused))
"""


@pytest.mark.thorough
def test_a_shutdown_leaves_memory_to_a_compiled_step_that_still_waits(tmp_path: Path) -> None:
    """The step is held where its wait has ended, until the context is freed.

    The allocator fills what is freed, so that nobody reads there what was right a moment ago.
    """
    (tmp_path / "train.py").write_text(SHUT_DOWN_MEANWHILE)
    env = {**TENSORFLOW_ENV, "MALLOC_PERTURB_": "165"}
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=env)
    assert done.code == 0, done.stderr
    assert "[0]<stdout>:refused 3" in done.stdout
    assert done.stderr.count("fault point waited: pause500") == 2


DIFFERENT_MODELS = """
import keras, numpy as np
import horovod.tensorflow.keras as hvd
hvd.init()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4 + hvd.rank()), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
"""
# Once they have agreed, and then not by shapes.
FEWER_GRADIENTS = """
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
weights = [tf.Variable(tf.ones(3)) for _ in range(3)]
for step in range(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(sum(weights))
    some = weights[: 2 if step == 3 and hvd.rank() == 1 else 3]
    hvd.DistributedGradientTape(tape).gradient(loss, some)
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (DIFFERENT_MODELS, r"rank 1: `allreduce\.\S+/list-\w+\.0`: expected shape \[3, 4\], got \[3, 5\]"),
        pytest.param(
            FEWER_GRADIENTS,
            r"rank 1: `grouped_allreduce\.\S+`: expected number of tensors 3, got 2",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["model", "list"],
)
def test_ranks_whose_models_differ_are_told_where(script: str, expected: str) -> None:
    """Their gradients meet under no name: each waits for the other's."""

    def run(script: str) -> None:
        exec(script, {"__name__": "__main__"})

    env = {**TENSORFLOW_ENV, "HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}  # how long they wait before they are told
    with World(2, env) as world:
        outcomes = world.run_each(run, script)
    for outcome in outcomes:
        said = outcome.traceback
        assert re.search(f"the ranks disagree about their gradients; {expected}", said), said
        assert "FailedPreconditionError" in said, said
        assert "hint: all ranks must build the same model" in said
