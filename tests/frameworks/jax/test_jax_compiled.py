# SPDX-License-Identifier: Apache-2.0
"""What compiled functions of JAX hold: operations in their order, in loops and inner functions, and wrong ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from support.frameworks import jax_world
from support.patience import be_late
from support.world import World, WorldPool

from horovod.core.telemetry.status import lost

jax = pytest.importorskip("jax", reason="not run: jax is not installed")

import jax.numpy as jnp

import horovod.jax as hvd
from horovod.jax import shim
from horovod.jax.ops import reduced_for_use


def test_control_flow_runs_its_operations(world: World) -> None:
    def run() -> None:
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


def test_a_late_rank_costs_what_compiled_functions_wait(world: World) -> None:
    """The handler waits for a moment only, and a thread of XLA for the rest."""

    def run() -> tuple[bool, float]:
        step = jax.jit(lambda x: hvd.allreduce(x, name="late") * 0.5)
        x = step(jnp.ones(100))
        x.block_until_ready()
        pids = hvd.allgather_object(os.getpid())
        before = lost(hvd.statistics()["arrivals"])
        for _ in range(20):
            if hvd.rank() == 1:
                be_late(0.02, pids)
            x = step(x).block_until_ready()
        after = hvd.statistics()["arrivals"]
        return after["framework_waits"], lost(after) - before

    (is_waited_for, waits_s), (_, late_s) = world.run(run)
    assert is_waited_for and waits_s > max(0.2, late_s)


def test_an_operation_runs_even_if_its_result_is_not_used(world: World) -> None:
    """On one rank alone: the others wait for it."""

    def run() -> int:
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

        reduced([jnp.ones(3)])  # JAX keeps what it has traced here, without its callers
        compiled = jax.jit(step)
        if not shim.has_tokens:  # before JAX 0.5
            with pytest.raises(NotImplementedError, match="needs JAX 0.5"):
                compiled(jnp.full((60, 60), 0.01))
            return
        for _ in range(20):
            seen = compiled(jnp.full((60, 60), 0.01))
            assert [float(each[0]) for each in seen] == [*range(0, 12, 2), *range(20, 32, 2), 40, 42]

    world.run(run)


def test_what_is_used_anyway_has_no_effect(world: World) -> None:
    """JAX starts functions with effects slowly."""

    def run() -> None:
        is_slow = (0, 5) <= jax.__version_info__ < (0, 6)  # which does not tell whether a function is an inner one
        tree = [jnp.ones(3)] * 40
        for function in (hvd.allreduce_gradients, lambda tree: hvd.allreduce_gradients(tree, groups=4)):
            assert bool(jax.make_jaxpr(function)(tree).effects) == is_slow
            inner = jax.jit(lambda tree, function=function: function(tree))
            twice = jax.make_jaxpr(lambda tree, inner=inner: (inner(tree), inner(tree)))(tree)
            assert bool(twice.effects) == shim.has_tokens
            loop = lambda tree, function=function: jax.lax.fori_loop(0, 2, lambda _, tree: function(tree), tree)  # noqa: E731
            assert bool(jax.make_jaxpr(loop)(tree).effects) == shim.has_tokens
            step = lambda tree, function=function: jax.value_and_grad(lambda t: t[0].sum() ** 2)(function(tree))  # noqa: E731
            assert bool(jax.make_jaxpr(step)(tree).effects) == is_slow
        assert jax.make_jaxpr(hvd.allreduce)(tree).effects
        before = shim.calls()
        jax.block_until_ready(jax.jit(hvd.allreduce_gradients)(tree))
        assert shim.calls() - before == 1, "one call for all gradients of a step"

    world.run(run)


# name: a function that calls another one, `inner`, which reduces gradients
CALLERS: dict[str, Callable[[Any, Any], Any]] = {
    "twice": lambda inner, x: inner(inner(x)),
    "side by side": lambda inner, x: (inner(x), inner(x + 1)),
    "through another": lambda inner, x: _compiled(lambda x: (inner(x), inner(x)))(x),
    "mapped": lambda inner, x: _vmap(inner)(x),
    "loop": lambda inner, x: _scan(inner, x),
}


def _compiled(function: Any) -> Any:
    return jax.jit(function)


def _vmap(function: Any) -> Any:
    return jax.vmap(lambda x: (function(x[None]), function(x[None])))


def _scan(function: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, _: (function(x), None), x, length=2)


@pytest.mark.parametrize("case", CALLERS)
def test_gradients_of_a_function_that_was_traced_alone_have_an_order_if_another_calls_it(
    world: World, case: str
) -> None:
    def run(caller: Any) -> None:
        inner = jax.jit(lambda x: hvd.allreduce_gradients([x])[0])
        x = jnp.ones(1)
        for _ in range(2):  # each of which JAX keeps
            inner(x)
            outer = jax.jit(lambda x: caller(inner, x))
            effects = outer.trace(x).jaxpr.effects
            assert (shim.ordered_effect in effects) == shim.has_tokens
            if shim.has_tokens:
                text = outer.lower(x).as_text()
                assert "!stablehlo.token" in text or "@horovod_collective" not in text, text
                jax.block_until_ready(outer(x))
        inner(x)  # still without

    world.run(run, CALLERS[case])


def test_donated_memory_is_used_again(world: World) -> None:
    def run() -> None:
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
    "dtype": (
        lambda hvd, x: hvd.allreduce(x.astype("float8_e5m2")),
        "dtype float8_e5m2 is not supported: expected one of",
    ),
    "op": (lambda hvd, x: hvd.allreduce(x, op=17, name="n"), "allreduce of `n`: op=17: expected one of"),
    "root": (lambda hvd, x: hvd.broadcast(x, 9), "root_rank=9: expected 0 to 1"),
    "scalar": (lambda hvd, x: hvd.allgather(x[0]), "expected at least one dimension, got a 0-d tensor"),
    "splits": (lambda hvd, x: hvd.alltoall(x, [1, 2]), "alltoall: with splits it cannot be part of a compiled"),
    "trees": (lambda hvd, x: hvd.alltoall([x, x]), "alltoall takes one tensor"),
    "odd": (lambda hvd, x: hvd.alltoall(x), "expected a multiple of 2, got 3"),
    "text": (lambda hvd, x: hvd.allreduce("text"), "expected a jax.Array, or a pytree of such, got str"),
    "list": (lambda hvd, x: hvd.grouped_allreduce(x), "takes a list of tensors"),
    "compression": (lambda hvd, x: hvd.allreduce(x, compression="fp16"), "hint: hvd.Compression.fp16"),
    "bool": (lambda hvd, x: hvd.allreduce(x > 0), "bool tensors: expected op Min"),
    "parameters": (lambda hvd, x: hvd.broadcast_parameters(x), "cannot be part of a compiled function"),
    "join": (lambda hvd, x: hvd.join(), "join cannot be part of a function that JAX compiles"),
    "removal": (
        lambda hvd, x: hvd.remove_process_set(hvd.global_process_set),
        "remove_process_set cannot be part of a function that JAX compiles",
    ),
    "uneven data": (lambda hvd, x: _uneven(hvd, x), "uneven_data cannot be part of a function that JAX compiles"),
    "max": (lambda hvd, x: _gradient_of_max(hvd, x), "allreduce: op=Max has no derivative"),
}


def _uneven(hvd: Any, x: Any) -> Any:
    with hvd.uneven_data():
        return x


def _gradient_of_max(hvd: Any, x: Any) -> Any:
    return jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(x)


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_compiled_says_so(world: World, case: str) -> None:
    def run(call: Any) -> str:
        with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
            jax.jit(lambda x: call(hvd, x))(jnp.ones(3))
        assert jax.jit(hvd.allreduce)(jnp.ones(1)).tolist() == [1.0]
        return str(caught.value)

    call, expected = WRONG[case]
    for text in world.run(run, call):
        assert expected in text


TREES = {
    "shape": (
        lambda rank, ones: {"first": ones((3, 4 + rank)), "last": ones(4)},
        r"rank 1: expected shape of tensor 1 of the group \[3, 4\], got \[3, 5\]",
        [r"tensor 1 is \['first'\]"] * 2,
    ),
    "key": (
        lambda rank, ones: {"layer": [ones(3)], ("same", "other")[rank]: ones(4)},
        r"rank 1: expected equal keys in the pytree, got others",
        [r"tensor 2 is \['same'\]", r"tensor 2 is \['other'\]"],
    ),
    "number": (
        lambda rank, ones: [ones(3)] * (2 + rank),
        r"rank 1: expected 2 gradients, got 3",
        [r"tensor 1 is \[0\], tensor 2 is \[1\]\n", r"tensor 2 is \[1\], tensor 3 is \[2\]\n"],
    ),
    "dtype": (
        lambda rank, ones: (ones(2), ones(3, ("float32", "float16")[rank])),
        r"rank 1: expected dtype of tensor 2 of the group float32, got float16",
        [r"tensor 2 is \[1\]"] * 2,
    ),
}


@pytest.mark.parametrize("case", TREES)
def test_ranks_whose_gradients_differ_are_told_by_the_keys_of_the_pytree(world: World, case: str) -> None:
    def run(make: Any) -> str:
        step = jax.jit(lambda tree: hvd.allreduce_gradients(tree, name="model"))
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(step(make(hvd.rank(), jnp.ones)))
        assert hvd.allreduce(jnp.ones(1)).tolist() == [1.0]
        return str(caught.value)

    make, expected, words = TREES[case]
    for text, keys in zip(world.run(run, make), words, strict=True):
        name = r"the ranks disagree about `grouped_allreduce.model/jit__lambda\S*\.0`"
        assert re.search(rf"FAILED_PRECONDITION: {name}; {expected}.*\non this rank, .*{keys}", text, re.DOTALL), text
        assert "\nhint: all ranks must build the same model" in text and text.count("hint:") == 1, text


def test_many_keys_are_compared_in_parts(world: World) -> None:
    def run() -> str:
        tree = {f"weight{number:03}": jnp.ones(1) for number in range(100)}
        if hvd.rank() == 1:
            tree["weight050x"] = tree.pop("weight050")
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(jax.jit(hvd.allreduce_gradients)(tree))
        tree = {f"weight{number}": jnp.ones(1) * number for number in range(100)}
        reduced = jax.jit(hvd.allreduce_gradients)(tree)
        assert all(value == tree[key] for key, value in reduced.items())
        return str(caught.value)

    for text in world.run(run):
        assert "tensor 51 is ['weight050" in text and "weight000" not in text and "weight099" not in text, text


def _of_inner_functions(hvd: Any, x: Any, op: Any) -> Any:
    inner = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="inner"))
    return jax.jit(lambda x: hvd.allreduce(inner(x), op=op))(x)


def _of_a_loop(hvd: Any, x: Any, op: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda _, x: hvd.allreduce(x, op=op), x)


def _of_a_gradient(hvd: Any, x: Any, op: Any) -> Any:
    return jax.grad(lambda x: hvd.allreduce(x, op=op).sum())(x)


# name: (a function that is wrong with op=17, what the peers are told)
WRONG_ON_ONE_RANK: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "named": (lambda hvd, x, op: hvd.allreduce(x, op=op, name="n"), "`allreduce.n`: op=17: expected one of"),
    "unnamed": (lambda hvd, x, op: hvd.allreduce(x, op=op), r"`allreduce.\S+\.0`: op=17"),
    "grouped": (lambda hvd, x, op: hvd.grouped_allreduce([x, x], op=op), r"`grouped_allreduce.\S+\.0`: op=17"),
    "second": (
        lambda hvd, x, op: hvd.allreduce(hvd.allgather(x), op=op, name="n"),
        r"`allgather.\S+\.0`: the compiled function also holds allreduce of `n`: op=17",
    ),
    "inner": (_of_inner_functions, "`allreduce.inner`: the compiled function also holds unnamed allreduce: op=17"),
    "loop": (_of_a_loop, r"`allreduce.\S+\.0`: op=17"),
    "gradient": (_of_a_gradient, r"`allreduce.\S+\.0`: op=17"),
    "compression": (
        lambda hvd, x, op: hvd.allreduce(x, compression="fp16" if op == 17 else hvd.Compression.none),
        "hint: hvd.Compression.fp16",
    ),
}


# Before JAX 0.6 a function does not know who calls it.
OLD = int(version("jax").split(".")[1]) < 6
WHERE = [case for case in WRONG_ON_ONE_RANK if not OLD or case not in ("inner", "loop")]


@pytest.mark.parametrize("case", WHERE)
def test_what_cannot_be_compiled_on_one_rank_fails_on_the_others(world: World, case: str) -> None:
    """They run the function, and wait for this rank in its first operation."""

    def run(call: Any) -> str:
        op = 17 if hvd.rank() == 1 else hvd.Sum
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
            jax.block_until_ready(jax.jit(lambda x: call(hvd, x, op))(jnp.ones(3)))
        assert hvd.allreduce(jnp.ones(1)).tolist() == [1.0]
        return str(caught.value)

    call, expected = WRONG_ON_ONE_RANK[case]
    told, own = world.run(run, call)
    assert re.search(f"rank 1 could not call .*{expected}", told, re.DOTALL), told
    assert own.startswith("rank 1: ")


@pytest.mark.slow("ranks of their own")
def test_an_exported_function_runs_after_init_alone(world: World, worlds: WorldPool) -> None:
    def save() -> bytes:
        from jax import export

        allowed = [export.DisabledSafetyCheck.custom_call(shim.TARGET)]
        function = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
        return bytes(export.export(function, disabled_checks=allowed)(jnp.ones(2)).serialize())

    def load(saved: bytes) -> list[Any]:
        from jax import export

        function, seen = export.deserialize(saved), []
        for _ in range(2):
            seen.append(function.call(jnp.ones(2) * (hvd.rank() + 1)).tolist())
            hvd.shutdown()
            hvd.init()
        return seen

    if not shim.has_tokens:
        pytest.skip("not run: this JAX exports no ordered effects")
    saved = world.run(save)[0]
    assert jax_world(worlds, LOADED="exported").run(load, saved) == [[[3.0, 3.0]] * 2] * 2
