# SPDX-License-Identifier: Apache-2.0
"""What JAX makes of the operations: derivatives of all kinds, and vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support.world import World

jax = pytest.importorskip("jax", reason="not run: jax is not installed")

import jax.numpy as jnp

import horovod.jax as hvd
from horovod.jax import shim

# name: (a function of (hvd, x) whose gradient is taken, by rank the gradient at x = [1, 2, 3, 4] * (rank + 1))
GRADIENTS: dict[str, tuple[Callable[[Any, Any], Any], list[list[float]]]] = {
    "sum": (lambda hvd, x: (hvd.allreduce(x, op=hvd.Sum) * (hvd.rank() + 1)).sum(), [[3.0] * 4] * 2),
    "average": (lambda hvd, x: (hvd.allreduce(x, name="a") * (hvd.rank() + 1)).sum(), [[1.5] * 4] * 2),
    "scaled": (
        lambda hvd, x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).sum(),
        [[1.0] * 4] * 2,
    ),
    "grouped": (
        lambda hvd, x: sum(each.sum() for each in hvd.grouped_allreduce([x, x * x])),
        [[3, 5, 7, 9], [4, 6, 8, 10]],
    ),
    "allgather": (lambda hvd, x: (hvd.allgather(x) ** 2).sum(), [[2.0, 4.0, 6.0, 8.0], [4.0, 8.0, 12.0, 16.0]]),
    "broadcast": (lambda hvd, x: (hvd.broadcast(x, 1) * (hvd.rank() + 1)).sum(), [[0.0] * 4, [1.5] * 4]),
    "alltoall": (lambda hvd, x: (hvd.alltoall(x) ** 2).sum(), [[2.0, 4.0, 6.0, 8.0], [4.0, 8.0, 12.0, 16.0]]),
    "reducescatter": (
        lambda hvd, x: (hvd.reducescatter(x, op=hvd.Sum) * (hvd.rank() + 1)).sum(),
        [[2.0, 2.0, 4.0, 4.0]] * 2,
    ),
    "uneven": (lambda hvd, x: (hvd.reducescatter(x[:3]) * (hvd.rank() + 1)).sum(), [[1.0, 1.0, 2.0, 0.0]] * 2),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_are_those_of_the_other_frameworks(world: World, case: str) -> None:
    def run(function: Any) -> list[list[float]]:
        x = jnp.arange(1.0, 5.0) * (hvd.rank() + 1)
        gradient = jax.grad(lambda x: function(hvd, x))
        ways = [gradient, jax.jit(gradient), jax.grad(jax.jit(lambda x: function(hvd, x)))]
        ways.append(jax.jit(jax.grad(jax.checkpoint(lambda x: function(hvd, x)))))
        return [way(x).tolist() for way in ways]

    function, expected = GRADIENTS[case]
    if case == "grouped":
        expected = [[1 + 2 * value * rank for value in range(1, 5)] for rank in (1, 2)]
    for rank, seen in enumerate(world.run(run, function)):
        assert seen == [expected[rank]] * 4


@pytest.mark.slow("compiles with XLA")
def test_derivatives_in_forward_mode_and_of_derivatives(world: World) -> None:
    def run() -> None:
        x = jnp.arange(3.0) + hvd.rank()
        for function in (hvd.allreduce, jax.jit(hvd.allreduce)):
            value, tangent = jax.jvp(function, (x,), (2 * x,))
            assert value.tolist() == [0.5, 1.5, 2.5] and tangent.tolist() == [1.0, 3.0, 5.0]
        square = lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum()  # noqa: E731
        for hessian in (jax.hessian(square), jax.jit(jax.jacrev(jax.grad(square)))):
            # The derivative of an allreduce is an allreduce: of two ranks' equal terms.
            assert jnp.diagonal(hessian(x)).tolist() in ([4.0] * 3, [8.0] * 3)
        repeated = lambda x: jax.lax.scan(lambda c, _: (hvd.allreduce(c) * 2, None), x, length=3)[0].sum()  # noqa: E731
        assert jax.jit(jax.grad(repeated))(x).tolist() == [8.0] * 3
        tree = jax.grad(lambda x: sum(each.sum() for each in hvd.allreduce([x, x * x], op=hvd.Sum)))(x)
        assert tree.tolist() == [2 + 2 * 2 * value for value in x.tolist()]
        mixed = jax.grad(lambda x, n: hvd.grouped_allreduce([x, n], op=hvd.Sum)[0].sum())
        assert mixed(x, jnp.arange(3)).tolist() == [2.0] * 3, "integers have no gradient"

    world.run(run)


def test_a_mapped_operation_is_one_operation_of_the_batch(world: World) -> None:
    def run() -> None:
        rank = hvd.rank()
        x = jnp.arange(12.0).reshape(3, 4) + 100 * rank
        both = jnp.concatenate([x - 100 * rank, x - 100 * rank + 100])
        for way in (lambda f: f, jax.jit):
            assert (way(jax.vmap(hvd.allreduce))(x) == x - 100 * rank + 50).all()
            assert (way(jax.vmap(lambda row: hvd.broadcast(row, 1)))(x) == x - 100 * rank + 100).all()
            assert (way(jax.vmap(hvd.allgather, in_axes=1, out_axes=1))(x) == both).all()
            sent = way(jax.vmap(hvd.alltoall))(x)
            assert (
                sent == jnp.concatenate([both[:3, 2 * rank : 2 * rank + 2], both[3:, 2 * rank : 2 * rank + 2]], 1)
            ).all()
            rows = way(jax.vmap(hvd.reducescatter))(x)
            assert (rows == (x - 100 * rank + 50)[:, 2 * rank : 2 * rank + 2]).all()
            pair = way(jax.vmap(lambda row, all_rows: hvd.grouped_allreduce([row, all_rows]), in_axes=(0, None)))(
                x, x[0]
            )
            assert pair[0].shape == (3, 4) and pair[1].shape == (3, 4) and (pair[1][2] == x[0] - 100 * rank + 50).all()
        before = shim.calls()
        jax.block_until_ready(jax.jit(jax.vmap(jax.vmap(hvd.allreduce)))(x))
        assert shim.calls() - before == 1
        per_example = jax.vmap(jax.grad(lambda w, row: (hvd.allreduce(row * w) ** 2).sum()), in_axes=(None, 0))
        assert per_example(1.0, x).shape == (3,)
        with pytest.raises(NotImplementedError, match="Adasum cannot be mapped by jax.vmap"):
            jax.vmap(lambda row: hvd.allreduce(row, op=hvd.Adasum))(x)
        hvd.barrier()

    world.run(run)


def test_complex_arrays_have_derivatives_and_travel_in_compiled_functions(world: World) -> None:
    def run() -> list[list[complex]]:
        rank = hvd.rank()
        x = jnp.array([1.0 + 2.0j])
        calls: list[Any] = [
            lambda y: hvd.allreduce(y, op=hvd.Sum),
            hvd.allgather,
            hvd.alltoall,
            lambda y: hvd.broadcast(y, 1),
        ]

        def loss(x: Any, call: Any) -> Any:
            return (jnp.abs(call(jnp.tile(x, 2) * (rank + 1))) ** 2).sum()

        seen = [jax.jit(jax.grad(loss), static_argnums=1)(x, call) for call in calls]
        seen.append(jax.jit(hvd.grad(lambda x: (jnp.abs(x) ** 2).sum() * (rank + 1)))(x))
        with pytest.raises(NotImplementedError, match="complex tensors: expected op Average or Sum, got op=Max"):
            jax.jit(lambda x: hvd.allreduce(x, op=hvd.Max))(x)
        return [each.tolist() for each in seen]

    conjugate = 1 - 2j  # JAX's convention
    for rank, seen in enumerate(world.run(run)):
        factors = [24.0 * (rank + 1), 4.0 * (rank + 1) ** 2, 4.0 * (rank + 1) ** 2, 16.0 * rank, 3.0]
        assert seen == [[pytest.approx(factor * conjugate)] for factor in factors]


def test_parameters_that_differ_are_named_before_the_first_step_outside_of_jit(world: World) -> None:
    def run() -> str:
        import optax

        params = {"w": jnp.full(3, float(hvd.rank()))}
        transform = hvd.DistributedGradientTransformation(optax.sgd(0.1), name="differing")
        state = transform.init(params)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            transform.update({"w": jnp.ones(3)}, state, params)
        return " ".join(str(one.message) for one in caught)  # of this world's other tests, too

    first, *others = world.run(run)
    assert "before step 1 of differing, the ranks differ in `['w']`; rank 0 is unlike rank 1" in first
    assert not any("the ranks differ" in text for text in others)
