# SPDX-License-Identifier: Apache-2.0
"""Around training with horovod.tensorflow: variables and objects of the root, saved graphs, old import places, and what
scripts get wrong in silence: gradients that nothing reduces, variables that differ."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV
from support.world import World

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow import functions, mpi_ops, util


def test_variables_and_objects_become_the_roots(world: World) -> None:
    def run() -> None:
        rank = hvd.rank()
        variables = [tf.Variable([1.0 * rank, 2.0]), tf.Variable(rank), tf.Variable(tf.cast([rank], tf.bfloat16))]
        hvd.broadcast_variables(variables, root_rank=1)
        assert [np.asarray(v).astype(np.float64).ravel().tolist() for v in variables] == [[1, 2], [1], [1]]
        assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
        assert hvd.allgather_object(rank) == [0, 1]
        with pytest.raises(RuntimeError, match="eager"):
            hvd.broadcast_global_variables(0)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            give = hvd.broadcast_object_fn(0, session)
            assert [give(["a" * n, rank]) for n in (1, 1000)] == [["a", 0], ["a" * 1000, 0]]
        many = [tf.Variable(1.0, name=f"weight{index}") for index in range(50)]
        many[30] = tf.Variable("text", name="vocabulary")
        with pytest.raises(ValueError, match="tensor 30 of 50: dtype string: expected one of"):
            hvd.grouped_allgather([tf.reshape(variable, [1]) for variable in many])
        hvd.barrier()

    world.run(run)


def test_a_process_that_has_imported_horovod_reads_a_graph_with_its_operations(tmp_path: Path) -> None:
    v1 = tf.compat.v1

    def write(path: str) -> None:
        v1.disable_v2_behavior()
        hvd.init()
        weight = v1.get_variable("w", [3])
        optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.1))
        optimizer.apply_gradients([(hvd.allreduce(weight), weight)])
        v1.train.export_meta_graph(path)

    def read(path: str) -> list[str]:
        with tf.Graph().as_default() as graph:
            v1.train.import_meta_graph(path)
        return sorted({node.type for node in graph.get_operations() if node.type.startswith("Horovod")})

    path = str(tmp_path / "graph.meta")
    with World(1, TENSORFLOW_ENV) as writer, World(1, TENSORFLOW_ENV) as reader:
        writer.run(write, path)
        assert reader.run(read, path)[0]


def test_old_import_places_hold_the_same_functions() -> None:
    for module in (mpi_ops, functions):
        for name in set(module.__all__) - {"handle_average_backwards_compatibility"}:
            assert getattr(module, name) is getattr(hvd, name), name
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    references = util.vars_to_refs(variables)
    assert hash(references) is not None
    again = util.refs_to_vars(references)
    assert again[0] is variables[0] and again[1][0] is variables[1][0]


def test_keras_variables_that_differ_are_named_before_the_second_eager_step(world: World) -> None:
    def run() -> list[str]:
        import keras

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
        import keras

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
