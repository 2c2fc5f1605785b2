# SPDX-License-Identifier: Apache-2.0
"""What a rank learns inside TensorFlow's kernels, where Python does not hear it, reaches the launcher all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.frameworks import TENSORFLOW_ENV
from support.jobs import run_job

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

# Ranks 0 and 2 end with an error, rank 1, the cause, without one.
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


@pytest.mark.parametrize("script", [GRAPH, COMPILED], ids=["graph", "compiled"])
def test_the_launcher_names_the_rank_that_left_others_in_a_kernel(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = run_job(tmp_path, "-np", "3", [sys.executable, "train.py"], env=TENSORFLOW_ENV)
    assert done.code != 0
    last_words = done.stderr.rpartition("horovodrun: ")[2]
    assert last_words.startswith("rank 1 on host localhost exited with code 0 while other ranks still waited for it")
    assert "gradient" in last_words.partition("as the ranks saw it:")[2], done.stderr
