# SPDX-License-Identifier: Apache-2.0
"""horovod.jax says if the ranks' options differ, if they train on the same rows, and where a gradient is not finite."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.frameworks import TENSORFLOW_ENV
from support.step_checks import CHANGES_AT, STEPS, batch, heard, rate
from support.world import World, WorldPool

jax = pytest.importorskip("jax", reason="not run: jax is not installed")
optax = pytest.importorskip("optax", reason="not run: optax is not installed")
import jax.numpy as jnp

import horovod.jax as hvd
from horovod.gradients import step_check


def train(same: bool, is_compiled: bool, odd: int = -1, groups: int = 0) -> None:
    """odd: the step in which rank 1 has a gradient that is not finite."""
    inner = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0625)
    transform = hvd.DistributedGradientTransformation(inner, groups=groups)

    def loss(params: Any, inputs: Any, targets: Any, factor: Any) -> Any:
        return ((inputs @ params["w"] + params["b"] - targets) ** 2).mean() + params["b"].sum() * factor

    def step(params: Any, state: Any, *given: Any) -> Any:
        updates, state = transform.update(jax.grad(loss)(params, *given), state, params)
        return optax.apply_updates(params, updates), state

    if is_compiled:
        step = jax.jit(step)
    params = {"w": jnp.ones((4, 1)), "b": jnp.zeros(1)}
    state = transform.init(params)
    for number in range(STEPS):
        state.hyperparams["learning_rate"] = jnp.asarray(rate(number, hvd.rank()))
        factor = jnp.inf if number == odd and hvd.rank() == 1 else 0.0
        params, state = step(params, state, *batch(number, hvd.rank(), same), factor)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_options_and_rows_of_a_transformation_of_optax_are_compared(world: World, is_compiled: bool) -> None:
    def run(is_compiled: bool) -> list[list[str]]:
        same = heard(lambda: train(True, is_compiled))
        hvd.shutdown()  # counts anew
        hvd.init()
        return [same, heard(lambda: train(False, is_compiled, groups=2))]

    differ = (
        f"{CHANGES_AT + 1}, the optimizer, the ranks differ in `learning_rate`: 0.0625 on rank 0, 0.03125 on rank 1"
    )
    first, second = world.run(run, is_compiled)
    assert (first, second) == ([["same rows", differ], [differ]], [[], []])


@pytest.mark.slow("starts ranks with JAX")
def test_a_gradient_that_is_not_finite_is_named_in_a_compiled_step(worlds: WorldPool) -> None:
    def run(is_compiled: bool) -> list[str]:
        hvd.init()
        return [text for text in heard(lambda: train(False, is_compiled, odd=9)) if "finite" in text]

    world = worlds(2, {**TENSORFLOW_ENV, "HOROVOD_FINITE_CHECK": "warn", "HOROVOD_REPLICA_CHECK_STEPS": "0"})
    named = "10, the optimizer, on rank 1 the gradient of `['b']` is not finite"
    assert world.run(run, True) == [[named], []]
    world.run(hvd.shutdown)
    assert world.run(run, False) == [[named], []]


def test_ranks_with_other_options_and_numbers_of_steps_train_on(worlds: WorldPool) -> None:
    def run() -> tuple[list[str], list[str]]:
        hvd.init()
        told: list[str] = []
        logger = logging.getLogger("horovod")
        logger.setLevel(logging.INFO)
        logger.addFilter(lambda record: bool(told.append(record.getMessage())))
        step_check.ANSWER_TIMEOUT_S = 0.1
        more = {"momentum": 0.5} if hvd.rank() == 1 else {}
        transform = hvd.DistributedGradientTransformation(optax.inject_hyperparams(optax.sgd)(0.0625, **more))
        params = {"w": jnp.ones((4, 1))}
        state = transform.init(params)
        step = jax.jit(lambda given, state: transform.update(jax.grad(lambda p: (p["w"] ** 2).mean())(given), state))

        def work() -> None:
            for _ in range(140 if hvd.rank() == 0 else 3):
                step(params, state)
            hvd.join()
            for _ in range(3):
                jax.block_until_ready(step(params, state))

        return heard(work), [text for text in told if "no more checks" in text]

    differ = "1, the optimizer, the ranks differ in `momentum`: not there on rank 0, 0.5 on rank 1"
    assert worlds(2, TENSORFLOW_ENV).run(run) == [([differ], []), ([], [])]
