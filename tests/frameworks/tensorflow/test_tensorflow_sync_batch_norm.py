# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow.SyncBatchNormalization of Keras 3 and of tf-keras: as batch normalization of all ranks' rows in
one batch, forward and backward, with uneven shares, masks, and in compiled steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import later
from support.keras_worlds import started
from support.world import World, WorldPool

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras

ROWS = (slice(0, 3), slice(3, 8))  # by rank


@pytest.fixture(scope="module", params=["keras3", "tf-keras"])
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return started(worlds, legacy=request.param == "tf-keras", HOROVOD_DYNAMIC_PROCESS_SETS="1")


def difference(shape: tuple[int, ...], axis: int, how: str, masked: bool = False) -> float:
    """How far this rank is from its part of one batch: outputs, gradients, moving averages."""
    random = np.random.default_rng(1)
    x = (100 + 3 * random.standard_normal(shape)).astype(np.float32)  # sums of squares would cancel here
    weights = random.standard_normal(shape).astype(np.float32)
    mask = random.random(shape[:-1]) < 0.6 if masked else None
    mine = ROWS[hvd.rank()]

    def run(layer: Any, x: Any, weights: Any, mask: Any) -> Any:
        layer.build(x.shape)
        layer.gamma.assign(tf.linspace(0.5, 2.0, x.shape[axis]))
        options = {} if mask is None else {"mask": tf.constant(mask)}

        def step() -> Any:
            inputs = tf.convert_to_tensor(x)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True, **options)
                loss = tf.reduce_sum(outputs * weights)
            return outputs, tape.gradient(loss, [inputs, *layer.trainable_variables])

        return (step if how == "eager" else tf.function(step, autograph=False, jit_compile=how == "xla"))()

    normal = {"fused": False} if "tf_keras" in tf.keras.layers.Layer.__module__ else {}
    whole = tf.keras.layers.BatchNormalization(axis=axis, momentum=0.8, **normal)
    synchronized = hvd.SyncBatchNormalization(axis=axis, momentum=0.8, fused=False)
    expected, (to_x, *to_weights) = run(whole, x, weights, mask)
    outputs, (to_mine, *to_parts) = run(synchronized, x[mine], weights[mine], None if mask is None else mask[mine])
    pairs = [
        (expected[mine], outputs),
        (to_x[mine], to_mine),
        *((all_, hvd.allreduce(part, op=hvd.Sum)) for all_, part in zip(to_weights, to_parts, strict=True)),
        (whole.moving_mean, synchronized.moving_mean),
        (whole.moving_variance, synchronized.moving_variance),
    ]
    assert np.abs(to_x).max() > 0.01
    return max(float(np.max(np.abs(np.subtract(one, other)) / (1 + np.abs(one)))) for one, other in pairs)


@pytest.mark.parametrize("how", ["eager", "function", "xla"])
@pytest.mark.parametrize(("shape", "axis"), [((8, 4), -1), later((8, 5, 5, 3), -1), ((8, 3, 6, 2), 1)], ids=str)
def test_all_ranks_rows_are_normalized_as_one_batch(world: World, shape: tuple[int, ...], axis: int, how: str) -> None:
    assert max(world.run(difference, shape, axis, how)) < 3e-5


def test_masked_rows_do_not_count(world: World) -> None:
    assert max(world.run(difference, (8, 6, 3), -1, "function", True)) < 3e-5


def test_a_rank_may_have_no_rows(world: World) -> None:
    def run() -> list[Any]:
        layer = hvd.SyncBatchNormalization(momentum=0.5)
        rows = tf.constant([[1.0, 4.0], [3.0, 8.0]])[: 2 * hvd.rank()]
        outputs = layer(rows, training=True)
        return [outputs.shape.as_list(), layer.moving_mean.numpy().tolist()]

    assert world.run(run) == [[[0, 2], [1.0, 3.0]], [[2, 2], [1.0, 3.0]]]


