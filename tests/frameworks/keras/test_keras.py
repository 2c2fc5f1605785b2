# SPDX-License-Identifier: Apache-2.0
"""horovod.keras on every backend of Keras 3, and horovod.tensorflow.keras with tf-keras: training equals one process on
the whole batch, replicas stay equal, callbacks do what they say, models are saved and loaded with their state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import THOROUGH, later
from support.frameworks import TENSORFLOW_ENV
from support.keras_worlds import BACKENDS, data, library
from support.world import World, WorldPool

keras = pytest.importorskip("keras", reason="not run: keras is not installed")
tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.keras as hvd
import horovod.tensorflow.keras as tf_hvd
from horovod.keras.distributed import is_distributed
from horovod.tensorflow import xla

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OPTIMIZERS = ["SGD", "Adam", "Adagrad", "RMSprop"]
# How an optimizer steps is Keras' part; a backend gives us its gradients in one way for all of them.
CASES = [(one, name) for one in BACKENDS for name in OPTIMIZERS if THOROUGH or name == "Adam"]
BACKENDS_AND_OPTIMIZERS = [case if case[0] != "jax" else later(*case) for case in CASES]
WITH_EMBEDDINGS = [CASES[0], *(later(*case) for case in CASES[1:])]


def difference_to_one_process(name: str, legacy: str = "", scale: float = 1.0) -> float:
    """Trains on halves with Horovod and on the whole without; how far the weights are apart. scale: of the targets."""
    keras, optimizers, hvd = library(legacy)
    arguments = {"SGD": {"momentum": 0.9}}.get(name, {})
    inputs, targets = data()
    targets = targets * np.float32(scale)
    rank = hvd.rank()

    def trained(distributed: bool) -> np.ndarray[Any, Any]:
        keras.utils.set_random_seed(7 + rank if distributed else 7)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        optimizer = getattr(optimizers, name)(0.01, **arguments)
        callbacks = []
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.compile(optimizer=optimizer, loss="mse")
        rows = slice(rank, None, 2) if distributed else slice(0, None)
        batch = 8 if distributed else 16
        model.fit(
            inputs[rows], targets[rows], batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
        )
        return np.concatenate([weight.ravel() for weight in model.get_weights()])

    return float(np.max(np.abs(trained(True) - trained(False))))


@pytest.mark.slow("trains with Keras")
@pytest.mark.oldest_tensorflow
@pytest.mark.parametrize(("world", "name"), BACKENDS_AND_OPTIMIZERS, indirect=["world"])
def test_training_equals_one_process_on_the_whole_batch(world: World, name: str) -> None:
    assert max(world.run(difference_to_one_process, name)) < 2e-5


@pytest.mark.parametrize("kind", ["new", "legacy"])
@pytest.mark.parametrize("name", ["Adam", *(later(name) for name in OPTIMIZERS if name != "Adam")])
def test_tf_keras_training_equals_one_process_on_the_whole_batch(legacy: World, name: str, kind: str) -> None:
    assert max(legacy.run(difference_to_one_process, name, kind)) < 2e-5


def difference_with_embeddings(name: str, legacy: str = "") -> tuple[float, bool]:
    """As difference_to_one_process, with a table of which a batch takes a few rows, some twice; and whether the
    gradient of the table was sparse."""
    keras, _, hvd = library(legacy)
    arguments = {"SGD": {"momentum": 0.9}}.get(name, {})
    ids = np.random.default_rng(4).integers(0, 12, (32, 3))
    targets = np.sin(ids.sum(axis=1, keepdims=True)).astype(np.float32)
    rank, sparse = hvd.rank(), []

    def trained(distributed: bool) -> np.ndarray[Any, Any]:
        keras.utils.set_random_seed(7)
        table = keras.layers.Embedding(12, 4)
        model = keras.Sequential(
            [keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        optimizer = getattr(keras.optimizers, name)(0.05, **arguments)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
            reduce = optimizer._hvd_gradients.is_sparse
            optimizer._hvd_gradients.is_sparse = lambda gradient: sparse.append(reduce(gradient)) or sparse[-1]
        model.compile(optimizer=optimizer, loss="mse")
        rows, batch = (slice(rank, None, 2), 4) if distributed else (slice(0, None), 8)
        model.fit(ids[rows], targets[rows], batch_size=batch, epochs=2, shuffle=False, verbose=0)
        return np.concatenate([weight.ravel() for weight in model.get_weights()])

    return float(np.max(np.abs(trained(True) - trained(False)))), any(sparse)


@pytest.mark.parametrize(("world", "name"), WITH_EMBEDDINGS, indirect=["world"])
def test_training_with_embeddings_equals_one_process_on_the_whole_batch(world: World, name: str) -> None:
    def run(name: str, train: Any) -> list[Any]:
        difference, was_sparse = train(name)
        return [difference, was_sparse == (keras.backend.backend() == "tensorflow")]

    for difference, is_as_expected in world.run(run, name, difference_with_embeddings):
        assert difference < 2e-5 and is_as_expected


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tf_keras_training_with_embeddings_equals_one_process_on_the_whole_batch(legacy: World, name: str) -> None:
    for difference, was_sparse in legacy.run(difference_with_embeddings, name, "new"):
        assert difference < 2e-5 and was_sparse


@pytest.mark.parametrize(("policy", "tolerance"), [("mixed_float16", 4e-3), later("mixed_bfloat16", 3e-2)])
def test_training_in_mixed_precision_is_near_to_one_process_on_the_whole_batch(
    world: World, policy: str, tolerance: float
) -> None:
    def run(policy: str, train: Any) -> float:
        keras.config.set_dtype_policy(policy)
        try:
            return float(train("SGD", scale=0.1))  # no infinities, which make steps of the two be skipped differently
        finally:
            keras.config.set_dtype_policy("float32")

    assert max(world.run(run, policy, difference_to_one_process)) < tolerance


def weights_under_a_schedule(momentum_correction: bool, name: str, legacy: str = "") -> list[float]:
    """A weight whose gradient is 1 is trained with momentum while the rate falls to a tenth in every epoch: the weight
    after every batch. RMSprop without memory divides the gradient by its own size: it steps as SGD does."""
    keras, optimizers, hvd = library(legacy)
    mean = keras.backend.mean if legacy else keras.ops.mean
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    memory = {"rho": 0.0, "epsilon": 1e-12} if name == "RMSprop" else {}
    plain = getattr(optimizers, name.removeprefix("scaled "))(0.1, momentum=0.5, **memory)
    if name.startswith("scaled"):
        plain = optimizers.LossScaleOptimizer(plain, initial_scale=2.0)
    optimizer = hvd.DistributedOptimizer(plain)
    model.compile(optimizer=optimizer, loss=lambda truth, seen: mean(seen) + 0.0 * mean(truth))
    weights: list[float] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if hasattr(model, "jax_state_sync"):
                model.jax_state_sync()
            weights.append(float(model.get_weights()[0][0, 0]))

    ones = np.ones((8, 1), np.float32)
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1, momentum_correction=momentum_correction)
    model.fit(ones, ones, batch_size=4, epochs=3, verbose=0, callbacks=[schedule, Watch()])
    return weights


def expected_under_a_schedule(momentum_correction: bool) -> list[float]:
    weight = velocity = 0.0
    weights = []
    for epoch in range(3):
        for batch in range(2):
            if batch == 0 and epoch > 0 and momentum_correction:
                velocity *= 0.1
            velocity = 0.5 * velocity - 0.1 * 0.1**epoch
            weight += velocity
            weights.append(weight)
    return weights


@pytest.mark.parametrize("correction", [True, later(False)])
def test_momentum_follows_the_learning_rate(world: World, correction: bool) -> None:
    expected = expected_under_a_schedule(correction)
    for name in ("SGD", "RMSprop", "scaled SGD"):
        for weights in world.run(weights_under_a_schedule, correction, name):
            assert np.allclose(weights, expected, rtol=1e-4), (name, weights)


@pytest.mark.parametrize("correction", [True, later(False)])
def test_momentum_of_tf_keras_follows_the_learning_rate(legacy: World, correction: bool) -> None:
    expected = expected_under_a_schedule(correction)
    for kind in ("new", "legacy"):
        for name in ("SGD", "RMSprop"):
            for weights in legacy.run(weights_under_a_schedule, correction, name, kind):
                assert np.allclose(weights, expected, rtol=1e-4), (kind, name, weights)


def test_tf_keras_in_a_graph_of_tensorflow_1(legacy: World) -> None:
    """Whose variables have values in a session only: the callbacks' too."""

    def run() -> list[Any]:
        keras, _, hvd = library("legacy")
        seen: list[Any] = []
        with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
            tf.compat.v1.keras.backend.set_session(session)
            layer = keras.layers.Dense(1, use_bias=False, input_shape=(1,))
            model = keras.Sequential([layer])
            optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1, momentum=0.5))
            model.compile(optimizer=optimizer, loss=lambda truth, output: tf.reduce_mean(output) + 0.0 * truth)
            model.set_weights([np.full((1, 1), 5.0 + hvd.rank())])

            class Watch(keras.callbacks.Callback):  # type: ignore[misc]
                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    seen.append(float(model.get_weights()[0][0, 0]) - 5.0)

            inputs = np.full((8, 1), 2.0 * hvd.rank(), np.float32)  # the gradients' average is 1
            callbacks = [
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1),
                hvd.callbacks.MetricAverageCallback(),
                Watch(),
            ]
            history = model.fit(inputs, inputs, batch_size=4, epochs=3, verbose=0, callbacks=callbacks).history
            for options in ({"backward_passes_per_step": 2}, {"op": 2}):
                refused = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1), **options)
                model.compile(optimizer=refused, loss="mse")
                with pytest.raises(NotImplementedError, match=r"tf\.compat\.v1\.train"):
                    model.fit(inputs, inputs, verbose=0)
        keras.backend.clear_session()
        return [seen, history["lr"], history["loss"]]

    first, second = legacy.run(run)
    assert first == second
    assert np.allclose(first[0], expected_under_a_schedule(True), rtol=1e-3)
    assert np.allclose(first[1], [0.1, 0.01, 0.001])


