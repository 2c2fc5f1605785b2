# SPDX-License-Identifier: Apache-2.0
"""What only JAX has: pytrees, compiled functions, derivatives, vmap, keys of jax.random, donated memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV, jax_world
from support.world import World, WorldPool

pytest.importorskip("jax", reason="not run: jax is not installed")


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return _started(jax_world(worlds))


@pytest.fixture(scope="module")
def narrow(worlds: WorldPool) -> World:
    """As JAX is by default: without 64 bits."""
    return _started(worlds(2, {**TENSORFLOW_ENV, "KERAS_BACKEND": "jax"}))


def _started(world: World) -> World:
    def start() -> None:
        import horovod.jax as hvd

        hvd.init()

    world.run(start)
    return world


def in_both_ways(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function gives at once, and compiled, as NumPy's arrays."""
    import jax
    import numpy as np

    return [jax.tree_util.tree_map(np.asarray, each(*arguments)) for each in (function, jax.jit(function))]


@pytest.mark.parametrize("name", [None, "tree"])
def test_a_pytree_is_reduced_gathered_and_copied_leaf_by_leaf(world: World, name: str | None) -> None:
    def run(name: str | None) -> None:
        import jax.numpy as jnp

        import horovod.jax as hvd

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


def test_an_empty_pytree_is_refused_and_several_tensors_where_one_is_meant(world: World) -> None:
    def run() -> None:
        import jax

        import horovod.jax as hvd

        for call in (hvd.allreduce, hvd.allgather):
            with pytest.raises(ValueError, match="at least one tensor, got an empty"):
                call({})
            with pytest.raises(ValueError, match="at least one tensor, got an empty"):
                jax.jit(lambda call=call: call({}))()
        with pytest.raises(TypeError, match="alltoall takes one tensor"):
            hvd.alltoall([jax.numpy.ones(2)] * 2)
        hvd.barrier()

    world.run(run)


def test_keys_and_unsigned_integers_are_moved(world: World) -> None:
    def run() -> None:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

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
        import jax.numpy as jnp
        import numpy as np

        import horovod.jax as hvd

        assert jnp.asarray(1.0).dtype == jnp.float32
        wide = np.arange(3, dtype=np.float64)
        given = wide if hvd.rank() == 0 else jnp.asarray(wide)  # which meet, as both are float32
        for seen in in_both_ways(lambda given: hvd.allreduce(given, name="narrow"), given):
            assert seen.dtype == np.float32 and seen.tolist() == [0.0, 1.0, 2.0]
        assert hvd.allreduce(np.int64(3), op=hvd.Sum).dtype == jnp.int32
        rows, received = hvd.alltoall(jnp.arange(2), [1, 1])
        assert received.tolist() == [1, 1] and received.dtype == jnp.int32 and rows.tolist() == [hvd.rank()] * 2

    narrow.run(run)


def test_large_results_are_not_copied_and_stay_as_they_are(world: World) -> None:
    def run() -> None:
        import jax.numpy as jnp

        import horovod.jax as hvd

        first = hvd.allreduce(jnp.ones(100_000), op=hvd.Sum, name="large")
        kept = first + 0
        for _ in range(5):
            hvd.allreduce(jnp.full(100_000, 7.0), op=hvd.Sum, name="large")
        assert (first == kept).all() and float(first[0]) == 2.0
        assert first.unsafe_buffer_pointer() % 64 == 0

    world.run(run)


# What a compiled function holds


def test_control_flow_runs_its_operations(world: World) -> None:
    def run() -> None:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        x = jnp.arange(3.0) + hvd.rank()
        seen, sums = jax.jit(lambda x: jax.lax.scan(lambda c, _: (hvd.allreduce(c) + 1, c.sum()), x, length=3))(x)
        assert seen.tolist() == [3.5, 4.5, 5.5] and sums[1:].tolist() == [7.5, 10.5]
        looped = jax.lax.while_loop(lambda c: c[1] < 4, lambda c: (hvd.allreduce(c[0], op=hvd.Sum), c[1] + 1), (x, 0))
        assert looped[0].tolist() == [8.0, 24.0, 40.0]
        chosen = jax.jit(lambda x: jax.lax.cond(x.sum() >= 0, hvd.allreduce, lambda x: x, x))(x)
        assert chosen.tolist() == [0.5, 1.5, 2.5]
        each = jax.vmap(lambda p, x: jax.lax.cond(p, hvd.allreduce, lambda x: x, x))
        assert each(jnp.array([True, False]), x[:2]).tolist() == [0.5, 1.0 + hvd.rank()]

    world.run(run)


def test_an_operation_runs_even_if_its_result_is_not_used(world: World) -> None:
    """On one rank alone: the others wait for it."""

    def run() -> int:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd
        from horovod.jax import shim

        def step(x: Any) -> Any:
            hvd.barrier()
            total = hvd.allreduce(x, name="used by rank 0", op=hvd.Sum)
            return total if hvd.rank() == 0 else x

        before = shim.calls()
        seen = jax.jit(step)(jnp.ones(2))
        assert seen.tolist() == [2.0 if hvd.rank() == 0 else 1.0] * 2
        hvd.barrier()
        return shim.calls() - before

    assert world.run(run) == [2, 2]


