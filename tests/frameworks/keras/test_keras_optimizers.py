# SPDX-License-Identifier: Apache-2.0
"""horovod.keras beside plain training: what optimizers are wrapped in, made from and saved as, accumulation, local
layers, callbacks for several models, and what scripts forget."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compressors import Broken
from support.keras_worlds import data, library, started
from support.world import World, WorldPool

from horovod.core.exceptions import HorovodInternalError, MismatchError

keras = pytest.importorskip("keras", reason="not run: keras is not installed")
tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.keras as hvd
import horovod.tensorflow.keras as tf_hvd
from horovod.keras.optimizer import is_distributed
from horovod.tensorflow import DistributedGradientTape, xla


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_accumulation_applies_every_second_pass(worlds: WorldPool, backend: str) -> None:
    def run() -> list[Any]:
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        variable = keras.Variable([0.0, 0.0])
        values = []
        for step in range(4):
            optimizer.apply([keras.ops.convert_to_tensor([1.0 + step, float(hvd.rank())])], [variable])
            values.append(keras.ops.convert_to_numpy(variable).tolist())
        return [values, int(optimizer.iterations)]

    expected = [[[0.0, 0.0], [-1.5, -0.5], [-1.5, -0.5], [-5.0, -1.0]], 2]
    assert started(worlds, backend).run(run) == [expected] * 2


def test_accumulation_with_jax_is_refused_with_what_there_is(worlds: WorldPool) -> None:
    def refused() -> str:
        with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
            hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        return "told"

    assert started(worlds, "jax").run(refused) == ["told"] * 2


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_pass_of_an_accumulation_may_leave_variables_out(worlds: WorldPool, backend: str) -> None:
    def run() -> list[Any]:
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        variables = [keras.Variable([0.0]) for _ in range(3)]
        one = keras.ops.convert_to_tensor([1.0 + hvd.rank()])
        for gradients in ([one, None, one], [one, one, None], [None, one, one], [one, one, one]):
            optimizer.apply(gradients, variables)
        return [keras.ops.convert_to_numpy(variable).tolist() for variable in variables]

    assert started(worlds, backend).run(run) == [[[-4.5], [-4.5], [-4.5]]] * 2


def test_local_layers_keep_their_own_gradients(tensorflow: World) -> None:
    def run() -> list[list[float]]:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=model.layers[-1])
        other = keras.Variable([0.0])
        gradient = keras.ops.convert_to_tensor
        optimizer.apply(
            [gradient([[hvd.rank() + 1.0]]), gradient([hvd.rank() + 1.0])], [*model.trainable_variables, other]
        )
        with pytest.raises(ValueError, match="Keras layers"):
            hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=3)
        with pytest.raises(ValueError, match="build the model"):
            hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=keras.layers.Dense(1))
        return [model.get_weights()[0].ravel().tolist(), keras.ops.convert_to_numpy(other).tolist()]

    # Divided by the size, not averaged over the ranks.
    assert tensorflow.run(run) == [[[0.5], [-1.5]], [[0.0], [-1.5]]]


def test_rank_0_alone_keeps_the_best_model(tensorflow: World, tmp_path: Path) -> None:
    def run(folder: str) -> None:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
        best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=f"{folder}/best-{hvd.rank()}.keras")
        model.fit(*data(), batch_size=16, verbose=0, callbacks=[best])

    tensorflow.run(run, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["best-0.keras"]


def test_host_values(tensorflow: World) -> None:
    def run() -> list[Any]:
        rank = hvd.rank()
        return [
            float(hvd.allreduce(rank + 1.0)),
            hvd.allreduce([rank, 2.0], op=hvd.Sum).tolist(),
            hvd.allgather([rank]).tolist(),
            hvd.broadcast(np.arange(2) * rank, 1).tolist(),
            hvd.reducescatter(np.arange(2.0), op=hvd.Sum).tolist(),
        ]

    assert tensorflow.run(run) == [[1.5, [1.0, 4.0], [0, 1], [0, 1], [2.0 * rank]] for rank in range(2)]


@pytest.mark.slow("trains with Keras")
def test_one_list_of_callbacks_starts_several_models(tensorflow: World, legacy: World) -> None:
    def run() -> list[list[float]]:
        callbacks = [tf_hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        trained = []
        for fold in range(2):
            tf.keras.utils.set_random_seed(10 * fold + tf_hvd.rank())
            model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
            model.compile(optimizer=tf_hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
            model.fit(*data(), batch_size=32, verbose=0, callbacks=callbacks, shuffle=False)
            trained.append(model.get_weights()[0].ravel().tolist())
        return trained

    for world in (tensorflow, legacy):
        first, second = world.run(run)
        assert first == second and first[0] != first[1]


@pytest.mark.parametrize("distributed", [False, True])
def test_the_model_of_one_rank_may_be_built_already(tensorflow: World, legacy: World, distributed: bool) -> None:
    def run(distributed: bool) -> list[float]:
        tf.keras.utils.set_random_seed(tf_hvd.rank())
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        if tf_hvd.rank() == 0:
            model.build((None, 6))
        # Without an update that is distributed, one step of no length tells as much.
        optimizer = tf.keras.optimizers.SGD(0.01 if distributed else 0.0)
        model.compile(optimizer=tf_hvd.DistributedOptimizer(optimizer) if distributed else optimizer, loss="mse")
        callbacks = [tf_hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.fit(*data(), batch_size=32, verbose=0, callbacks=callbacks, shuffle=False)
        return list(model.get_weights()[0].ravel().tolist())

    for world in (tensorflow, legacy):
        first, second = world.run(run, distributed)
        assert first == second


@pytest.mark.parametrize("kind", ["", "new", "legacy"])
def test_jit_is_switched_off_where_xla_cannot_hold_reductions(tensorflow: World, legacy: World, kind: str) -> None:
    def run(kind: str) -> list[float]:
        keras, optimizers, hvd = library(kind)
        weights = []
        for is_available in (True, False):
            found = xla.problem
            assert found() is None
            xla.problem = found if is_available else lambda: "not here"
            try:
                model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
                optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1))
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    model.compile(optimizer=optimizer, loss="mse", jit_compile=True)
                texts = [str(each.message) for each in warned]
                assert any("jit_compile is switched off" in text for text in texts) == (
                    not is_available and hvd.rank() == 0
                ), texts
                assert model.jit_compile == is_available
                before = xla.calls()
                model.fit(np.ones((4, 2)) * hvd.rank(), np.zeros((4, 1)), verbose=0)
                assert (xla.calls() > before) == is_available
                weights.append(float(model.get_weights()[0][0, 0]))
            finally:
                xla.problem = found
        return weights

    first, second = (legacy if kind else tensorflow).run(run, kind)
    # Of rank 1 alone there is a gradient, 2 * 2 * 1: half of it on both.
    assert first == second == pytest.approx([1.0 - 0.1 * 2.0] * 2)


@pytest.mark.parametrize("passes", [1, 2])
def test_an_optimizer_made_from_the_config_of_a_distributed_one_is_distributed(
    tensorflow: World, legacy: World, passes: int
) -> None:
    def run(passes: int) -> list[float]:
        given = tf_hvd.DistributedOptimizer(
            tf.keras.optimizers.SGD(0.5), backward_passes_per_step=passes, op=tf_hvd.Sum
        )
        made = type(given).from_config(given.get_config())
        assert is_distributed(made) and type(given).from_config(made.get_config()).learning_rate == 0.5
        variable = tf.Variable([0.0])
        for _ in range(2):
            made.apply_gradients([(tf.constant([1.0 + tf_hvd.rank()]), variable)])
        plain = tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(made))
        assert type(plain) is tf.keras.optimizers.SGD
        return list(variable.numpy())

    for world in (tensorflow, legacy):
        assert world.run(run, passes) == [[-3.0], [-3.0]]


def test_a_loss_scaled_optimizer_of_a_loop_skips_the_same_steps_on_all_ranks(tensorflow: World) -> None:
    def run() -> list[Any]:
        inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
        scaled = keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)
        variable = keras.Variable([0.0])
        for step in range(3):
            gradient = float("inf") if (hvd.rank(), step) == (1, 1) else 8.0 * (1 + hvd.rank())
            scaled.apply([tf.constant([gradient])], [variable])
        return [int(scaled.iterations), float(scaled.dynamic_scale), variable.numpy().tolist()]

    # Steps of 0.5 * 1.5, and of twice that after the scale is halved; the step between is skipped by both.
    assert tensorflow.run(run) == [[2, 4.0, [-2.25]]] * 2


@pytest.mark.parametrize("kind", ["new", "legacy"])
@pytest.mark.parametrize("inside", [False, True])
def test_loss_scaling_of_tf_keras_either_way_about(legacy: World, kind: str, inside: bool) -> None:
    def run(kind: str, inside: bool) -> list[float]:
        optimizers: Any = tf.keras.optimizers.legacy if kind == "legacy" else tf.keras.optimizers
        scaling = tf.keras.mixed_precision.LossScaleOptimizer
        if inside:
            optimizer = tf_hvd.DistributedOptimizer(scaling(optimizers.SGD(0.5), initial_scale=8.0))
        else:
            optimizer = scaling(tf_hvd.DistributedOptimizer(optimizers.SGD(0.5)), initial_scale=8.0)
        variable = tf.Variable([0.0])
        for step in range(3):
            gradient = float("inf") if (tf_hvd.rank(), step) == (1, 1) else 8.0 * (1 + tf_hvd.rank())
            optimizer.get_scaled_loss(tf.constant(1.0))
            unscaled = optimizer.get_unscaled_gradients([tf.constant([gradient])])
            optimizer.apply_gradients(zip(unscaled, [variable], strict=True))
        return [float(optimizer.loss_scale), float(variable.numpy()[0])]

    # As with Keras 3: the second step is skipped by both.
    assert legacy.run(run, kind, inside) == [[4.0, -2.25]] * 2


def test_a_model_whose_optimizer_is_not_distributed_is_warned_of(tensorflow: World, legacy: World) -> None:
    def run() -> list[list[str]]:
        class OwnStep(tf.keras.Sequential):  # type: ignore[misc]
            def train_step(self, *arguments: Any, **keywords: Any) -> Any:
                return super().train_step(*arguments, **keywords)

        def warned_of(kind: Any, optimizer: Any) -> list[str]:
            model = kind([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
            model.compile(optimizer=optimizer, loss="mse")
            callbacks = [tf_hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                model.fit(*data(), batch_size=64, verbose=0, callbacks=callbacks)
            return [str(one.message) for one in seen if "is not distributed" in str(one.message)]

        distributed = tf_hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01))
        plain = tf.keras.Sequential
        return [warned_of(plain, "sgd"), warned_of(plain, distributed), warned_of(OwnStep, "sgd")]

    for world in (tensorflow, legacy):
        for rank, (forgotten, wrapped, own_step) in enumerate(world.run(run)):
            assert len(forgotten) == 1 and forgotten[0].startswith(f"rank {rank}: ") and "(SGD)" in forgotten[0]
            assert not wrapped and not own_step


def test_a_registered_optimizer_of_ones_own_is_saved_by_its_name(
    tensorflow: World, legacy: World, tmp_path: Path
) -> None:
    def run(path: str) -> str:
        @tf.keras.utils.register_keras_serializable(package="Ours")  # type: ignore[untyped-decorator]
        class Slow(tf.keras.optimizers.SGD):  # type: ignore[misc]
            pass

        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf_hvd.DistributedOptimizer(Slow(0.01)), loss="mse")
        model.fit(*data(), batch_size=32, verbose=0)
        file = f"{path}-{tf_hvd.rank()}.keras"
        model.save(file)
        assert type(tf.keras.models.load_model(file).optimizer) is Slow
        return type(tf_hvd.load_model(file).optimizer).__name__

    for kind, world in (("new", tensorflow), ("tf-keras", legacy)):
        assert world.run(run, str(tmp_path / kind)) == ["Slow", "Slow"]


def test_a_scaled_model_of_tf_keras_that_is_built_by_its_first_batch(legacy: World) -> None:
    def run() -> float:
        inputs, targets = data()
        inputs[0] = np.inf  # the first step is skipped

        def trained(distributed: bool) -> np.ndarray[Any, Any]:
            tf.keras.utils.set_random_seed(tf_hvd.rank() if distributed else 0)
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.01), initial_scale=8.0)
            if distributed:
                optimizer = tf_hvd.DistributedOptimizer(optimizer)
            model.compile(optimizer=optimizer, loss="mse")
            rows, batch = (slice(tf_hvd.rank(), None, 2), 4) if distributed else (slice(None), 8)
            callbacks = [tf_hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if distributed else []
            model.fit(
                inputs[rows], targets[rows], batch_size=batch, epochs=1, shuffle=False, verbose=0, callbacks=callbacks
            )
            return np.concatenate([weight.ravel() for weight in model.get_weights()])

        return float(np.max(np.abs(trained(True) - trained(False))))

    assert max(legacy.run(run)) < 2e-5


def test_a_compression_that_is_none_is_named_and_the_other_rank_does_not_wait(worlds: WorldPool) -> None:
    def run() -> str:
        wrong = hvd.rank() == 1
        with pytest.raises(ValueError if wrong else HorovodInternalError) as caught:
            hvd.allreduce(np.ones(2), name="compressed", compression="fp16" if wrong else hvd.Compression.fp16)
        with pytest.raises(ValueError, match="compression='fp16': expected a class"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression="fp16")
        assert hvd.allreduce(1.0) == 1.0
        return str(caught.value)

    for text in started(worlds, "tensorflow").run(run):
        assert "compression='fp16': expected a class with compress and decompress\nhint: hvd.Compression.fp16" in text
        assert "rank 1" in text and "compressed`" in text, text


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_other_rank_does_not_wait_for_a_compressor_that_raises(worlds: WorldPool, backend: str) -> None:
    def run() -> str:
        broken = hvd.rank() == 1
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), compression=Broken if broken else hvd.Compression.none
        )
        variables = [keras.Variable([0.0, 0.0]) for _ in range(3)]
        with pytest.raises(ArithmeticError if broken else Exception) as caught:
            optimizer.apply([keras.ops.ones(2)] * 3, variables)
        return str(caught.value)

    peer, own = started(worlds, backend).run(run)
    assert own == "there is no codebook"
    assert "rank 1" in peer and "there is no codebook" in peer, peer


def test_unequal_numbers_of_steps_are_an_error_before_the_first(tensorflow: World) -> None:
    def run() -> list[str]:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        x = np.ones((4 + 4 * hvd.rank(), 1), np.float32)
        texts = []
        for callback in (hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()):
            with pytest.raises(MismatchError) as raised:
                model.fit(x, x, batch_size=2, verbose=0, callbacks=[callback])
            texts.append(str(raised.value).partition("\n")[0])
        return texts

    assert tensorflow.run(run) == [["fit: rank 0 has 2 steps in an epoch, rank 1 has 4"] * 2] * 2


# Models that XLA would compile, where it cannot hold the reductions: as on a GPU with HOROVOD_TENSORFLOW_GPU=host


@pytest.mark.parametrize("kind", ["loaded", "own train_step"])
def test_jit_is_switched_off_if_xla_cannot_hold_what_is_not_in_the_optimizer_yet(
    tensorflow: World, kind: str, tmp_path: Path
) -> None:
    """Of a loaded model the optimizer becomes distributed after compile(); a train_step() reduces by itself."""

    def run(kind: str, folder: str) -> list[float]:
        class Own(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(1, kernel_initializer="ones")

            def call(self, x: Any) -> Any:
                return self.dense(x)

            def train_step(self, data: Any) -> dict[str, Any]:
                with DistributedGradientTape(tf.GradientTape()) as tape:
                    loss = tf.reduce_mean(self(data[0]) ** 2)
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
                return {"loss": loss}

        def made() -> Any:
            if kind == "own train_step":
                model: Any = Own()
            else:
                model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=True)
            if kind == "loaded":
                model.save(f"{folder}/{tf_hvd.rank()}.keras")
                model = tf_hvd.load_model(f"{folder}/{tf_hvd.rank()}.keras")
            return model

        found = xla.problem
        xla.problem = lambda: "not here"  # as on a GPU with HOROVOD_TENSORFLOW_GPU=host
        try:
            model = made()
            assert not model.jit_compile
            model.fit(np.ones((4, 2)) * tf_hvd.rank(), np.zeros((4, 1)), verbose=0)
        finally:
            xla.problem = found
        return [float(value) for value in np.ravel(model.get_weights()[0])]

    first, second = tensorflow.run(run, kind, str(tmp_path))
    assert first == second and first[0] < 1


@pytest.mark.oldest_tensorflow
def test_xla_has_the_reductions_of_a_function_in_one_order(tensorflow: World) -> None:
    """By their data: XLA may move calls that do not depend on each other, on each rank in another way."""

    def run() -> tuple[list[bool], list[list[float]]]:
        import horovod.tensorflow as hvd

        @tf.function(jit_compile=True)
        def step(*tensors: Any) -> list[Any]:
            return [hvd.allreduce(tensor, op=hvd.Sum) for tensor in tensors]

        given = [tf.constant([1.0, 2.0]), tf.constant([3.0]), tf.constant([float(hvd.rank())])]
        graph = step.get_concrete_function(*given).graph
        calls = [each for each in graph.get_operations() if each.type == "XlaCustomCallV2"]
        follows = [before in [each.op for each in call.inputs] for before, call in zip(calls, calls[1:], strict=False)]
        return follows, [result.numpy().tolist() for result in step(*given)]

    assert tensorflow.run(run) == [([True, True], [[2.0, 4.0], [6.0], [1.0]])] * 2
