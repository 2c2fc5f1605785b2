# SPDX-License-Identifier: Apache-2.0
"""Training with horovod.tensorflow: the tape, optimizers of TensorFlow 1, variables and objects."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV
from support.world import World

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"op": 1},
        {"groups": 1},
        {"groups": 2},
        {"gradient_predivide_factor": 4.0},
        {"sparse_as_dense": True},
        {"compression": "fp16"},
        {"compression": "bf16"},
    ],
    ids=str,
)
def test_a_tape_gives_the_ranks_average(world: World, options: dict[str, Any], compiled: bool) -> None:
    def run(options: dict[str, Any], compiled: bool) -> list[Any]:
        if "compression" in options:
            options = {"compression": getattr(hvd.Compression, options["compression"])}
        rank = hvd.rank()
        first, second = tf.Variable([1.0, 2.0]), tf.Variable([[1.0], [1.0], [1.0]])
        unused = tf.Variable(1.0)

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(first * first) * (rank + 1.0) + tf.reduce_sum(tf.gather(second, [rank, 2]))
            tape = hvd.DistributedGradientTape(tape, **options)
            return tape.gradient(loss, {"first": first, "rest": [second, unused]})

        gradients = (tf.function(step) if compiled else step)()
        assert gradients["rest"][1] is None
        return [
            tf.convert_to_tensor(each).numpy().ravel().tolist() for each in (gradients["first"], gradients["rest"][0])
        ]

    factor = 2 if options.get("op") == 1 else 1
    expected = [[3.0 * factor, 6.0 * factor], [0.5 * factor, 0.5 * factor, 1.0 * factor]]
    assert world.run(run, options, compiled) == [expected] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_tape_gives_can_be_differentiated(world: World, compiled: bool) -> None:
    def run(compiled: bool) -> list[float]:
        x, y = tf.Variable([1.0, 2.0]), tf.Variable([3.0])

        def penalty() -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    loss = (tf.reduce_sum(x**3) + y[0] ** 2) * (hvd.rank() + 1.0)
                gradients = hvd.DistributedGradientTape(tape, groups=[[x, y]]).gradient(loss, [x, y])
                total = tf.reduce_sum(gradients[0]) + tf.reduce_sum(gradients[1]) * (hvd.rank() + 1.0)
            return outer.gradient(total, [x, y])

        step = tf.function(penalty) if compiled else penalty
        return [float(value) for gradient in step() for value in gradient]

    # On rank r of (r + 1) * 6x and (r + 1) * 2, times the average of what each rank makes of the averages.
    assert world.run(run, compiled) == [[6.0 * s, 12.0 * s, 2.0 * s * 1.5] for s in (1.0, 2.0)]


def test_a_tapes_other_arguments(world: World) -> None:
    def run() -> None:
        rank = hvd.rank()
        x, own = tf.Variable(3.0), tf.Variable(2.0)
        with tf.GradientTape(persistent=True) as tape:
            y = x * x * (rank + 1.0) * own
        tape = hvd.DistributedGradientTape(tape)
        assert isinstance(tape, tf.GradientTape)
        tape.register_local_source(own)
        for _ in range(2):
            gradients = tape.gradient(y, [x, own], None, True)
            # own: 9 * (rank + 1), not averaged, divided by the size
            assert [float(g) for g in gradients] == [6.0 * 2 * 1.5, 9.0 * (rank + 1) / 2]
        missing = tape.gradient(y, [tf.Variable(1.0)], None, tf.UnconnectedGradients.ZERO)
        assert float(missing[0]) == 0
        local, reduced = tape.get_local_and_global_gradients(y, [x, own])
        assert [v is own for v, _ in local] == [True] and [v is x for v, _ in reduced] == [True]
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedGradientTape(tape)
        with pytest.raises(TypeError, match="got int"):
            hvd.DistributedGradientTape(3)
        with pytest.raises(ValueError, match="predivide"):
            hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
        with pytest.raises(ValueError, match="gradient_predivide_factor=0: expected a number above 0"):
            hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=0)
        for groups, text in (
            (-1, "a list of lists of variables"),
            ([x, own], "a list of lists of variables"),
            ([["x"]], "got str"),
            ([[x], [own, x]], "more than one group"),
        ):
            with pytest.raises(ValueError, match=text):
                hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
        for layers, text in ((3, "got int"), (tf.keras.layers.Dense(1), "build the model first")):
            with pytest.raises(ValueError, match=text):
                hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layers)

    world.run(run)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_a_local_variables_sparse_gradient_is_divided(world: World, compiled: bool, sparse_as_dense: bool) -> None:
    def run(compiled: bool, sparse_as_dense: bool) -> list[Any]:
        rank = hvd.rank()
        shared, own = tf.Variable(tf.ones([3, 1])), tf.Variable(tf.ones([3, 1]))

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(shared, [rank])) + tf.reduce_sum(tf.gather(own, [0, rank, rank]))
            tape = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)
            tape.register_local_source(own)
            return tape.gradient(loss, [shared, own])

        reduced, local = (tf.function(step) if compiled else step)()
        assert isinstance(local, tf.IndexedSlices)
        return [tf.convert_to_tensor(each).numpy().ravel().tolist() for each in (reduced, local)]

    by_rank = [[1.5, 0.0, 0.0], [0.5, 1.0, 0.0]]
    assert world.run(run, compiled, sparse_as_dense) == [[[0.5, 0.5, 0.0], local] for local in by_rank]


@pytest.mark.parametrize(
    ("name", "passes"),
    [("GradientDescent", 1), ("Momentum", 1), ("Adam", 1), ("Adagrad", 1), ("RMSProp", 1), ("Adam", 2)],
)
def test_graphs_of_tensorflow_1_train_as_one_process_on_the_whole_batch(world: World, name: str, passes: int) -> None:
    def run(name: str, passes: int) -> list[float]:
        import tensorflow.compat.v1 as tf

        arguments = {"Momentum": (0.05, 0.9)}.get(name, (0.05,))
        everything = np.random.default_rng(1).standard_normal((8, 4))
        target = everything @ np.array([[1.0], [2], [3], [4]])

        def train(distributed: bool) -> np.ndarray[Any, Any]:
            rows = slice(4 * hvd.rank(), 4 * hvd.rank() + 4) if distributed else slice(0, 8)
            with tf.Graph().as_default():
                start = 1.0 if not distributed else float(1 + hvd.rank())
                weight = tf.get_variable("w", initializer=tf.constant(np.full((4, 1), start)), use_resource=True)
                table = tf.get_variable("t", initializer=tf.constant(np.full((3, 1), start)), use_resource=True)
                ids = tf.constant([0, 1, 1, 2, 0, 0, 1, 2])[rows]
                x = tf.placeholder(tf.float64, [None, 4])
                y = tf.placeholder(tf.float64, [None, 1])
                loss = tf.reduce_mean(tf.square(x @ weight + tf.nn.embedding_lookup(table, ids) - y))
                step = tf.train.get_or_create_global_step()
                optimizer = getattr(tf.train, f"{name}Optimizer")(*arguments)
                hooks = []
                if distributed:
                    optimizer = hvd.DistributedOptimizer(
                        optimizer,
                        backward_passes_per_step=passes,
                        average_aggregated_gradients=True,
                        sparse_as_dense=passes > 1,
                    )
                    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
                train_op = optimizer.minimize(loss, global_step=step)
                session = tf.train.MonitoredTrainingSession(hooks=hooks)
                for _ in range(6 * (passes if distributed else 1)):
                    session.run(train_op, {x: everything[rows], y: target[rows]})
                assert session.run(step) == 6
                trained = np.concatenate([each.ravel() for each in session.run([weight, table])])
                session.close()
                return trained

        return [float(np.max(np.abs(train(True) - train(False))))]

    assert all(difference[0] < 1e-10 for difference in world.run(run, name, passes))


@pytest.mark.thorough
def test_lists_of_gradients_in_a_loop_keep_their_order(world: World) -> None:
    """Nothing that a round computes depends on the one before."""

    def run() -> list[float]:
        weights = tf.Variable(tf.ones([200, 200]))

        @tf.function
        def rounds(count: tf.Tensor) -> tf.Tensor:
            received = tf.TensorArray(tf.float32, count)
            for number in tf.range(count):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(weights * tf.cast(number, tf.float32)) * (hvd.rank() + 1.0)
                received = received.write(number, hvd.DistributedGradientTape(tape).gradient(loss, weights)[0, 0])
            return received.stack()

        return [float(value) for _ in range(5) for value in rounds(tf.constant(12))]

    assert world.run(run) == [[number * 1.5 for number in range(12)] * 5] * 2


@pytest.mark.parametrize("caller", ["a graph of TensorFlow 1", "wrap_function"])
def test_lists_of_two_functions_that_run_at_the_same_time_have_names_of_their_own(world: World, caller: str) -> None:
    def run(caller: str) -> list[float]:
        def made(factor: float) -> Any:
            @tf.function
            def gradient(x: Any) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = tf.reduce_sum(x * factor * (hvd.rank() + 1))
                return hvd.DistributedGradientTape(tape).gradient(loss, x)[0]

            return gradient

        functions = [made(factor) for factor in (2.0, 20.0)]
        if caller == "wrap_function":
            spec = [tf.TensorSpec([100_000])]
            wrapped = tf.compat.v1.wrap_function(lambda x: [function(x) for function in functions], spec)
            for _ in range(20):
                results = wrapped(tf.ones([100_000]))
        else:
            with tf.Graph().as_default() as graph:
                nodes = [function(tf.ones([100_000])) for function in functions]
                with tf.compat.v1.Session(graph=graph) as session:
                    for _ in range(20):
                        results = session.run(nodes)
        return [float(result) for result in results]

    assert world.run(run, caller) == [[3.0, 30.0]] * 2


def test_what_cannot_be_wrapped_is_told(world: World) -> None:
    def run() -> None:
        with pytest.raises(ValueError, match="cannot wrap a builtins.str"):
            hvd.DistributedOptimizer("adam")
        with pytest.raises(ValueError, match="1 or more"):
            hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), backward_passes_per_step=0)
        wrapped = hvd.DistributedOptimizer(tf.keras.optimizers.SGD())
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(wrapped)
        v1 = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer())
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(v1)

    world.run(run)


@pytest.mark.parametrize("how", ["eager", "function", "graph"])
def test_the_helper_that_sums_gradients_of_several_passes(world: World, how: str) -> None:
    """As a script of its own uses it, around an optimizer that is not wrapped."""

    def run(how: str) -> list[float]:
        def reduced(gradients: list[Any], variables: list[Any]) -> list[Any]:
            assert len(gradients) == len(variables) == 1
            return [hvd.allreduce(gradient, name="helper", op=hvd.Sum) for gradient in gradients]

        if how == "graph":
            helper: Any = hvd.LocalGradientAggregationHelper(2, reduced, False, True, hvd.rank(), "legacy")
        else:
            helper = LocalGradientAggregationHelperEager(2, reduced, False, True)
        scope: Any = tf.Graph().as_default() if how == "graph" else contextlib.nullcontext()
        with scope:
            shared, own, unused = (
                tf.compat.v1.get_variable(name, initializer=tf.constant(0.0), use_resource=True)
                if how == "graph"
                else tf.Variable(0.0)
                for name in ("shared", "own", "unused")
            )
            helper.register_local_var(own)
            updates = tf.compat.v1.train.GradientDescentOptimizer(1.0)

            def step(value: Any) -> Any:
                gradients = helper.compute_gradients([value, value, None], [shared, own, unused])
                assert gradients[2] is None
                pairs = list(zip(gradients[:2], [shared, own], strict=True))
                return helper.apply_gradients(lambda: updates.apply_gradients(pairs), updates)

            values = [1.0 + hvd.rank(), 3.0 + hvd.rank(), 10.0, 20.0]  # by pass
            if how == "graph":
                value = tf.compat.v1.placeholder(tf.float32, [])
                node = step(value)
                with tf.compat.v1.Session() as session:
                    session.run(tf.compat.v1.global_variables_initializer())
                    for index, each in enumerate(values):
                        session.run(node, {value: each})
                        if index == 2:
                            before = session.run([shared, own])
                    return [float(each) for each in [*before, *session.run([shared, own])]]
            call = tf.function(step, autograph=False) if how == "function" else step
            for index, each in enumerate(values):
                call(tf.constant(each))
                if index == 2:
                    before = [shared.numpy(), own.numpy()]
            return [float(each) for each in [*before, shared.numpy(), own.numpy()]]

    # shared: -(2 + 3), and then -(15 + 15); own: by rank -(2 + rank) / 2, and then -15 / 2.
    expected = [[-5.0, -(2.0 + rank) / 2, -35.0, -(2.0 + rank) / 2 - 7.5] for rank in range(2)]
    assert world.run(run, how) == expected


@pytest.mark.thorough
def test_the_benchmark_of_a_step_runs(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    script = Path(__file__).resolve().parents[3] / "benchmarks" / "tensorflow_step.py"
    result = subprocess.run(
        [sys.executable, str(script), "--rounds", "1", "--calls", "1", "--json", str(record)],
        env={**os.environ, **TENSORFLOW_ENV, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(record.read_text())["rows"]
    assert row["tensors"] == 160 and set(row["seconds"]) == {"plain", "horovod", "py_function"}
