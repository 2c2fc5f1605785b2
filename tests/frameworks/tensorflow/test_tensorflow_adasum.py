# SPDX-License-Identifier: Apache-2.0
"""op=Adasum with TensorFlow and Keras: the tape combines gradients, optimizers combine how far each rank's own step
moved the variables. Expected values by NumPy from what each rank would do alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.keras_worlds import library, started
from support.reference import adasum
from support.world import WorldPool

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as keras_hvd


def combined(moves: list[Any]) -> Any:
    return adasum([np.asarray(move, np.float32) for move in moves])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tape_combines_gradients(worlds: WorldPool, compiled: bool) -> None:
    def run(compiled: bool) -> list[Any]:
        x = tf.Variable([1.0, 2.0, 3.0])
        weights = [[1.0, 0.5, -1.0], [0.5, 2.0, 1.0]][hvd.rank()]

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * x * weights)
            return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, [x])[0]

        return list(((tf.function(step) if compiled else step)()).numpy())

    gradients = [2 * np.array([1.0, 2.0, 3.0]) * weights for weights in ([1.0, 0.5, -1.0], [0.5, 2.0, 1.0])]
    for seen in started(worlds).run(run, compiled):
        np.testing.assert_allclose(seen, combined(gradients), rtol=1e-6)


START = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
# By rank, pass and step: gradients of opposite, equal and unlike directions.
GRADIENTS = np.random.default_rng(4).standard_normal((2, 2, 3, 4)).astype(np.float32)


def momentum_moves(passes: int) -> np.ndarray[Any, Any]:
    """What SGD with momentum 0.9 and a rate of 0.1 makes of START on both ranks, velocities being each rank's own."""
    position, velocity = START.copy(), np.zeros((2, 4), np.float32)
    for step in range(3):
        velocity = 0.9 * velocity - 0.1 * GRADIENTS[:, :passes, step].sum(1)
        position = position + combined(list(velocity))
    return position


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("resource", [False, True])
def test_optimizers_of_tensorflow_1_combine_their_steps(worlds: WorldPool, passes: int, resource: bool) -> None:
    def run(passes: int, resource: bool) -> list[Any]:
        import tensorflow.compat.v1 as tf

        if not resource:
            tf.disable_control_flow_v2()  # as disable_v2_behavior() does, which there is no way back from
        with tf.Graph().as_default():
            weight = tf.get_variable("w", initializer=tf.constant(START), use_resource=resource)
            own = tf.get_variable("own", initializer=tf.constant([1.0]), use_resource=resource)
            factors = tf.placeholder(tf.float32, [4])
            loss = tf.reduce_sum(weight * factors) + (hvd.rank() + 1.0) * tf.reduce_sum(own)
            optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
            optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, backward_passes_per_step=passes)
            optimizer.register_local_var(own)
            step = tf.train.get_or_create_global_step()
            train_op = optimizer.minimize(loss, global_step=step)
            with tf.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
                for done in range(3):
                    for each in range(passes):
                        session.run(train_op, {factors: GRADIENTS[hvd.rank(), each, done]})
                assert session.run(step) == 3
                trained = [session.run(weight).tolist(), float(session.run(own)[0])]
        tf.enable_control_flow_v2()
        return trained

    expected = momentum_moves(passes)
    velocity, own = 0.0, 1.0
    for _ in range(3):
        velocity = 0.9 * velocity - 0.1 * passes
        own += velocity
    for rank, (weight, local) in enumerate(started(worlds).run(run, passes, resource)):
        np.testing.assert_allclose(weight, expected, rtol=1e-5)
        assert local == pytest.approx(1 + (own - 1) * (rank + 1), rel=1e-5), "a local variable takes its own step"


@pytest.mark.parametrize("how", ["eager", "function"])
def test_optimizers_of_tensorflow_1_outside_of_a_graph(worlds: WorldPool, how: str) -> None:
    def run(how: str) -> list[float]:
        weight = tf.Variable(START)
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9), op=hvd.Adasum)

        def step(gradient: Any) -> None:
            optimizer.apply_gradients([(gradient, weight)])

        call = tf.function(step, autograph=False) if how == "function" else step
        for done in range(3):
            call(tf.constant(GRADIENTS[hvd.rank(), 0, done]))
        return list(weight.numpy())

    for seen in started(worlds).run(run, how):
        np.testing.assert_allclose(seen, momentum_moves(1), rtol=1e-5)


def steps_of_keras(passes: int, kind: str) -> list[float]:
    """Three steps of a wrapped optimizer by a model's own training loop, whose gradients are GRADIENTS."""
    keras, optimizers, _ = library(kind)
    optimizer = optimizers.SGD(0.1, momentum=0.9)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([START[:, None]])
    optimizer = keras_hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, backward_passes_per_step=passes)
    model.compile(optimizer=optimizer, loss=lambda _, predicted: predicted[:, 0])  # the inputs are the gradients
    inputs = GRADIENTS[hvd.rank(), :passes].transpose(1, 0, 2).reshape(-1, 4)
    model.fit(inputs, np.zeros(len(inputs)), batch_size=1, shuffle=False, verbose=0)
    return [float(value) for value in model.get_weights()[0].ravel()]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("kind", ["", "new", "legacy"])
def test_keras_optimizers_combine_their_steps(worlds: WorldPool, kind: str, passes: int) -> None:
    world = started(worlds, legacy=kind != "")
    for seen in world.run(steps_of_keras, passes, kind):
        np.testing.assert_allclose(seen, momentum_moves(passes), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_optimizers_on_other_backends_combine_their_steps(worlds: WorldPool, backend: str) -> None:
    for seen in started(worlds, backend=backend).run(steps_of_keras, 1, ""):
        np.testing.assert_allclose(seen, momentum_moves(1), rtol=1e-5)


def test_what_makes_no_sense_is_refused(worlds: WorldPool) -> None:
    def run() -> None:
        import keras

        optimizers: list[Any] = [tf.compat.v1.train.GradientDescentOptimizer(0.1), keras.optimizers.SGD(0.1)]
        for optimizer in optimizers:
            with pytest.raises(NotImplementedError, match=r"Adasum needs 2, 4, 8, \.\.\. ranks, got 3"):
                hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
        with pytest.raises(ValueError, match="op=Average only"):
            hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, gradient_predivide_factor=2.0)
        with pytest.raises(ValueError, match="use_ema"):
            keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, use_ema=True), op=hvd.Adasum)

    started(worlds, size=3).run(run)
