# SPDX-License-Identifier: Apache-2.0
"""Functions that hold collectives, and are called by another one, run in the order of the program: TensorFlow would
run calls at one time if they read different variables, and their nodes have the same names."""

from __future__ import annotations

from typing import Any

import pytest
from support.frameworks import tensorflow_world
from support.world import World, WorldPool

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
pytestmark = pytest.mark.oldest_tensorflow


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return tensorflow_world(worlds)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", ["gradients", "operations", "nested", "one function twice", "beside its own"])
def test_functions_that_another_one_calls_do_not_meet_each_other(world: World, how: str, compiled: bool) -> None:
    def run(how: str, compiled: bool) -> list[list[float]]:
        import tensorflow as tf

        import horovod.tensorflow as hvd

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
        import tensorflow as tf

        import horovod.tensorflow as hvd

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
        import tensorflow as tf

        import horovod.tensorflow as hvd

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