@pytest.mark.slow("trains with Keras")
def test_a_model_that_is_built_by_its_first_batch_starts_as_the_root_does(world: World) -> None:
    def run(jit: bool) -> list[Any]:
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
        jit = jit and keras.backend.backend() == "tensorflow"
        model.compile(optimizer=optimizer, loss="mse", jit_compile=jit, experimental_run_tf_function=False)
        inputs, targets = data()
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(inputs, targets, batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[broadcast])
        assert bool(model.jit_compile) == jit
        slots = [np.sum(np.asarray(keras.ops.convert_to_numpy(v), np.float64)) for v in optimizer.variables]
        return [
            int(optimizer.iterations),
            [float(np.sum(w)) for w in model.get_weights()][:2],
            [float(s) for s in slots],
        ]

    for jit in (False, True):
        first, second = world.run(run, jit)
        assert first == second and first[0] == 4


@pytest.mark.oldest_tensorflow
def test_the_compiled_path_is_taken(tensorflow: World) -> None:
    def run() -> int:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse", jit_compile=True)
        before = xla.calls()
        model.fit(*data(), batch_size=16, verbose=0)
        return xla.calls() - before

    assert tensorflow.run(run) == [4, 4]


def test_callbacks_set_rates_and_average_metrics(world: World) -> None:
    def run() -> dict[str, list[float]]:
        rank = hvd.rank()
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.02, momentum=0.9)), loss="mse")
        inputs, targets = data()
        seen: dict[str, list[Any]] = {"rates": [], "names": []}

        class Watch(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if hasattr(model, "jax_state_sync"):
                    model.jax_state_sync()
                seen["rates"].append(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                seen["names"].append(sorted(logs))

        history = model.fit(
            inputs,
            targets + rank,
            batch_size=16,
            epochs=4,
            verbose=0,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                hvd.callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=2),
                hvd.callbacks.LearningRateScheduleCallback(0.02, 0.1, start_epoch=3),
                hvd.callbacks.LearningRateScheduleCallback(0.02, lambda epoch: 0.5, start_epoch=2, end_epoch=3),
                keras.callbacks.ReduceLROnPlateau("loss", patience=10),
                Watch(),
            ],
        )
        return {**seen, "loss": history.history["loss"], "lr": history.history["lr"]}

    first, second = world.run(run)
    assert first == second
    ramp = [0.02 * (1 / 2) * ((step + 1) / 4 * (2 - 1) / 2 + 1) for step in range(8)]
    assert np.allclose(first["rates"], ramp + [0.01] * 4 + [0.02] * 4, rtol=1e-5)
    assert np.allclose(first["lr"], [ramp[3], ramp[7], 0.01, 0.02], rtol=1e-5)
    assert first["names"] == [["learning_rate", "loss"]] * 4  # Keras' own callback and ours say it once


