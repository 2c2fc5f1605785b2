# SPDX-License-Identifier: Apache-2.0
"""horovod.mxnet says if the ranks' options differ, if they train on the same rows, and where a gradient is not
finite."""

from __future__ import annotations

import numpy as np
import pytest
from support.step_checks import CHANGES_AT, STEPS, batch, heard, rate
from support.world import World, WorldPool

mx = pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

import horovod.mxnet as hvd


def train(same: bool, with_trainer: bool, odd: int = -1) -> None:
    """odd: the step in which rank 1 has a gradient that is not finite."""
    weight = mx.gluon.Parameter("weight", shape=(4, 1), init=mx.init.One())
    weight.initialize()
    own = mx.optimizer.SGD(learning_rate=0.0625, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(own)
    trainer = hvd.DistributedTrainer([weight], own) if with_trainer else None
    state = optimizer.create_state(0, weight.data())
    for step in range(STEPS):
        own.lr = rate(step, hvd.rank())
        inputs, targets = map(mx.nd.array, batch(step, hvd.rank(), same))
        factor = np.inf if step == odd and hvd.rank() == 1 else 1.0
        with mx.autograd.record():
            loss = ((mx.nd.dot(inputs, weight.data()) - targets) ** 2).mean() * factor
        loss.backward()
        if trainer is not None:
            trainer.step(1)
        else:
            optimizer.update([0], [weight.data()], [weight.grad()], [state])


@pytest.mark.parametrize("with_trainer", [True, False])
def test_options_and_rows_are_compared(worlds: WorldPool, with_trainer: bool) -> None:
    def run() -> list[list[str]]:
        hvd.init()
        return [sorted(heard(lambda same=same: train(same, with_trainer))) for same in (True, False)]

    label = "the trainer" if with_trainer else "DistributedOptimizer"
    differ = f"{CHANGES_AT + 1}, {label}, the ranks differ in `learning_rate`: 0.0625 on rank 0, 0.03125 on rank 1"
    first, second = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run)
    assert (first, second) == ([[differ, "same rows"], [differ]], [[], []])


def test_a_gradient_that_is_not_finite_is_named(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        return [text for text in heard(lambda: train(False, True, odd=9)) if "finite" in text]

    world: World = worlds(2, {"HOROVOD_TRANSPORT": "shm", "HOROVOD_FINITE_CHECK": "warn"})
    named = "10, the trainer, on rank 1 the gradient of `gradient.0` is not finite"
    assert world.run(run) == [[named], []]
