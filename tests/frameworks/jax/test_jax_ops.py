# SPDX-License-Identifier: Apache-2.0
"""What only JAX has: pytrees, keys of jax.random, and compiled functions that outlive a world or a set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV, init_of, jax_world
from support.world import World, WorldPool

jax = pytest.importorskip("jax", reason="not run: jax is not installed")

import jax.numpy as jnp

import horovod.jax as hvd
from horovod.jax import shim


@pytest.fixture(scope="module")
def narrow(worlds: WorldPool) -> World:
    """As JAX is by default: without 64 bits."""
    return worlds(2, {**TENSORFLOW_ENV, "KERAS_BACKEND": "jax"}, init_of("jax"))


def in_both_ways(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function gives at once, and compiled, as NumPy's arrays."""
    return [jax.tree_util.tree_map(np.asarray, each(*arguments)) for each in (function, jax.jit(function))]


@pytest.mark.parametrize("name", [None, "tree"])
def test_a_pytree_is_reduced_gathered_and_copied_leaf_by_leaf(world: World, name: str | None) -> None:
    def run(name: str | None) -> None:
        rank = hvd.rank()
        tree = {"a": jnp.arange(4.0) + rank, "b": [jnp.full((2, 2), rank), 3.0], "c": None}
        for seen in in_both_ways(lambda tree: hvd.allreduce(tree, op=hvd.Sum, name=name), tree):
            assert seen["a"].tolist() == [1.0, 3.0, 5.0, 7.0] and seen["b"][1] == 6.0 and seen["c"] is None
            assert seen["b"][0].tolist() == [[1, 1], [1, 1]] and seen["b"][0].dtype == np.dtype("int64")
        for seen in in_both_ways(lambda tree: hvd.broadcast(tree, 1, name=name), tree):
            assert seen["a"].tolist() == [1.0, 2.0, 3.0, 4.0] and seen["b"][0].tolist() == [[1, 1], [1, 1]]
        rows = {"a": tree["a"], "b": (tree["b"][0],)}
        for seen in in_both_ways(lambda tree: hvd.allgather(tree, name=name), rows):
            assert seen["a"].tolist() == [0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0]
            assert seen["b"][0].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
        for seen in in_both_ways(lambda tree: hvd.reducescatter(tree, op=hvd.Sum, name=name), rows):
            assert seen["a"].tolist() == [[1.0, 3.0], [5.0, 7.0]][rank] and seen["b"][0].tolist() == [[1, 1]]
        for seen in in_both_ways(lambda trees: hvd.grouped_allreduce(trees, name=name), [tree, jnp.ones(2)]):
            assert isinstance(seen, list) and seen[0]["b"][1] == 3.0 and seen[1].tolist() == [1.0, 1.0]
        handle = hvd.allreduce_async(tree, op=hvd.Sum, name=name)
        assert hvd.synchronize(handle)["a"].tolist() == [1.0, 3.0, 5.0, 7.0]
        half = hvd.allreduce(tree, compression=hvd.Compression.fp16, name=name)
        assert half["a"].dtype == tree["a"].dtype and half["a"].tolist() == [0.5, 1.5, 2.5, 3.5]

    world.run(run, name)


@pytest.mark.slow("compiles with XLA")
def test_an_empty_pytree_is_refused_and_several_tensors_where_one_is_meant(world: World) -> None:
    def run() -> None:
        from jax.experimental import sparse

        for call in (hvd.allreduce, hvd.allgather):
            with pytest.raises(ValueError, match="at least one tensor, got an empty"):
                call({})
            with pytest.raises(ValueError, match="at least one tensor, got an empty"):
                jax.jit(lambda call=call: call({}))()
        with pytest.raises(TypeError, match="alltoall takes one tensor"):
            hvd.alltoall([jax.numpy.ones(2)] * 2)
        matrix = sparse.BCOO.fromdense(jax.numpy.eye(2) * (hvd.rank() + 1))
        for call in (hvd.allreduce, hvd.allgather, jax.jit(hvd.allreduce)):
            with pytest.raises(TypeError, match=r"got BCOO\nhint: call .todense"):
                call(matrix)
        assert hvd.broadcast(matrix, 1).todense().tolist() == [[2.0, 0.0], [0.0, 2.0]]
        hvd.barrier()

    world.run(run)


