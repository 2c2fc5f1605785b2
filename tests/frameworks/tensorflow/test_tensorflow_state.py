# SPDX-License-Identifier: Apache-2.0
"""Around training with horovod.tensorflow: variables and objects of the root, saved graphs, old import places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV, tensorflow_world
from support.world import World, WorldPool

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return tensorflow_world(worlds)


def test_variables_and_objects_become_the_roots(world: World) -> None:
    def run() -> bool:
        import tensorflow as tf

        import horovod.tensorflow as hvd

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
        with tf.Graph().as_default():
            for name, value in (("plain", 1.0), ("vocabulary", "text")):
                tf.compat.v1.get_variable(name, initializer=tf.constant(value))
            with pytest.raises(ValueError, match="variable vocabulary:0 has dtype string: expected one of"):
                hvd.broadcast_global_variables(0)
        hvd.barrier()
        return True

    assert world.run(run) == [True, True]


def test_a_process_that_has_imported_horovod_reads_a_graph_with_its_operations(tmp_path: Path) -> None:
    def write(path: str) -> None:
        import tensorflow.compat.v1 as tf

        import horovod.tensorflow as hvd

        tf.disable_v2_behavior()
        hvd.init()
        weight = tf.get_variable("w", [3])
        optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1))
        optimizer.apply_gradients([(hvd.allreduce(weight), weight)])
        tf.train.export_meta_graph(path)

    def read(path: str) -> list[str]:
        import tensorflow.compat.v1 as tf

        with tf.Graph().as_default() as graph:
            tf.train.import_meta_graph(path)
        return sorted({node.type for node in graph.get_operations() if node.type.startswith("Horovod")})

    path = str(tmp_path / "graph.meta")
    with World(1, TENSORFLOW_ENV) as writer, World(1, TENSORFLOW_ENV) as reader:
        writer.run(write, path)
        assert reader.run(read, path)[0]


def test_old_import_places_hold_the_same_functions() -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.tensorflow import functions, mpi_ops, util

    for module in (mpi_ops, functions):
        for name in set(module.__all__) - {"handle_average_backwards_compatibility"}:
            assert getattr(module, name) is getattr(hvd, name), name
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    references = util.vars_to_refs(variables)
    assert hash(references) is not None
    again = util.refs_to_vars(references)
    assert again[0] is variables[0] and again[1][0] is variables[1][0]
