# SPDX-License-Identifier: Apache-2.0
"""Models that XLA would compile, where it cannot hold the reductions: as on a GPU with HOROVOD_TENSORFLOW_GPU=host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.world import World

keras = pytest.importorskip("keras", reason="not run: keras is not installed")
tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
import horovod.tensorflow.keras as hvd
from horovod.tensorflow import DistributedGradientTape, xla


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
                model.save(f"{folder}/{hvd.rank()}.keras")
                model = hvd.load_model(f"{folder}/{hvd.rank()}.keras")
            return model

        found = xla.problem
        xla.problem = lambda: "not here"  # as on a GPU with HOROVOD_TENSORFLOW_GPU=host
        try:
            model = made()
            assert not model.jit_compile
            model.fit(np.ones((4, 2)) * hvd.rank(), np.zeros((4, 1)), verbose=0)
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
