# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow says if the ranks' options differ, if they train on the same rows, and where a gradient is not
finite: with the tape and with optimizers of tf.compat.v1.train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV
from support.step_checks import CHANGES_AT, STEPS, batch, heard, rate
from support.world import World, WorldPool

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
keras = pytest.importorskip("keras", reason="not run: keras is not installed")

import horovod.tensorflow as hvd

v1: Any = tf.compat.v1


def taped(same: bool, how: str, odd: int = -1) -> None:
    """odd: the step in which rank 1 has a gradient that is not finite."""
    width = len(how)  # same rows are told once for each list of shapes
    weights = [tf.Variable(tf.ones((4, width)), name="weights"), tf.Variable(tf.zeros(width), name="bias")]
    optimizer = keras.optimizers.SGD(0.0625)

    def step(inputs: Any, targets: Any, factor: Any) -> None:
        with tf.GradientTape() as tape:
            errors = inputs @ weights[0] + weights[1] - targets
            loss = tf.reduce_mean(errors**2) + tf.reduce_sum(weights[1]) * factor
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    if how != "eager":
        step = tf.function(step, jit_compile=how == "xla")
    for number in range(STEPS):
        optimizer.learning_rate = rate(number, hvd.rank())
        factor = tf.constant(np.inf if number == odd and hvd.rank() == 1 else 0.0, tf.float32)
        step(*map(tf.constant, batch(number, hvd.rank(), same)), factor)


def old_eager(same: bool) -> None:
    weights = tf.Variable(tf.ones((4, 1)))
    now = [0.0625]
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(lambda: now[0]))
    for number in range(STEPS):
        now[0] = rate(number, hvd.rank())
        inputs, targets = batch(number, hvd.rank(), same)
        optimizer.minimize(lambda given=(inputs, targets): tf.reduce_mean((given[0] @ weights - given[1]) ** 2))


def old_graph(same: bool, is_fed: bool) -> None:
    """is_fed: the learning rate is a placeholder, which is not compared; else a variable."""
    with tf.Graph().as_default():
        inputs, targets = v1.placeholder(tf.float32, [8, 4]), v1.placeholder(tf.float32, [8, 1])
        given = v1.placeholder(tf.float32, [])
        variable = v1.get_variable("rate", initializer=tf.constant(0.0625), trainable=False, use_resource=True)
        weights = v1.get_variable("weights", initializer=tf.ones((4, 1 + is_fed)), use_resource=True)
        used = given * 1.0 if is_fed else variable
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(used))
        pairs = optimizer.compute_gradients(tf.reduce_mean((inputs @ weights - targets) ** 2), [weights])
        update, change = optimizer.apply_gradients(pairs), variable.assign(given)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for number in range(STEPS):
                feed = dict(zip((inputs, targets), batch(number, hvd.rank(), same), strict=True))
                session.run(change, {given: rate(number, hvd.rank())})
                session.run(update, {**feed, given: rate(number, hvd.rank())} if is_fed else feed)
            session.run(pairs[0][0], feed)  # needs no learning rate


WAYS: dict[str, Callable[[bool], None]] = {
    "eager": lambda same: taped(same, "eager"),
    "function": lambda same: taped(same, "function"),
    "xla": lambda same: taped(same, "xla"),
    "old eager": old_eager,
    "old graph": lambda same: old_graph(same, is_fed=False),
    "old graph, fed": lambda same: old_graph(same, is_fed=True),
}


@pytest.mark.parametrize(
    "way", [way if way == "function" else pytest.param(way, marks=pytest.mark.check) for way in WAYS]
)
def test_options_and_rows_are_compared(world: World, way: str) -> None:
    def run() -> list[list[str]]:
        texts = []
        for same in (True, False):
            hvd.shutdown()  # counts anew
            hvd.init()
            texts.append(sorted(heard(lambda same=same: WAYS[way](same))))
        return texts

    first, second = world.run(run)
    rates = "the ranks differ in `learning_rate`: 0.0625 on rank 0, 0.03125 on rank 1"
    told = [rates] if way in ("old eager", "old graph") else []  # a tape does not know the optimizer
    assert [text.split(", ", 2)[-1] for text in first[0]] == [*told, "same rows"]
    assert [text.split(", ", 2)[-1] for text in first[1]] == told
    assert all(text.split(",")[0] == str(CHANGES_AT + 1) for text in first[1])
    assert second == [[], []]


@pytest.mark.slow("starts ranks with TensorFlow")
def test_a_gradient_that_is_not_finite_is_named(worlds: WorldPool) -> None:
    def run(how: str) -> list[str]:
        hvd.shutdown()
        hvd.init()
        return [text for text in heard(lambda: taped(False, how, odd=9)) if "finite" in text]

    world = worlds(2, {**TENSORFLOW_ENV, "HOROVOD_FINITE_CHECK": "warn"})
    for how in ("eager", "function", "xla"):
        first, second = world.run(run, how)
        assert len(first) == 1 and first[0].startswith(
            "10, DistributedGradientTape, on rank 1 the gradient of `1: bias"
        )
        assert second == []
