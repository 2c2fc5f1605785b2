# SPDX-License-Identifier: Apache-2.0
"""What scripts for TensorFlow get wrong in silence: gradients that nothing reduces, variables that differ."""

from __future__ import annotations

from typing import Any

import pytest
from support.frameworks import tensorflow_world
from support.world import World, WorldPool

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return tensorflow_world(worlds)


def test_keras_variables_that_differ_are_named_before_the_second_eager_step(world: World) -> None:
    def run() -> list[str]:
        import warnings

        import keras

        import horovod.tensorflow as hvd

        weight, own = keras.Variable([float(hvd.rank())], name="weight"), keras.Variable([float(hvd.rank())])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), name="differing")
        optimizer.register_local_var(own)
        texts = []
        for number in range(3):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.apply([weight.value * 0, own.value * 0], [weight, own])
            texts += [f"{number}: {one.message}".splitlines()[0] for one in caught]
        return texts

    (text,), none = world.run(run)
    assert none == []
    assert text == "1: before step 2 of differing, the ranks differ in `variable 0: weight`; rank 0 is unlike rank 1"


def test_variables_of_strings_are_broadcast_or_named(world: World) -> None:
    def run() -> list[Any]:
        import tensorflow as tf

        import horovod.tensorflow as hvd

        numbers = [tf.Variable(float(hvd.rank())) for _ in range(3)]
        text = tf.Variable([f"of rank {hvd.rank()}"], name="vocabulary")
        hvd.broadcast_variables([*numbers[:2], text, numbers[2]], root_rank=1)
        with tf.Graph().as_default():
            variables = [tf.compat.v1.get_variable("w", [2]), tf.compat.v1.get_variable("words", initializer=["a"])]
            with pytest.raises(ValueError, match=r"variable words:0 has dtype string: .*\nhint: broadcast_object_fn"):
                hvd.broadcast_global_variables(0)
            assert variables
        return [float(sum(numbers)), text.numpy().tolist()]

    assert world.run(run) == [[3.0, [b"of rank 1"]]] * 2


def test_gradients_are_reduced_once_whatever_computed_them(world: World) -> None:
    def run() -> dict[str, Any]:
        import warnings

        import keras
        import tensorflow as tf

        import horovod.tensorflow as hvd

        v1 = tf.compat.v1

        def in_graph(how: str, op: int, passes: int) -> float:
            with tf.Graph().as_default():
                weight = v1.get_variable("w", initializer=tf.zeros([2]), use_resource=True)
                loss = tf.reduce_sum(weight * (hvd.rank() + 1.0))
                plain = v1.train.GradientDescentOptimizer(1.0)
                optimizer = hvd.DistributedOptimizer(
                    plain, op=op, backward_passes_per_step=passes, average_aggregated_gradients=True
                )
                if how == "compute_gradients":
                    pairs = optimizer.compute_gradients(loss, [weight])
                elif how == "tape":
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(weight * (hvd.rank() + 1.0))
                    pairs = [(hvd.DistributedGradientTape(tape, op=op).gradient(loss, weight), weight)]
                else:
                    pairs = [(tf.gradients(loss, [weight])[0], weight)]
                clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 100.0)
                step = optimizer.apply_gradients([(clipped[0], weight)])
                with v1.Session() as session:
                    session.run(v1.global_variables_initializer())
                    for _ in range(passes):
                        session.run(step)
                    return float(session.run(weight)[0])

        results = {
            f"{how} {op} {passes}": in_graph(how, op, passes)
            for op in (hvd.Average, hvd.Sum)
            for how, passes in (("gradients", 1), ("gradients", 2), ("compute_gradients", 1), ("tape", 1))
        }

        def eagerly(compute: bool) -> float:
            weight = tf.Variable([0.0])
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum)
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(weight * (hvd.rank() + 1.0))
                pairs = [(tape.gradient(loss, weight), weight)]
                if compute:
                    pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(weight * (hvd.rank() + 1.0)), [weight])
                optimizer.apply_gradients([(tf.clip_by_norm(gradient, 100.0), each) for gradient, each in pairs])
            return float(weight[0])

        results["eagerly"], results["eagerly computed"] = eagerly(False), eagerly(True)

        weight = keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value * (hvd.rank() + 1.0))
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, weight.value)
        other = keras.Variable([0.0])  # of another model with the same shapes, which the tape has nothing to do with
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)).apply_gradients([(gradient, other)])
            optimizer.apply_gradients([(gradient, weight)])
            optimizer.apply_gradients([(gradient, weight)])
        results["said"] = [str(each.message) for each in caught]
        return results

    said: list[str] = []
    for result in world.run(run):
        said += result.pop("said")
        for how, value in result.items():
            average, total = -1.5, -3.0
            expected = 2 * total if how.startswith("eagerly") else average if " 0 " in how else total
            assert value == expected, (how, value)
    (text,) = said
    assert "seems to have reduced already" in text and "hint: use one of the two" in text, "one rank says it"


def test_variables_that_are_broadcast_and_a_loss_that_is_averaged_are_told_apart_from_training(world: World) -> None:
    def run() -> list[str]:
        import contextlib
        import io

        import tensorflow as tf

        import horovod.tensorflow as hvd

        weights = [tf.Variable(tf.ones([4, 3])), tf.Variable(0.0)]
        table = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]), tf.constant([4, 3]))

        def sparse() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(weights[0], [1]))
            hvd.DistributedGradientTape(tape).gradient(loss, weights[0])

        said = []
        hvd.shutdown()
        for reduce in (
            lambda: hvd.allreduce(tf.constant(1.0)),
            lambda: hvd.grouped_allreduce([tf.ones([4, 3]), tf.constant(0.0)]),
            lambda: hvd.allreduce(table),
            sparse,
            lambda: tf.function(lambda: hvd.allreduce(tf.ones([4, 3])))(),
        ):
            hvd.init()
            hvd.broadcast_variables(weights, root_rank=0)
            reduce()
            with contextlib.redirect_stderr(io.StringIO()) as caught:
                hvd.shutdown()
            said.append(caught.getvalue()[:16])
        with pytest.raises(tf.errors.FailedPreconditionError, match="was shut down"):
            tf.function(lambda: hvd.allreduce(tf.ones(1)))()
        hvd.init()
        return said

    assert world.run(run) == [["horovod: warning", "", "", "", ""], [""] * 5]
