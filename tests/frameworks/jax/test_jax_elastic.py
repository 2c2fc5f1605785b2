# SPDX-License-Identifier: Apache-2.0
"""JaxState, in worlds of real ranks that end and begin again."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from support.elastic.elastic_session import check_that_training_survives, trained
from support.frameworks import TENSORFLOW_ENV
from support.world import World, WorldPool

jax = pytest.importorskip("jax", reason="not run: jax is not installed")

import jax.numpy as jnp

import horovod.jax as hvd
from horovod.jax.elastic_state import JaxState


@pytest.fixture(scope="module")
def two(worlds: WorldPool) -> World:
    return worlds(2, TENSORFLOW_ENV)


def test_a_sync_gives_all_ranks_rank_0s_trees_whatever_theirs_are(two: World) -> None:
    def run() -> Any:
        import optax

        hvd.init()
        number = hvd.rank() + 1
        params = {"w": jnp.full((2, 3), number, jnp.bfloat16), "b": [jnp.zeros(number), None]}
        opt_state = optax.adam(0.1).init(params) if hvd.rank() == 0 else None  # it has one from a checkpoint
        state = JaxState(
            params,
            opt_state,
            key=jax.random.key(hvd.rank()),
            table={1: "a", "b": hvd.rank()},  # no tree: its keys cannot be sorted
            order=np.arange(number),
            epoch=hvd.rank(),
        )
        state.sync()
        assert isinstance(state.params["w"], jax.Array) and isinstance(state.order, np.ndarray)
        assert type(state.opt_state[0]).__name__ == "ScaleByAdamState"
        numbers = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf).tolist(), (state.params, state.opt_state))
        drawn = jax.random.uniform(state.key).item()
        return str(numbers), str(jax.tree_util.tree_structure(numbers)), drawn, state.table, state.order.tolist()

    first, second = two.run(run)
    assert first == second and first[3:] == ({1: "a", "b": 0}, [0])


def test_what_is_saved_outlives_a_step_that_donates_its_arrays(two: World) -> None:
    def run() -> list[list[float]]:
        hvd.init()
        step = jax.jit(lambda params: jax.tree_util.tree_map(lambda leaf: leaf + 1, params), donate_argnums=0)
        state = JaxState({"w": jnp.zeros(2)})
        seen = []
        for _ in range(2):
            state.params = step(state.params)
            state.params = step(state.params)
            state.restore()
            seen.append(state.params["w"].tolist())
        state.params = step(state.params)
        state.commit()
        state.params = step(state.params)
        state.restore()
        return [*seen, state.params["w"].tolist()]

    assert two.run(run) == [[[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]] * 2


@pytest.mark.slow("compiles with XLA")
def test_objects_of_nnx_keep_their_identity_and_their_own_random_streams(two: World) -> None:
    nnx = pytest.importorskip("flax.nnx", reason="not run: flax is not installed")
    del nnx

    def run() -> Any:
        import optax
        from flax import nnx

        hvd.init()
        model = nnx.Sequential(nnx.Linear(8, 8, rngs=nnx.Rngs(hvd.rank())), nnx.Dropout(0.5, rngs=nnx.Rngs(hvd.rank())))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1 * (hvd.rank() + 1), momentum=0.9), wrt=nnx.Param)
        takes_model = "model" in inspect.signature(optimizer.update).parameters  # since flax 0.11
        state = JaxState(model=model, optimizer=optimizer, epoch=0)
        state.sync()
        assert state.model is model and state.optimizer is optimizer and state.params is None

        def train() -> Any:
            gradients = nnx.grad(lambda model: model(jnp.ones((1, 8))).sum())(model)
            optimizer.update(*([model, gradients] if takes_model else [gradients]))
            return model(jnp.ones((1, 8))).tolist()

        weights = model.layers[0].kernel[...].tolist()
        first = train()
        state.restore()
        assert model.layers[0].kernel[...].tolist() == weights
        return weights, first, train()

    first, second = two.run(run)
    assert first[0] == second[0]
    assert [one[1] == one[2] for one in (first, second)] == [True, True], "the streams are restored, too"
    assert first[1] != second[1], "and each rank has dropped others"


@pytest.mark.slow("compiles with XLA")
def test_training_survives_losses_and_changes_and_ends_as_if_nothing_had_been(two: World) -> None:
    """A rank leaves while the other one waits in a compiled step, whose error is JAX's own."""

    def run(events: dict[int, str]) -> Any:
        import optax

        hvd.init()
        data = jnp.asarray(np.random.default_rng(hvd.rank()).standard_normal((10, 4)), jnp.float32)
        optimizer = hvd.DistributedGradientTransformation(optax.adam(0.1))
        params = {"w": jnp.full(4, float(hvd.rank()))}
        state = JaxState(params, optimizer.init(params), batch=0, loss=0.0)

        @jax.jit
        def step(params: Any, opt_state: Any, row: Any) -> Any:
            late = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ y), jnp.ones((200, 200)))  # JAX returns before
            row = row + 0 * late[0, :4]
            loss, gradients = jax.value_and_grad(lambda params: ((params["w"] * row).sum() - 1.0) ** 2)(params)
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, hvd.allreduce(loss)

        def train(batch: int) -> None:
            state.params, state.opt_state, state.loss = step(state.params, state.opt_state, data[batch])

        def numbers() -> Any:
            leaves = jax.tree_util.tree_leaves((state.params, state.opt_state, state.loss))
            return [leaf.tolist() for leaf in leaves]

        return trained(state, train, numbers, events)

    numbers = check_that_training_survives(two, run)
    assert numbers == [numbers[0]] * 4
