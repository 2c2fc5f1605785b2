# SPDX-License-Identifier: Apache-2.0
"""A distributed tape is used as the tape that it is made of: while it records, again, and for jacobians."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import pytest
from support.patience import be_late
from support.world import World

from horovod.core.telemetry.status import lost

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow import gradient_list


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_tape_may_be_wrapped_and_used_while_it_records(world: World, persistent: bool, compiled: bool) -> None:
    def run(persistent: bool, compiled: bool) -> list[list[float]]:
        x = tf.Variable([1.0, 2.0])

        def used_after() -> Any:
            with tf.GradientTape(persistent=persistent) as tape:
                loss = tf.reduce_sum(x * x) * (hvd.rank() + 1.0)
                tape = hvd.DistributedGradientTape(tape)
            return tape.gradient(loss, x)

        def used_within() -> Any:
            with tf.GradientTape(persistent=persistent) as tape:
                loss = tf.reduce_sum(x * x) * (hvd.rank() + 1.0)
                return hvd.DistributedGradientTape(tape).gradient(loss, x)

        def wrapped_before() -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape(persistent=persistent)) as tape:
                loss = tf.reduce_sum(x * x) * (hvd.rank() + 1.0)
                return tape.gradient(loss, x)

        ways = (used_after, used_within, wrapped_before)
        return [(tf.function(way) if compiled else way)().numpy().tolist() for way in ways]

    assert world.run(run, persistent, compiled) == [[[3.0, 6.0]] * 3] * 2


def test_a_tape_that_is_not_persistent_is_used_once(world: World) -> None:
    def run() -> None:
        x = tf.Variable(1.0)
        with tf.GradientTape() as plain:
            loss = x * x
        hvd.DistributedGradientTape(plain).gradient(loss, x)
        with pytest.raises(RuntimeError, match="non-persistent"):
            plain.gradient(loss, x)

    world.run(run)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("vectorized", [False, True])
def test_jacobians_are_this_ranks_own(world: World, vectorized: bool, compiled: bool) -> None:
    def run(vectorized: bool, compiled: bool) -> list[Any]:
        x = tf.Variable([[1.0, 2.0]])

        def step() -> Any:
            with tf.GradientTape(persistent=True) as tape:
                y = x * x * (hvd.rank() + 1.0)
            tape = hvd.DistributedGradientTape(tape)
            options = {"experimental_use_pfor": vectorized}
            whole, rows = tape.jacobian(y, x, **options), tape.batch_jacobian(y, x, **options)
            return tf.linalg.diag_part(whole[0, :, 0]), tf.linalg.diag_part(rows[0]), tape.gradient(y, x)[0]

        return [value.numpy().tolist() for value in (tf.function(step) if compiled else step)()]

    expected = [[[2.0 * (rank + 1), 4.0 * (rank + 1)]] * 2 + [[3.0, 6.0]] for rank in range(2)]
    assert world.run(run, vectorized, compiled) == expected


@pytest.mark.parametrize("compiled", [False, True])
def test_complex_gradients_are_averaged_and_operations_on_complex_tensors_have_gradients(
    world: World, compiled: bool
) -> None:
    def run(compiled: bool) -> list[list[complex]]:
        rank = hvd.rank()
        x = tf.Variable([1.0 + 2.0j], dtype=tf.complex64)

        def averaged() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.abs(x) ** 2) * (rank + 1)
            return hvd.DistributedGradientTape(tape).gradient(loss, x)

        def through(operation: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.abs(operation(tf.tile(x, [2]) * (rank + 1))) ** 2)
            return tape.gradient(loss, x)

        calls = [
            averaged,
            lambda: through(lambda y: hvd.allreduce(y, op=hvd.Sum)),
            lambda: through(hvd.allgather),
            lambda: through(lambda y: hvd.alltoall(y, [1, 1])[0]),
            lambda: through(lambda y: hvd.broadcast(y, 1)),
            lambda: hvd.reducescatter(tf.tile(x, [2]) * (rank + 1), op=hvd.Sum),
        ]
        with pytest.raises(NotImplementedError, match="complex tensors: expected op Average or Sum, got op=Max"):
            hvd.allreduce(x, op=hvd.Max)
        return [(tf.function(call, autograph=False) if compiled else call)().numpy().tolist() for call in calls]

    x = 1 + 2j
    for rank, seen in enumerate(world.run(run, compiled)):
        # 2x for each number, and what the sum, or the number of ranks that have it, multiplies it with.
        factors = [3.0, 24.0 * (rank + 1), 4.0 * (rank + 1) ** 2, 4.0 * (rank + 1) ** 2, 16.0 * rank, 3.0]
        assert seen == [[pytest.approx(factor * x)] for factor in factors]


def test_a_late_rank_costs_what_a_function_waits_though_the_script_waits_too(world: World) -> None:
    def run() -> tuple[bool, float]:
        step = tf.function(lambda x: hvd.allreduce(x, name="late") * 0.5)
        x = step(tf.ones(100))
        pids = hvd.allgather_object(os.getpid())
        before = lost(hvd.statistics()["arrivals"])
        for number in range(20):
            if hvd.rank() == 1:
                be_late(0.02, pids)
            x = step(x)
            hvd.allgather_object(number, name="also")
        after = hvd.statistics()["arrivals"]
        return after["framework_waits"], lost(after) - before

    (is_waited_for, waits_s), (_, late_s), *_ = world.run(run)
    assert is_waited_for and waits_s > max(0.2, late_s)


# Reductions inside of functions that XLA compiles have the gradients that they have elsewhere


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