def test_keys_and_unsigned_integers_are_moved(world: World) -> None:
    def run() -> None:
        rank = hvd.rank()
        given = {"key": jax.random.key(rank + 5), "wide": jnp.full(3, 2**63 + rank, jnp.uint64)}
        given |= {name: jnp.full(2, rank + 1, name) for name in ("uint16", "uint32")}
        expected = jax.random.key_data(jax.random.key(6)).tolist()
        for copy in (hvd.broadcast, jax.jit(hvd.broadcast, static_argnums=1)):
            seen = copy(given, 1)
            assert jax.random.key_data(seen["key"]).tolist() == expected and seen["key"].dtype == given["key"].dtype
            assert seen["wide"].tolist() == [2**63 + 1] * 3 and seen["wide"].dtype == jnp.uint64
            assert [str(seen[name].dtype) for name in ("uint16", "uint32")] == ["uint16", "uint32"]
        for gather in (hvd.allgather, jax.jit(hvd.allgather)):
            keys = gather(jax.random.split(jax.random.key(rank), 2))
            assert keys.shape == (4,) and jax.random.normal(keys[3]).shape == ()
        assert hvd.alltoall(jnp.arange(2, dtype=jnp.uint32) + 10 * rank).tolist() == [rank, 10 + rank]

    world.run(run)


def test_without_64_bits_numbers_are_what_jax_makes_of_them(narrow: World) -> None:
    def run() -> None:
        assert jnp.asarray(1.0).dtype == jnp.float32
        wide = np.arange(3, dtype=np.float64)
        given = wide if hvd.rank() == 0 else jnp.asarray(wide)  # which meet, as both are float32
        for seen in in_both_ways(lambda given: hvd.allreduce(given, name="narrow"), given):
            assert seen.dtype == np.float32 and seen.tolist() == [0.0, 1.0, 2.0]
        assert hvd.allreduce(np.int64(3), op=hvd.Sum).dtype == jnp.int32
        rows, received = hvd.alltoall(jnp.arange(2), [1, 1])
        assert received.tolist() == [1, 1] and received.dtype == jnp.int32 and rows.tolist() == [hvd.rank()] * 2

    narrow.run(run)


def test_more_rows_than_numbers_of_32_bits_can_count_are_an_error(narrow: World) -> None:
    def run() -> list[int] | str:
        try:
            return list(hvd.alltoall(jnp.zeros((3 << 30, 0)), splits=[3 << 30, 0])[1].tolist())  # no bytes
        except ValueError as error:
            return str(error)

    counted, none = narrow.run(run)
    assert none == [0, 0] and "6442450944" not in counted
    assert "alltoall: 3221225472 rows came from one rank, and JAX has no integers of 64 bits" in counted


def test_large_results_are_not_copied_and_stay_as_they_are(world: World) -> None:
    def run() -> None:
        first = hvd.allreduce(jnp.ones(100_000), op=hvd.Sum, name="large")
        kept = first + 0
        for _ in range(5):
            hvd.allreduce(jnp.full(100_000, 7.0), op=hvd.Sum, name="large")
        assert (first == kept).all() and float(first[0]) == 2.0
        assert first.unsafe_buffer_pointer() % 64 == 0

    world.run(run)


# The job


def test_a_compiled_function_goes_on_in_the_next_generation() -> None:
    def run() -> list[Any]:
        hvd.init()
        total = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="total"))
        seen = [float(total(jnp.ones(1))[0]) for _ in range(3)]
        hvd.shutdown()
        with pytest.raises(jax.errors.JaxRuntimeError, match="was shut down"):
            total(jnp.ones(1))
        hvd.init()
        return [*seen, *[float(total(jnp.ones(1))[0]) for _ in range(3)]]

    with World(2, {**TENSORFLOW_ENV, "KERAS_BACKEND": "jax"}) as world:
        assert world.run(run) == [[2.0] * 6] * 2