@pytest.mark.slow("trains with TensorFlow")
def test_training_with_fit_equals_one_process(world: World) -> None:
    def run() -> float:
        random = np.random.default_rng(2)
        x, y = random.standard_normal((32, 5)).astype(np.float32), random.standard_normal((32, 1)).astype(np.float32)

        def trained(distributed: bool) -> Any:
            # Rank 1 has built more layers before: names in the graph differ.
            tf.keras.utils.set_random_seed(3)
            layers = tf.keras.layers
            normal = hvd.SyncBatchNormalization if distributed else layers.BatchNormalization
            if distributed and hvd.rank() == 1:
                normal()
            model = tf.keras.Sequential([layers.Dense(4), normal(), layers.Dense(4), normal(), layers.Dense(1)])
            optimizer = tf.keras.optimizers.SGD(0.05)
            if distributed:
                optimizer = hvd_keras.DistributedOptimizer(optimizer)
            model.compile(optimizer=optimizer, loss="mse")
            rows = slice(hvd.rank(), None, 2) if distributed else slice(None)
            size = 8 if distributed else 16
            model.fit(x[rows], y[rows], batch_size=size, epochs=2, shuffle=False, verbose=0)
            return np.concatenate([weight.ravel() for weight in model.get_weights()])

        return float(np.max(np.abs(trained(True) - trained(False))))

    assert max(world.run(run)) < 2e-5


def test_it_is_local_outside_of_training_and_in_a_set_of_its_own(world: World) -> None:
    def run() -> list[float]:
        alone = [hvd.add_process_set([rank]) for rank in range(2)]
        layer = hvd.SyncBatchNormalization(momentum=0.0, process_set=alone[hvd.rank()])
        if hvd.rank() == 0:  # nobody waits for the other rank
            layer(tf.constant([[1.0], [3.0]]), training=True)
            hvd.SyncBatchNormalization()(tf.constant([[1.0]]), training=False)
        for one in alone:
            hvd.remove_process_set(one)
        return layer.moving_mean.numpy().tolist() if hvd.rank() == 0 else []

    assert world.run(run) == [[2.0], []]


def test_what_it_cannot_do_is_refused(world: World) -> None:
    def run() -> None:
        with pytest.raises(ValueError, match="is not registered"):
            hvd.SyncBatchNormalization(process_set=hvd.ProcessSet([0, 1]))(tf.ones((3, 1)), training=True)

        with pytest.raises(ValueError, match="fused=True: expected False"):
            hvd.SyncBatchNormalization(fused=True)
        with pytest.raises(ValueError, match="renorm"):
            hvd.SyncBatchNormalization(renorm=True)

    world.run(run)


def test_a_saved_model_with_it_is_loaded(world: World, tmp_path: Path) -> None:
    def run(folder: str) -> str:
        path = f"{folder}/{hvd.rank()}.keras"
        tf.keras.Sequential([tf.keras.Input((6,)), hvd.SyncBatchNormalization()]).save(path)
        return type(hvd_keras.load_model(path).layers[-1]).__name__

    assert world.run(run, str(tmp_path)) == ["SyncBatchNormalization"] * 2


def test_copies_and_loaded_layers_keep_the_process_set(world: World, tmp_path: Path) -> None:
    def run(folder: str) -> list[Any]:
        alone = [hvd.add_process_set([rank]) for rank in range(2)]
        mine = alone[hvd.rank()]
        path = f"{folder}/{hvd.rank()}.keras"
        layer = hvd.SyncBatchNormalization(momentum=0.0, process_set=mine)
        model = tf.keras.Sequential([tf.keras.Input((1,)), layer])
        model.save(path)
        copies = [tf.keras.models.clone_model(model), hvd_keras.load_model(path)]
        sets = [copy.layers[-1].process_set for copy in copies]
        if hvd.rank() == 0:  # nobody waits for the other rank
            copies[1](tf.constant([[1.0], [3.0]]), training=True)
        assert model.layers[-1].get_config()["process_set"] == [hvd.rank()]
        for one in alone:
            hvd.remove_process_set(one)
        loaded = hvd_keras.load_model(path)
        loaded(tf.constant([[1.0], [3.0]]), training=False)
        with pytest.raises(ValueError, match="is not registered"):
            loaded(tf.constant([[1.0], [3.0]]), training=True)
        plain = tf.keras.models.clone_model(tf.keras.Sequential([tf.keras.Input((1,)), hvd.SyncBatchNormalization()]))
        return [*(one is mine for one in sets), plain.layers[-1].process_set is hvd.global_process_set]

    assert world.run(run, str(tmp_path)) == [[True] * 3] * 2


def test_synchronized_is_over_the_ranks(world: World) -> None:
    def run() -> list[float]:
        layer = hvd.SyncBatchNormalization(momentum=0.0, synchronized=True)
        layer(tf.fill([2, 1], 1.0 + 2 * hvd.rank()), training=True)
        return list(layer.moving_mean.numpy().tolist())

    assert world.run(run) == [[2.0], [2.0]]
