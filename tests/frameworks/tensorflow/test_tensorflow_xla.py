# SPDX-License-Identifier: Apache-2.0
"""Reductions inside of functions that XLA compiles have the gradients that they have elsewhere."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from support.world import World

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow import gradient_list


@pytest.mark.parametrize("tape", ["inside", "around", "around a function"])
def test_an_allreduce_that_xla_compiles_can_be_differentiated(world: World, tape: str) -> None:
    """Of several reductions, which XLA runs in one order: each gradient is that of its own reduction alone."""

    def run(tape: str) -> list[Any]:
        x, unused = tf.Variable([1.0, 2.0]), tf.Variable([3.0])

        def squares() -> Any:
            hvd.allreduce(unused, name="before")
            whole = hvd.allreduce(x * (hvd.rank() + 1.0), op=hvd.Sum, postscale_factor=2.0, name="x")
            parts = hvd.grouped_allreduce([whole, x], name="parts")
            return tf.reduce_sum(parts[0] ** 2) + tf.reduce_sum(parts[1] ** 3)

        def gradients(function: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = function()
            return tape.gradient(loss, [x, unused])

        def result(compiled: bool) -> list[list[float]]:
            if tape == "inside":
                to_x, to_unused = tf.function(lambda: gradients(squares), jit_compile=compiled, autograph=False)()
            else:
                inner = tf.function(squares, jit_compile=compiled, autograph=False)
                outer = tf.function(gradients, autograph=False) if tape == "around a function" else gradients
                to_x, to_unused = outer(inner)
            assert to_unused is None
            return list(to_x.numpy().tolist())

        return [result(False), result(True)]

    # whole = 6x on both ranks; of it (6x)^2 comes 2 * 6x, summed, doubled, and times (rank + 1).
    expected = [[12.0 * x * 4 * (rank + 1) + 3 * x**2 for x in (1.0, 2.0)] for rank in range(2)]
    assert world.run(run, tape) == [[one, one] for one in expected]


def test_a_reduction_that_xla_compiles_has_second_derivatives(world: World) -> None:
    def run() -> list[float]:
        x = tf.Variable([1.0, 2.0])

        @tf.function(jit_compile=True)
        def penalty() -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(x**3) * (hvd.rank() + 1.0)
                total = tf.reduce_sum(hvd.DistributedGradientTape(tape).gradient(loss, x) ** 2)
            return outer.gradient(total, x)

        return list(penalty().numpy().tolist())

    # The average is 4.5 x^2; of its square comes 9 x^2, whose average goes through 6x * (rank + 1).
    assert world.run(run) == [[9.0 * x**2 * 6 * x * (rank + 1) for x in (1.0, 2.0)] for rank in range(2)]


def test_layers_of_synchronized_batch_normalization_and_variables_between_them_are_compiled(world: World) -> None:
    def run() -> float:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Dense(3), hvd.SyncBatchNormalization(), layers.Dense(3)])
        model.add(hvd.SyncBatchNormalization())
        inputs = tf.random.stateless_normal([4, 3], [hvd.rank(), 1])
        model(inputs)

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(inputs, training=True) ** 3)
            return hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)

        pairs = zip(tf.function(step)(), tf.function(step, jit_compile=True)(), strict=True)
        return max(float(tf.reduce_max(tf.abs(one - other))) for one, other in pairs)

    assert max(world.run(run)) < 1e-4


def test_sparse_gradients_become_dense_in_compiled_steps_and_only_a_script_that_did_not_ask_is_warned(
    world: World,
) -> None:
    def run() -> tuple[list[Any], list[list[str]]]:
        table = tf.Variable(tf.ones([4, 2]))

        def step(sparse_as_dense: bool) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 3])) * 2.0
            return hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense).gradient(loss, table)

        results, warnings = [], []
        for sparse_as_dense in (True, False):
            told: list[str] = []
            with patch.object(gradient_list, "warn", told.append):
                results.append(tf.function(step, jit_compile=True)(sparse_as_dense).numpy().tolist())
            warnings.append(told)
        return results, warnings

    dense = [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
    (results, (asked, not_asked)), (others, silent) = world.run(run)
    assert results == others == [dense, dense]
    assert asked == [] and silent == [[], []]
    assert len(not_asked) == 1 and "jit_compile=False keeps them sparse" in not_asked[0]
