# SPDX-License-Identifier: Apache-2.0
"""What was saved runs in processes that have called init and made no operation, and again after another init."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import old_sets
from support.frameworks import tensorflow_world
from support.world import World, WorldPool

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd

NAME = 'sum, of "two"'


def save(folder: Path) -> None:
    import keras

    import horovod.keras

    class Saved(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def plain(self, x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x), hvd.size_op()

        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)], jit_compile=True)
        def compiled(self, x: Any) -> Any:
            return hvd.grouped_allreduce([x, x + 1], op=hvd.Sum, prescale_factor=0.5, name=NAME)

    layers = [keras.Input((3,)), keras.layers.Dense(2), hvd.SyncBatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer=horovod.keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    model.fit(tf.ones([4, 3]), tf.ones([4, 1]), verbose=0)
    if hvd.rank() == 0:
        tf.saved_model.save(Saved(), folder / "functions")
        model.save(folder / "model.keras")
    hvd.barrier()


def load(folder: Path, what: str) -> list[Any]:
    import keras

    import horovod.keras

    ones = tf.ones([2]) * (hvd.rank() + 1)
    seen: list[Any] = []
    for start in range(2):
        if what == "model":
            model = horovod.keras.load_model(folder / "model.keras") if start == 0 else model  # noqa: F821
            keras.utils.set_random_seed(0)
            rows = keras.random.normal([4, 3]) + hvd.rank()
            model.fit(rows, tf.ones([4, 1]), verbose=0)
            seen.append([variable.numpy().tolist() for variable in model.trainable_variables])
        else:
            loaded = tf.saved_model.load(folder / "functions") if start == 0 else loaded  # noqa: F821
            seen.append([one.numpy().tolist() for one in getattr(loaded, what)(ones)])
        hvd.shutdown()
        hvd.init()
    return seen


@pytest.mark.slow("ranks of their own for each case")
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("plain", [[3.0, 3.0], [1.0, 1.0, 2.0, 2.0], 2]),
        ("compiled", [[1.5, 1.5], [2.5, 2.5]]),
        ("model", None),
    ],
)
def test_what_was_saved_runs_after_init_alone(
    world: World, worlds: WorldPool, tmp_path: Path, what: str, expected: Any
) -> None:
    world.run(save, tmp_path)
    first, second = tensorflow_world(worlds, LOADED=what).run(load, tmp_path, what)
    assert first == second
    assert expected is None or first == [expected] * 2


@pytest.mark.slow("ranks of their own")
@pytest.mark.parametrize("with_xla", [False, True])
def test_a_function_means_the_ranks_of_its_set(worlds: WorldPool, with_xla: bool) -> None:
    def run(with_xla: bool) -> Any:
        def compiled(process_set: Any) -> Any:
            @tf.function(jit_compile=with_xla)
            def function(x: Any) -> Any:
                total = hvd.allreduce(x, op=hvd.Sum, process_set=process_set)
                included = 1 if with_xla else hvd.process_set_included_op(process_set.process_set_id)
                return total * tf.cast(included, total.dtype)

            return lambda: float(function(tf.fill([1], float(hvd.rank())))[0])

        return old_sets.after_another_init(hvd, compiled, tf.errors.OpError)

    old_sets.check(tensorflow_world(worlds, 3, HOROVOD_DYNAMIC_PROCESS_SETS="1").run(run, with_xla))