def test_calls_of_a_function_take_values_of_the_one_before(world: World) -> None:
    """So that XLA, which runs what is independent at one time and in any order, cannot start two of them."""

    def run() -> None:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd
        from horovod.jax.ops import reduced_for_use

        def gradients(*tensors: Any) -> list[Any]:
            return [reduced_for_use([each], f"gradient.{i}", hvd_how)[0] for i, each in enumerate(tensors)]

        hvd_how = (hvd.Sum, None, 1.0, 1.0, hvd.global_process_set)
        mixed = lambda a, b, c: [hvd.allreduce(a), *gradients(b, c), hvd.allgather(a)]  # noqa: E731
        for function, count in ((gradients, 3), (mixed, 4)):
            text = jax.jit(function).lower(*[jnp.ones(2)] * 3).as_text()
            lines = [line for line in text.splitlines() if "@horovod_collective" in line]
            assert len(lines) == count, text
            for before, line in zip(lines, lines[1:], strict=False):
                value, results = re.match(r"\s*(%\w+):(\d+) =", before).groups()
                assert f"{value}#{int(results) - 1}" in line, text

    world.run(run)


def test_independent_operations_do_not_wait_for_each_other_on_different_ranks(world: World) -> None:
    """Each depends on a computation that takes long on another rank; inner functions are called twice."""

    def run() -> None:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd
        from horovod.jax import shim

        rank = hvd.rank()
        inner = jax.jit(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum))
        reduced = jax.jit(lambda tensors: hvd.allreduce_gradients(tensors, op=hvd.Sum))

        def slow(x: Any, times: int) -> Any:
            return jax.lax.fori_loop(0, times, lambda _, y: jnp.tanh(y @ y), x)

        def step(x: Any) -> list[Any]:
            parts = [slow(x * (1 + i), 30 if (i + rank) % 2 else 1) for i in range(6)]
            results = [inner(jnp.full(3, float(i)) + 0 * part[0, 0]) for i, part in enumerate(parts)]
            others = [jnp.full(3, float(10 + i)) + 0 * slow(part, 2)[0, 0] for i, part in enumerate(parts)]
            twice = [reduced([jnp.full(3, float(20 + i)) + 0 * part[0, 0]])[0] for i, part in enumerate(parts[:2])]
            return [*results, *hvd.allreduce_gradients(others, groups=6, op=hvd.Sum), *twice]

        compiled = jax.jit(step)
        if not shim.has_tokens:  # before JAX 0.5
            with pytest.raises(NotImplementedError, match="needs JAX 0.5"):
                compiled(jnp.full((60, 60), 0.01))
            return
        for _ in range(20):
            seen = compiled(jnp.full((60, 60), 0.01))
            assert [float(each[0]) for each in seen] == [*range(0, 12, 2), *range(20, 32, 2), 40, 42]

    world.run(run, timeout_s=120)


def test_what_is_used_anyway_has_no_effect(world: World) -> None:
    """JAX starts functions with effects slowly."""

    def run() -> None:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd
        from horovod.jax import shim

        is_slow = (0, 5) <= jax.__version_info__ < (0, 6)  # which does not tell whether a function is an inner one
        tree = [jnp.ones(3)] * 40
        for function in (hvd.allreduce_gradients, lambda tree: hvd.allreduce_gradients(tree, groups=4)):
            assert bool(jax.make_jaxpr(function)(tree).effects) == is_slow
            inner = jax.jit(lambda tree, function=function: function(tree))
            twice = jax.make_jaxpr(lambda tree, inner=inner: (inner(tree), inner(tree)))(tree)
            assert bool(twice.effects) == shim.has_tokens
            step = lambda tree, function=function: jax.value_and_grad(lambda t: t[0].sum() ** 2)(function(tree))  # noqa: E731
            assert bool(jax.make_jaxpr(step)(tree).effects) == is_slow
        assert jax.make_jaxpr(hvd.allreduce)(tree).effects
        before = shim.calls()
        jax.block_until_ready(jax.jit(hvd.allreduce_gradients)(tree))
        assert shim.calls() - before == 1, "one call for all gradients of a step"

    world.run(run)


def test_donated_memory_is_used_again(world: World) -> None:
    def run() -> None:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        step = jax.jit(lambda p: hvd.allreduce_gradients([each + 1 for each in p]), donate_argnums=0)
        tensors = [jnp.full(1000, float(hvd.rank() + i)) for i in range(4)]
        places = {each.unsafe_buffer_pointer() for each in tensors}
        for _ in range(30):
            tensors = step(tensors)
        assert [float(each[0]) for each in tensors] == [30.5, 31.5, 32.5, 33.5]
        assert {each.unsafe_buffer_pointer() for each in tensors} == places

    world.run(run)


