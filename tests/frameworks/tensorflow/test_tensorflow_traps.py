# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's ways of breaking collectives (native/shims/tensorflow), each as a test that fails when it does: kernels
that block, a `done` that is called too late or from the wrong place, operations that are pruned, folded, merged, or
kept in program order where they need not be."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import tensorflow_world
from support.memory import held_kib
from support.world import World, WorldPool

from horovod.core.context import statistics

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
import horovod.tensorflow as hvd
from horovod.tensorflow import xla
from horovod.tensorflow.shim import operations

pytestmark = pytest.mark.oldest_tensorflow


@pytest.fixture(scope="module")
def one_thread(worlds: WorldPool) -> World:
    """TensorFlow has a single thread to run nodes on."""
    return tensorflow_world(worlds, TF_NUM_INTEROP_THREADS="1", TF_NUM_INTRAOP_THREADS="1")


def test_direct_calls_are_neither_pruned_nor_folded_nor_merged(world: World) -> None:
    def run() -> list[int]:
        @tf.function
        def step() -> Any:
            hvd.allreduce(tf.ones(3), name="unused")
            hvd.barrier()
            same = [hvd.allreduce(tf.ones(3)), hvd.allreduce(tf.ones(3))]
            return same[0] + same[1]

        step()
        before = statistics()["tensors"]
        step()
        return [statistics()["tensors"] - before]

    assert world.run(run) == [[3], [3]]


def test_the_gradient_of_a_constant_is_reduced_in_every_step(world: World) -> None:
    def run() -> list[Any]:
        weight = tf.Variable(tf.ones(37))  # of a shape that no other list of this world has, which may be watched

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight) * float(hvd.rank() + 1)
            return hvd.DistributedGradientTape(tape).gradient(loss, weight)

        with pytest.MonkeyPatch.context() as patch:
            for check in ("HOROVOD_SAME_ROWS_CHECK", "HOROVOD_REPLICA_CHECK_STEPS"):  # these send something, too
                patch.setenv(check, "0")
            step()
        before = statistics()["tensors"]
        return [step().numpy().tolist(), step().numpy().tolist(), statistics()["tensors"] - before]

    assert world.run(run) == [[[1.5] * 37, [1.5] * 37, 2]] * 2


def test_operations_are_stateful_but_for_gradients(world: World) -> None:
    """Stateful nodes of a function run one after the other; others may be merged and folded."""

    def run() -> dict[str, bool]:
        from tensorflow.python.framework import op_def_registry

        operations()
        names = ["Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter", "Barrier", "ReduceGradient"]
        return {name: op_def_registry.get(f"Horovod{name}").is_stateful for name in names}

    for seen in world.run(run):
        assert [name for name, is_stateful in seen.items() if not is_stateful] == ["ReduceGradient"]


def test_one_thread_is_enough_and_nothing_completes_before_all_is_submitted(one_thread: World) -> None:
    """The ranks submit in opposite orders: a kernel that waited for its peers would wait for ever."""

    def run() -> list[Any]:
        order = range(40) if hvd.rank() == 0 else range(39, -1, -1)
        with tf.Graph().as_default() as graph:
            nodes = {i: hvd.allreduce(tf.fill([1000], float(i)), op=hvd.Sum, name=f"t{i}") for i in order}
            config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
            with tf.compat.v1.Session(graph=graph, config=config) as session:
                results = [session.run(nodes) for _ in range(3)][-1]
        return [float(results[i][0]) for i in range(40)]

    assert one_thread.run(run) == [[2.0 * i for i in range(40)]] * 2


def test_gradients_of_a_function_may_be_ready_in_another_order_on_every_rank(one_thread: World) -> None:
    def run() -> list[float]:
        weights = [tf.Variable(float(i + 1)) for i in range(20)]
        order = weights if hvd.rank() == 0 else weights[::-1]  # backward reaches the last one first

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                for weight in order:
                    x = tf.tanh(x) * weight / tf.stop_gradient(weight)
            return hvd.DistributedGradientTape(tape).gradient(x, weights)

        return [float(gradient) for gradient in [step(tf.constant(0.5)) for _ in range(3)][-1]]

    first, second = one_thread.run(run)
    assert first == second and all(np.isfinite(first)) and len(first) == 20