def test_operations_on_tensors_give_tensors(world: World) -> None:
    def run() -> dict[str, list[float]]:
        seen: dict[str, list[float]] = {}
        packages = {"keras": (hvd, keras.ops.convert_to_tensor, keras.ops.is_tensor)}
        if keras.backend.backend() == "tensorflow":
            packages["tensorflow"] = (tf_hvd, tf.constant, tf.is_tensor)
        for package, (module, tensor, is_tensor) in packages.items():
            values = np.array([1.0, 2.0], np.float32) * (hvd.rank() + 1)
            results = {
                "allreduce": module.allreduce(tensor(values)),
                "scalar": module.allreduce(tensor(values[0])),
                "allgather": module.allgather(tensor(values)),
                "broadcast": module.broadcast(tensor(values), 1),
                "reducescatter": module.reducescatter(tensor(values)),
            }
            assert all(is_tensor(result) for result in results.values()), results
            assert isinstance(module.allreduce(values), np.ndarray) and isinstance(module.allreduce(1.0), float)
            for name, result in results.items():
                seen[f"{package} {name}"] = np.ravel(keras.ops.convert_to_numpy(result)).tolist()
        return seen

    for rank, seen in enumerate(world.run(run)):
        assert seen and all(
            values
            == {
                "allreduce": [1.5, 3.0],
                "scalar": [1.5],
                "allgather": [1.0, 2.0, 2.0, 4.0],
                "broadcast": [2.0, 4.0],
                "reducescatter": [[1.5], [3.0]][rank],
            }[name.split()[1]]
            for name, values in seen.items()
        ), seen


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_loaded_model_trains_on_with_its_state(world: World, tmp_path: Path, ending: str) -> None:
    def run(folder: str, ending: str) -> list[Any]:
        path = f"{folder}/{hvd.rank()}.{ending}"
        keras.utils.set_random_seed(0)
        loss = keras.losses.MeanSquaredError()  # Keras 3 cannot load an .h5 file with "mse"
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss=loss)
        model.fit(*data(), batch_size=16, verbose=0)
        model.save(path)
        plain = keras.models.load_model(path)
        assert type(plain.optimizer).__name__ == "Adam" and not is_distributed(plain.optimizer)
        loaded = hvd.load_model(path)
        assert (
            isinstance(loaded.optimizer, keras.optimizers.Adam) and type(loaded.optimizer) is not keras.optimizers.Adam
        )
        assert int(loaded.optimizer.iterations) == 4
        for mine, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
            assert np.allclose(keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs))
        inputs, targets = data()
        loaded.fit(inputs + hvd.rank(), targets, batch_size=16, verbose=0)
        return [int(loaded.optimizer.iterations), loaded.get_weights()[0].ravel().tolist()]

    first, second = world.run(run, str(tmp_path), ending)
    assert first == second and first[0] == 8