def test_shapes_that_need_all_ranks_are_those_of_this_rank(world: World) -> None:
    def run() -> list[str]:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        rank = hvd.rank()
        x = jnp.arange(6.0).reshape(3, 2) + 10 * rank
        assert jax.jit(hvd.allgather)(x).tolist() == [
            *jnp.arange(6.0).reshape(3, 2).tolist(),
            [10, 11],
            [12, 13],
            [14, 15],
        ]
        assert jax.jit(hvd.alltoall)(jnp.arange(4) + 10 * rank).tolist() == [[0, 1, 10, 11], [2, 3, 12, 13]][rank]
        assert jax.jit(hvd.reducescatter)(x).tolist() == [[[5, 6], [7, 8]], [[9, 10]]][rank]
        texts = []
        for wrong in (lambda: jax.jit(hvd.allgather)(x[: 1 + rank]), lambda: jax.jit(hvd.alltoall)(x[: 2 * rank])):
            with pytest.raises(jax.errors.JaxRuntimeError, match="a compiled function needs the same number") as caught:
                wrong()
            texts.append(str(caught.value))
        return texts

    for rank, (gathered, sent) in enumerate(world.run(run)):
        assert f"expected {1 + rank} as on this rank, got {2 - rank} from member {1 - rank}" in gathered
        assert f"expected {rank} as on this rank, got {1 - rank} from member {1 - rank}" in sent


WRONG = {
    "handle": (lambda hvd, x: hvd.allreduce_async(x), "with a handle cannot be traced"),
    "dtype": (lambda hvd, x: hvd.allreduce(x.astype("complex64")), "dtype complex64 is not supported: expected one of"),
    "op": (lambda hvd, x: hvd.allreduce(x, op=17, name="n"), "allreduce of `n`: op=17: expected one of"),
    "root": (lambda hvd, x: hvd.broadcast(x, 9), "root_rank=9: expected 0 to 1"),
    "scalar": (lambda hvd, x: hvd.allgather(x[0]), "expected at least one dimension, got a 0-d tensor"),
    "splits": (lambda hvd, x: hvd.alltoall(x, [1, 2]), "alltoall with splits cannot be part of a compiled function"),
    "trees": (lambda hvd, x: hvd.alltoall([x, x]), "alltoall takes one tensor"),
    "odd": (lambda hvd, x: hvd.alltoall(x), "expected a multiple of 2, got 3"),
    "text": (lambda hvd, x: hvd.allreduce("text"), "expected a jax.Array, or a pytree of such, got str"),
    "list": (lambda hvd, x: hvd.grouped_allreduce(x), "takes a list of tensors"),
    "compression": (lambda hvd, x: hvd.allreduce(x, compression="fp16"), "hint: hvd.Compression.fp16"),
    "bool": (lambda hvd, x: hvd.allreduce(x > 0), "a bool tensor has Min"),
    "parameters": (lambda hvd, x: hvd.broadcast_parameters(x), "cannot be part of a compiled function"),
    "max": (lambda hvd, x: _gradient_of_max(hvd, x), "allreduce with op=Max has no derivative"),
}


def _gradient_of_max(hvd: Any, x: Any) -> Any:
    import jax

    return jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(x)


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_compiled_says_so(world: World, case: str) -> None:
    def run(call: Any) -> str:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
            jax.jit(lambda x: call(hvd, x))(jnp.ones(3))
        assert jax.jit(hvd.allreduce)(jnp.ones(1)).tolist() == [1.0]
        return str(caught.value)

    call, expected = WRONG[case]
    for text in world.run(run, call):
        assert expected in text


# The job


def test_a_compiled_function_goes_on_in_the_next_generation() -> None:
    def run() -> list[Any]:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        hvd.init()
        total = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="total"))
        seen = [float(total(jnp.ones(1))[0]) for _ in range(3)]
        hvd.shutdown()
        with pytest.raises(jax.errors.JaxRuntimeError, match="has not been initialized"):
            total(jnp.ones(1))
        hvd.init()
        return [*seen, *[float(total(jnp.ones(1))[0]) for _ in range(3)]]

    with World(2, {**TENSORFLOW_ENV, "KERAS_BACKEND": "jax"}) as world:
        assert world.run(run) == [[2.0] * 6] * 2


def test_sets_are_those_of_the_call(worlds: WorldPool) -> None:
    def run() -> list[Any]:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

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
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        hvd.init()
        large = hvd.add_process_set([1, 2])
        number, gather = large.process_set_id, None
        if large.included():
            gather = jax.jit(lambda x: hvd.allgather(x, process_set=large)).lower(jnp.zeros(1)).compile()
            assert gather(jnp.ones(1)).tolist() == [1.0] * 2
        hvd.remove_process_set(large)
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
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd
        from horovod.jax import shim

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