def test_the_only_thread_is_free_while_an_operation_waits(one_thread: World, tmp_path: Path) -> None:
    """The kernel has returned by then: who calls its `done` is another thread, long after."""

    def run(folder: str) -> float:
        began, is_free = Path(folder) / "began", Path(folder) / "is free"

        def mark(value: Any) -> Any:
            began.touch()
            return value

        with tf.Graph().as_default() as graph:
            waits = hvd.allreduce(tf.numpy_function(mark, [tf.ones(3)], tf.float32), op=hvd.Sum, name="waits")
            other = tf.random.uniform([4])  # no constant
            config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
            with tf.compat.v1.Session(graph=graph, config=config) as session:
                if hvd.rank() == 1:
                    while not is_free.exists():
                        pass
                    return float(session.run(waits)[0])
                results: list[Any] = []
                thread = threading.Thread(target=lambda: results.append(session.run(waits)))
                thread.start()
                while not began.exists():
                    pass
                for _ in range(10):
                    session.run(other)
                assert not results
                is_free.touch()
                thread.join()
        return float(results[0][0])

    assert one_thread.run(run, str(tmp_path)) == [2.0, 2.0]


def test_gradients_are_reduced_while_backward_still_runs(world: World) -> None:
    """By timestamps: the backward pass of the first layer waits for the reduction of the last one's gradient."""

    def run() -> list[Any]:
        first, last = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
        was_reduced = threading.Event()
        times: dict[str, float] = {}

        def stamp(name: str, value: Any) -> Any:
            times[name] = time.monotonic()
            return value

        def wait(gradient: Any) -> Any:
            stamp("backward began", gradient)
            was_reduced.wait()  # for ever, if the reduction waits for the backward pass
            return stamp("backward ended", gradient)

        def note(gradient: Any) -> Any:
            was_reduced.set()
            return stamp("reduced", gradient)

        def call(function: Any, tensor: Any) -> Any:
            result = tf.numpy_function(function, [tensor], tf.float32, stateful=False)
            result.set_shape(tensor.shape)
            return result

        @tf.custom_gradient
        def layer(x: Any) -> Any:
            return tf.identity(x), lambda gradient: call(wait, gradient)

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(first * 2.0) * last * (hvd.rank() + 1.0))
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, [first, last])
            return gradients[0], call(note, gradients[1])

        for _ in range(3):  # the first is traced
            was_reduced.clear()
            values = [value.numpy().tolist() for value in step()]
        assert times["reduced"] < times["backward ended"], times
        return values

    assert world.run(run) == [[[9.0, 12.0], [3.0, 6.0]]] * 2


@pytest.mark.slow("trains with TensorFlow")
def test_shapes_that_change_leave_nothing_behind(world: World) -> None:
    """A node prepares its request if a shape comes twice, and lets go of the one for the shape before."""

    def run() -> int:
        signature = [tf.TensorSpec([None])] * 100
        step = tf.function(lambda *given: hvd.grouped_allreduce(list(given)), signature, autograph=False)
        given = [[tf.ones([length])] * 100 for length in (1, 2)]

        def steps(count: int) -> int:
            for _ in range(count):
                for tensors in given:
                    step(*tensors)
                    step(*tensors)
            return held_kib()

        return -steps(20) + steps(100)

    assert max(world.run(run)) < 1000


def test_a_function_that_xla_cannot_compile_says_so(world: World) -> None:
    def run() -> None:
        found, xla.problem = xla.problem, lambda: "no XLA\nhint: jit_compile=False"
        try:
            with pytest.raises(NotImplementedError, match="jit_compile=False"):
                tf.function(lambda x: hvd.allreduce(x), jit_compile=True, autograph=False)(tf.ones(3))
        finally:
            xla.problem = found

    world.run(run)