def test_loss_scaling_skips_the_same_steps_on_all_ranks(world: World) -> None:
    def run() -> list[Any]:
        from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

        keras.utils.set_random_seed(0)
        policy = keras.dtype_policies.DTypePolicy("mixed_float16")
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, dtype=policy)])
        model = keras.Model(model.inputs, model.outputs)
        model.dtype_policy = policy
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.001)), loss="mse")
        assert isinstance(model.optimizer, LossScaleOptimizer) and is_distributed(model.optimizer)
        assert not is_distributed(model.optimizer.inner_optimizer)
        inputs, targets = data()
        if hvd.rank() == 1:
            inputs = inputs.copy()
            inputs[20] = np.inf
        model.fit(inputs, targets, batch_size=16, shuffle=False, verbose=0)
        return [int(model.optimizer.iterations), model.get_weights()[0].ravel().tolist()]

    first, second = world.run(run)
    assert first == second and np.all(np.isfinite(first[1]))


def test_a_lost_rank_ends_fit_with_its_name(worlds: WorldPool) -> None:
    def run() -> str:
        hvd.init()
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")

        class Die(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if hvd.rank() == 1 and batch == 1:
                    os._exit(3)

        try:
            model.fit(*data(), batch_size=8, verbose=0, callbacks=[Die()])
        except Exception as error:
            return str(error)
        return "no error"

    with World(2, TENSORFLOW_ENV) as world:
        outcomes = world.run_each(run)
    assert "rank 1" in outcomes[0].value
