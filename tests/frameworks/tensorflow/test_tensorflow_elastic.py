# SPDX-License-Identifier: Apache-2.0
"""TensorFlowState in loops and in graphs of TensorFlow 1, in worlds of real ranks that end and begin again."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from support.elastic.elastic_session import check_that_training_survives, trained
from support.frameworks import TENSORFLOW_ENV
from support.world import World, WorldPool

from horovod.core import context as contexts
from horovod.elastic.worker.decorator import run as elastic_run

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow.elastic_state import TensorFlowState


@pytest.fixture(scope="module")
def two(worlds: WorldPool) -> World:
    return worlds(2, TENSORFLOW_ENV)


def test_nothing_is_broadcast_before_a_sync_which_sends_live_values_of_any_dtype(two: World) -> None:
    def run() -> Any:
        hvd.init()
        number = hvd.rank() + 1
        dtypes = ["float32", "bfloat16", "int64", "bool", "uint16", "complex64"]
        variables = [tf.Variable(tf.cast(tf.fill((2, 3), number), dtype)) for dtype in dtypes]
        variables += [tf.Variable(number), tf.Variable([f"rank {hvd.rank()}"]), tf.Variable(tf.zeros((0, 3)))]
        state = TensorFlowState(variables, epoch=hvd.rank())
        if hvd.rank() == 1:
            variables[0].assign(variables[0] + 5.0)  # alone: nobody waits
        state.sync()
        synced = [variable.numpy().tolist() for variable in variables]
        variables[0].assign(variables[0] * 2.0)
        state.epoch = 7
        state.restore()
        assert [variable.numpy().tolist() for variable in state.variables] == synced
        return str(synced), state.epoch

    first, second = two.run(run)
    assert first == second and "b'rank 0'" in first[0] and first[1] == 0


def test_variables_of_a_graph_are_saved_restored_and_synced_in_its_session(two: World) -> None:
    def run() -> Any:
        import tensorflow.compat.v1 as tf

        hvd.init()
        with tf.Graph().as_default() as graph, tf.Session() as session:
            weight = tf.get_variable("weight", initializer=tf.fill((2,), float(hvd.rank() + 1)))
            count = tf.get_variable("count", initializer=np.int64(hvd.rank()), use_resource=False)
            more = tf.group(weight.assign(weight * 3.0), count.assign_add(1))
            session.run(tf.global_variables_initializer())
            graph.finalize()
            state = TensorFlowState(batch=hvd.rank())
            state.sync()
            seen = [session.run([weight, count])]
            session.run(more)
            state.commit()
            seen.append(session.run([weight, count]))
            session.run(more)
            state.restore()
            seen.append(session.run([weight, count]))
            return [[value.tolist() for value in pair] for pair in seen], state.batch

    outcomes = two.run(run)
    assert outcomes == [([[[1.0, 1.0], 0], [[3.0, 3.0], 1], [[3.0, 3.0], 1]], 0)] * 2


def test_variables_of_a_graph_that_were_made_from_one_tensor_are_restored_apart(two: World) -> None:
    def run() -> list[float]:
        import tensorflow.compat.v1 as tf

        hvd.init()
        with tf.Graph().as_default(), tf.Session() as session:
            start = tf.constant(1.0)
            variables = [tf.get_variable(f"v{i}", initializer=start, use_resource=i % 2 == 0) for i in range(3)]
            session.run(tf.global_variables_initializer())
            session.run([variable.assign_add(10.0 * i) for i, variable in enumerate(variables)])
            state = TensorFlowState(variables)
            state.commit()
            session.run([variable.assign(0.0) for variable in variables])
            state.restore()
            return [float(value) for value in session.run(variables)]

    assert two.run(run) == [[1.0, 11.0, 21.0]] * 2


@pytest.mark.oldest_tensorflow
@pytest.mark.parametrize("way", ["at once", "function", "compiled"])
def test_training_survives_losses_and_changes_and_ends_as_if_nothing_had_been(two: World, way: str) -> None:
    """A rank leaves while the other one waits in a kernel, whose error is TensorFlow's own."""

    def run(way: str, events: dict[int, str]) -> Any:
        hvd.init()
        data = tf.constant(np.random.default_rng(hvd.rank()).standard_normal((10, 4)), tf.float32)
        weight = tf.Variable(tf.fill((4,), float(hvd.rank())))
        velocity = tf.Variable(tf.zeros(4))
        state = TensorFlowState([weight, velocity], batch=0)

        def step(row: Any) -> None:
            with tf.GradientTape() as tape:
                loss = (tf.reduce_sum(weight * row) - 1.0) ** 2
            (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
            velocity.assign(velocity * 0.9 + gradient)
            weight.assign_sub(0.01 * velocity)

        if way != "at once":
            step = tf.function(step, jit_compile=way == "compiled")

        def numbers() -> Any:
            return [value.numpy().tolist() for value in (weight, velocity)]

        return trained(state, lambda batch: step(data[batch]), numbers, events)

    numbers = check_that_training_survives(two, run, way)
    assert numbers == [numbers[0]] * 4


def test_an_error_of_the_script_stays_what_it_is(two: World) -> None:
    def run() -> str:
        hvd.init()

        @elastic_run
        def train(state: Any) -> None:
            raise tf.errors.UnknownError(None, None, "of the script's own, HorovodAllreduce or not")

        try:
            train(TensorFlowState([]))
        except tf.errors.UnknownError as error:
            return str(error.message)
        return ""

    assert two.run(run) == ["of the script's own, HorovodAllreduce or not"] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_what_one_worker_has_traced_is_right_when_there_are_more(worlds: WorldPool, compiled: bool) -> None:
    def run(compiled: bool) -> list[Any]:
        variables = [tf.Variable(1.0), tf.Variable(1.0), tf.Variable([1.0, 1.0])]
        layer = hvd.SyncBatchNormalization(momentum=0.0)
        layer.build((2, 1))
        helper = hvd.LocalGradientAggregationHelper(1, lambda gradients, _: gradients, False, False, 0, None)
        helper.register_local_var(variables[1])

        @tf.function(jit_compile=compiled, autograph=False)
        def step(number: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variables[0] * number + variables[1] * 6.0 + tf.gather(variables[2], [0]))
            tape = hvd.DistributedGradientTape(tape)
            for variable in variables[1:]:
                tape.register_local_source(variable)
            gradients = tape.gradient(loss, variables)
            layer(tf.reshape(number, [1, 1]), training=True)
            return (
                *gradients[:2],
                tf.convert_to_tensor(gradients[2])[0],
                *helper.compute_gradients([number] * 2, variables[:2]),
            )

        def run_in_world(environment: dict[str, str]) -> list[float]:
            os.environ.update(environment)
            hvd.init()
            number = tf.constant(2.0 + 2.0 * (hvd.rank() if environment else 0))
            results = [*step(number), layer.moving_mean[0]]
            hvd.shutdown()
            return [float(result) for result in results]

        hvd.shutdown()
        mine = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HOROVOD_")}
        was, contexts._grows = contexts._grows, True
        try:
            results = [run_in_world({})]
            traced = step.experimental_get_tracing_count()
            return [*results, run_in_world(mine), step.experimental_get_tracing_count() == traced]
        finally:
            contexts._grows = was
            hvd.init()

    alone = [2.0, 6.0, 1.0, 2.0, 2.0, 2.0]
    together = [[3.0, 3.0, 0.5, total, total / 2, 3.0] for total in (2.0 + 2.0, 2.0 + 4.0)]
    assert worlds(2, TENSORFLOW_ENV).run(run, compiled) == [[alone, one, True] for one in together]