# Functions that hold collectives, and are called by another one, run in the order of the program: TensorFlow would run
# calls at one time if they read different variables, and their nodes have the same names.


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", ["gradients", "operations", "nested", "one function twice", "beside its own"])
def test_functions_that_another_one_calls_do_not_meet_each_other(world: World, how: str, compiled: bool) -> None:
    def run(how: str, compiled: bool) -> list[list[float]]:
        variables = [tf.Variable(tf.ones([1000, 1000])) for _ in range(2)]

        def gradient(variable: Any, factor: Any) -> Any:
            if how == "operations":
                return hvd.allreduce(variable * factor * (hvd.rank() + 1.0))[0, 0]
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * factor * (hvd.rank() + 1.0))
            return hvd.DistributedGradientTape(tape).gradient(loss, variable)[0, 0]

        def made(variable: Any, factor: float) -> Any:
            function = tf.function(lambda: gradient(variable, factor), autograph=False, jit_compile=compiled)
            return tf.function(function, autograph=False) if how == "nested" else function

        def caller() -> Any:
            if how == "one function twice":
                return [
                    twice(variable, tf.constant(factor)) for variable, factor in zip(variables, factors, strict=True)
                ]
            return functions[0](), gradient(variables[1], 20.0) if how == "beside its own" else functions[1]()

        factors = (2.0, 20.0)
        functions = [made(variable, factor) for variable, factor in zip(variables, factors, strict=True)]
        twice = tf.function(gradient, autograph=False, jit_compile=compiled)
        step = tf.function(caller, autograph=False)
        return [list(one) for one in {tuple(float(value) for value in step()) for _ in range(40)}]

    assert world.run(run, how, compiled) == [[[3.0, 30.0]]] * 2


def test_conditions_do_not_meet_each_other(world: World) -> None:
    """As two optimizers with backward_passes_per_step are."""

    def run() -> list[list[float]]:
        import keras

        variables = [keras.Variable(tf.zeros([700, 700])) for _ in range(2)]
        optimizers = [
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2) for _ in variables
        ]
        for optimizer, variable in zip(optimizers, variables, strict=True):
            optimizer.build([variable])

        @tf.function(autograph=False)
        def step() -> None:
            for factor, optimizer, variable in zip((2.0, 20.0), optimizers, variables, strict=True):
                optimizer.apply([tf.fill([700, 700], factor * (hvd.rank() + 1.0))], [variable])

        seen = set()
        for _ in range(20):
            for variable in variables:
                variable.assign(tf.zeros([700, 700]))
            step()
            step()
            seen.add(tuple(float(variable.value[0, 0]) for variable in variables))
        return [list(one) for one in seen]

    assert world.run(run) == [[[-6.0, -60.0]]] * 2


def test_calls_and_conditions_without_collectives_are_not_put_in_order(world: World) -> None:
    def run() -> list[list[bool]]:
        variables = [tf.Variable(1.0) for _ in range(2)]

        def follows(operation: Any, kind: str) -> bool:
            def body(variable: Any) -> Any:
                return tf.cond(variable.assign_add(1.0) > 0, lambda: operation(variable), lambda: variable + 1.0)

            @tf.function(autograph=False)
            def caller() -> Any:
                return [(tf.function(body) if kind == "StatefulPartitionedCall" else body)(one) for one in variables]

            graph = caller.get_concrete_function().graph
            first, second = (node for node in graph.get_operations() if node.type == kind)
            return first in second.control_inputs

        kinds = ("StatefulPartitionedCall", "If")
        return [
            [follows(operation, kind) for kind in kinds]
            for operation in (lambda value: value.assign_add(1.0), hvd.allreduce)
        ]

    assert world.run(run) == [[[False] * 2, [True] * 2]] * 2
