# SPDX-License-Identifier: Apache-2.0
"""horovod.keras says in fit(), without a callback of ours, if the ranks' learning rates differ, and if they train on
the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.extent import later
from support.keras_worlds import library, started
from support.step_checks import CHANGES_AT, STEPS, batch, heard, rate
from support.world import WorldPool

pytest.importorskip("keras", reason="not run: keras is not installed")

# A backend, and how the step runs.
WAYS = [
    ("tensorflow", "graph", ""),
    *(
        pytest.param(*way, marks=pytest.mark.check)
        for way in [("tensorflow", "eager", ""), ("tensorflow", "xla", ""), ("tensorflow", "graph", "new")]
    ),
    later("torch", "eager", ""),
    later("jax", "xla", ""),
    later("tensorflow", "graph", "legacy"),
]


@pytest.mark.slow("trains with Keras")
@pytest.mark.parametrize(("backend", "how", "kind"), WAYS)
def test_learning_rates_and_rows_are_compared(worlds: WorldPool, backend: str, how: str, kind: str) -> None:
    def run() -> list[list[str]]:
        keras, optimizers, hvd = library(kind)

        def train(same: bool) -> None:
            keras.utils.set_random_seed(0)
            net = keras.Sequential([keras.layers.Dense(1, input_shape=(4,), name=f"rank_{hvd.rank()}")])
            optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.0625, momentum=0.5), name=f"of-{how}-{kind}")
            net.compile(optimizer, "mse", run_eagerly=how == "eager", jit_compile=how == "xla")

            class Schedule(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
                def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                    optimizer.learning_rate = rate(epoch, hvd.rank())

            inputs, targets = map(np.stack, zip(*[batch(step, hvd.rank(), same) for step in range(STEPS)], strict=True))
            for step in range(STEPS):
                callbacks = [Schedule(), hvd.callbacks.MetricAverageCallback()]
                given = {"initial_epoch": step, "epochs": step + 1, "callbacks": callbacks}
                net.fit(inputs[step], targets[step], batch_size=8, shuffle=False, verbose=0, **given)

        texts = []
        for same in (True, False):
            hvd.shutdown()  # counts anew
            hvd.init()
            texts.append(sorted(heard(lambda same=same: train(same))))
        return texts

    first, second = started(worlds, backend, legacy=bool(kind)).run(run)
    rates = "the ranks differ in `learning_rate`: 0.0625 on rank 0, 0.03125 on rank 1"
    differ = f"{CHANGES_AT + 1}, of-{how}-{kind}, {rates}"
    assert first == [[differ, "same rows"], [differ]]
    assert second == [[], []]