@pytest.mark.parametrize("way", ["join", "uneven_data"])
def test_a_rank_joins_once_what_it_has_called_is_done(world: World, way: str) -> None:
    """JAX returns before a function has run."""

    def run(way: str) -> list[float]:
        @jax.jit
        def step(x: Any) -> Any:
            late = jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x)
            return hvd.allreduce_gradients([late * 0 + 1], op=hvd.Sum)[0]

        given = jnp.ones((300, 300))
        joined = hvd.uneven_data() if way == "uneven_data" else contextlib.nullcontext()
        with joined:
            results = [step(given) for _ in range(4)]
            if hvd.rank() == 0:  # which would be told what is wrong, or get zeros
                jax.block_until_ready(results)
        if way == "join":
            hvd.join()
        return [float(result.max()) for result in results]

    assert world.run(run, way) == [[2.0] * 4] * 2


def test_a_set_is_removed_once_what_was_called_is_done(worlds: WorldPool) -> None:
    def run() -> list[float]:
        hvd.init()
        pair = hvd.add_process_set([0, 1])

        @jax.jit
        def step(x: Any) -> Any:
            late = jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x)
            return hvd.allreduce(late * 0 + 1, op=hvd.Sum, process_set=pair)

        results = [step(jnp.ones((300, 300))) for _ in range(4)] if pair.included() else []
        hvd.remove_process_set(pair)
        return [float(result.max()) for result in results]

    world = jax_world(worlds, 3, HOROVOD_TRANSPORT="tcp", HOROVOD_DYNAMIC_PROCESS_SETS="1")
    assert world.run(run) == [[2.0] * 4] * 2 + [[]]


def test_sets_are_those_of_the_call(worlds: WorldPool) -> None:
    def run() -> list[Any]:
        hvd.init()
        first = hvd.add_process_set([0, 1])
        gather = jax.jit(lambda x: hvd.allgather(x, process_set=first))
        seen = gather(jnp.ones(2) * hvd.rank()).tolist() if first.included() else None
        hvd.barrier()
        hvd.remove_process_set(first)
        text = ""
        if hvd.rank() < 2:
            with pytest.raises(jax.errors.JaxRuntimeError, match="process set") as caught:
                gather(jnp.ones(2))
            text = str(caught.value)
        hvd.barrier()
        return [seen, text]

    world = jax_world(worlds, 3, HOROVOD_TRANSPORT="tcp", HOROVOD_DYNAMIC_PROCESS_SETS="1")
    results = world.run(run)
    assert [seen for seen, _ in results] == [[0.0, 0.0, 1.0, 1.0]] * 2 + [None]


def test_what_was_compiled_for_another_number_of_ranks_is_refused(worlds: WorldPool) -> None:
    def run() -> str:
        hvd.shutdown()  # the numbers of process sets begin anew
        hvd.init()
        large = hvd.add_process_set([1, 2])
        number, gather = large.process_set_id, None
        if large.included():
            gather = jax.jit(lambda x: hvd.allgather(x, process_set=large)).lower(jnp.zeros(1)).compile()
            assert gather(jnp.ones(1)).tolist() == [1.0] * 2
        hvd.barrier()
        hvd.shutdown()
        hvd.init()
        small = hvd.add_process_set([2])
        assert small.process_set_id == number
        text = ""
        if small.included():
            with pytest.raises(jax.errors.JaxRuntimeError) as caught:
                gather(jnp.ones(1))
            text = str(caught.value)
        hvd.barrier()
        hvd.remove_process_set(small)
        return text

    world = jax_world(worlds, 3, HOROVOD_TRANSPORT="tcp", HOROVOD_DYNAMIC_PROCESS_SETS="1")
    assert "compiled for rank 1 of 2, and this is rank 0 of 1" in world.run(run)[2]


def test_functions_are_compiled_again_in_a_world_of_another_size() -> None:
    def run() -> list[int]:
        hvd.init()
        gather = jax.jit(hvd.allgather)
        gather(jnp.ones(1))
        sizes = [gather._cache_size()]
        for earlier in (hvd.size(), hvd.size() + 1):
            hvd.shutdown()
            shim._world = (shim._world[0], earlier)  # as if it had been of that size
            hvd.init()
            sizes.append(gather._cache_size())
        return sizes

    with World(2, {**TENSORFLOW_ENV, "KERAS_BACKEND": "jax"}) as world:
        assert world.run(run) == [[1, 1, 0]] * 2
