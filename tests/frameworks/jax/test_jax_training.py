# SPDX-License-Identifier: Apache-2.0
"""Training with horovod.jax: optax, gradients by themselves, start values, SyncBatchNorm; and Keras on JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.extent import later
from support.frameworks import TENSORFLOW_ENV
from support.keras_worlds import started
from support.world import World, WorldPool

jax = pytest.importorskip("jax", reason="not run: jax is not installed")
optax = pytest.importorskip("optax", reason="not run: optax is not installed")
import jax.numpy as jnp

import horovod.jax as hvd
from horovod.jax import shim


def loss_of(params: Any, inputs: Any, targets: Any) -> Any:
    hidden = jnp.tanh(inputs @ params["first"]["w"] + params["first"]["b"])
    return ((hidden @ params["last"]["w"] - targets) ** 2).mean()


def problem() -> tuple[Any, Any, Any]:
    """Parameters, inputs and targets, equal on all ranks."""
    random = np.random.default_rng(7)
    first = {"w": jnp.asarray(random.standard_normal((6, 5))), "b": jnp.zeros(5)}
    params = {"first": first, "last": {"w": jnp.asarray(random.standard_normal((5, 2)))}}
    inputs = random.standard_normal((64, 6))
    return params, inputs, np.stack([inputs.sum(1), inputs[:, 0]], 1)


def trained(transform: Any, rank: int, size: int, steps: int, is_compiled: bool) -> tuple[Any, list[float]]:
    """The parameters and losses after some steps with this rank's part of the batch."""
    params, inputs, targets = problem()
    mine = slice(rank * 64 // size, (rank + 1) * 64 // size)

    def step(params: Any, state: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(params, inputs[mine], targets[mine])
        updates, state = transform.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    if is_compiled:
        step = jax.jit(step, donate_argnums=(0, 1))
    state, losses = transform.init(params), []
    for _ in range(steps):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    return params, losses


OPTIONS: list[dict[str, Any]] = [
    {},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"compression": "bf16"},
    {"op": 1},
]
COMPILED = [(OPTIONS[0], True), *(later(options, True) for options in OPTIONS[1:])]
AT_ONCE = [(OPTIONS[0], False), *(later(options, False) for options in OPTIONS[1:])]


@pytest.mark.slow("compiles with XLA")
@pytest.mark.parametrize(("options", "is_compiled"), [*COMPILED, *AT_ONCE], ids=str)
def test_two_ranks_train_as_one_with_the_whole_batch(world: World, options: dict[str, Any], is_compiled: bool) -> None:
    def run(options: dict[str, Any], is_compiled: bool) -> tuple[bool, list[float]]:
        if "compression" in options:
            options = {"compression": getattr(hvd.Compression, options["compression"])}
        rate = 0.05 / (2 if options.get("op") == hvd.Sum else 1)  # the sum of two gradients is twice their average
        before, steps = shim.calls(), 25
        distributed = hvd.DistributedGradientTransformation(optax.sgd(rate, momentum=0.9), **options)
        params, losses = trained(distributed, hvd.rank(), hvd.size(), steps, is_compiled)
        assert shim.calls() - before == (steps * options.get("groups", 1) if is_compiled else 0)
        alone, lone_losses = trained(optax.sgd(0.05, momentum=0.9), 0, 1, steps, True)
        tolerance = 0.05 if options.get("compression") else 1e-9
        for mine, other in zip(jax.tree_util.tree_leaves(params), jax.tree_util.tree_leaves(alone), strict=True):
            assert jnp.allclose(mine, other, atol=tolerance)
            everybodys = hvd.allgather(mine[None])
            assert (everybodys == everybodys[:1]).all(), "to the bit"
        return np.allclose(hvd.allreduce(np.array(losses)), lone_losses, atol=tolerance), lone_losses

    for is_equal, losses in world.run(run, options, is_compiled):
        assert is_equal and losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("is_average", [False, True])
def test_passes_are_summed_and_reduced_once(world: World, is_average: bool) -> None:
    def run(is_average: bool) -> None:
        options = {"backward_passes_per_step": 3, "average_aggregated_gradients": is_average}
        transform = hvd.DistributedGradientTransformation(optax.sgd(1.0), **options)
        params = {"w": jnp.zeros(2)}
        update = jax.jit(transform.update)
        state, before = transform.init(params), shim.calls()
        for number in range(1, 7):
            updates, state = update({"w": jnp.full(2, float(number + 10 * hvd.rank()))}, state, params)
            total = {3: 6.0, 6: 15.0}.get(number)
            expected = 0.0 if total is None else -(total + 15.0) / (3 if is_average else 1)
            assert updates["w"].tolist() == [expected] * 2, number
        assert shim.calls() - before == 2

    world.run(run, is_average)


PASSES = {
    "optimizer_with_float32": ("bfloat16", "bfloat16", {"mu_dtype": "float32"}),
    "gradients_narrower": ("float32", "bfloat16", {}),
    "gradients_wider": ("bfloat16", "float32", {}),
    "one_dtype": ("bfloat16", "bfloat16", {}),
}


@pytest.mark.parametrize("case", PASSES)
@pytest.mark.parametrize("is_compiled", [True, later(False)])
def test_passes_are_summed_whatever_the_dtypes_of_gradients_and_updates(
    world: World, case: str, is_compiled: bool
) -> None:
    def run(params_dtype: str, gradient_dtype: str, options: dict[str, Any], is_compiled: bool) -> None:
        optimizer = optax.adam(1.0, **options)
        transform = hvd.DistributedGradientTransformation(optimizer, backward_passes_per_step=2)
        params, gradient = jnp.ones(3, params_dtype), jnp.full(3, 1.0 + 2 * hvd.rank(), gradient_dtype)
        update = jax.jit(transform.update) if is_compiled else transform.update
        state, expected_state = transform.init(params), optimizer.init(params)
        for _ in range(2):
            nothing, state = update(gradient, state, params)
            updates, state = update(gradient, state, params)
            whole = jnp.full(3, 4.0, jnp.promote_types(params_dtype, gradient_dtype))  # two passes, the ranks' average
            expected, expected_state = optimizer.update(whole, expected_state, params)
            assert nothing.dtype == updates.dtype == expected.dtype and nothing.tolist() == [0.0] * 3
            assert jnp.allclose(updates, expected, rtol=1e-2)

    world.run(run, *PASSES[case], is_compiled)


def test_passes_leave_the_gradients_of_integers_alone(world: World) -> None:
    def run() -> None:
        params = {"w": jnp.ones(2), "n": jnp.arange(2)}
        optimizer = optax.masked(optax.sgd(1.0), {"w": True, "n": False})
        transform = hvd.DistributedGradientTransformation(optimizer, backward_passes_per_step=2)
        gradients = jax.grad(lambda params: (params["w"] * (hvd.rank() + 1)).sum(), allow_int=True)(params)
        state = transform.init(params)
        for expected in (0.0, -3.0):
            updates, state = jax.jit(transform.update)(gradients, state, params)
            assert updates["w"].tolist() == [expected] * 2 and updates["n"].dtype == jax.dtypes.float0

    world.run(run)


def test_adasum_combines_the_updates(world: World) -> None:
    def run() -> list[Any]:
        transform = hvd.DistributedGradientTransformation(optax.sgd(0.5), op=hvd.Adasum)
        params = jnp.zeros(2)
        apart = jnp.array([[2.0, 0.0], [0.0, 4.0]])[hvd.rank()]
        alike = jnp.array([2.0, 2.0])
        return [transform.update(each, transform.init(params), params)[0].tolist() for each in (apart, alike)]

    # Orthogonal steps are added, equal ones averaged.
    assert world.run(run) == [[[-1.0, -2.0], [-1.0, -1.0]]] * 2


def test_gradients_may_be_pythons_numbers(world: World) -> None:
    """A derivative that is written by hand often gives some."""

    def run() -> None:
        gradients = {"scale": 2.0 + hvd.rank(), "steps": 4}
        for reduce in (hvd.allreduce_gradients, lambda _: jax.jit(lambda: hvd.allreduce_gradients(gradients))()):
            reduced = reduce(gradients)
            assert float(reduced["scale"]) == 2.5 and reduced["steps"].tolist() == 4

    world.run(run)


def test_gradients_by_themselves(world: World) -> None:
    def run() -> None:
        rank = hvd.rank()
        function = lambda w, k: ((w["a"] * (rank + 1)).sum() + 0.0 * k, "aux")  # noqa: E731
        w = {"a": jnp.arange(3.0), "n": jnp.arange(2)}
        for way in (lambda f: f, jax.jit):
            one = way(lambda w: hvd.value_and_grad(lambda w: function(w, 1.0)[0])({"a": w}))(w["a"])
            assert float(one[0]) == 3.0 * (rank + 1) and one[1]["a"].tolist() == [1.5] * 3
            total = way(lambda w: hvd.grad(lambda w: function(w, 1.0)[0], op=hvd.Sum)({"a": w}))(w["a"])
            assert total["a"].tolist() == [3.0] * 3
        (value, aux), (first, second) = hvd.value_and_grad(function, argnums=(0, 1), has_aux=True)({"a": w["a"]}, 2.0)
        assert aux == "aux" and first["a"].tolist() == [1.5] * 3 and float(second) == 0.0
        gradients, aux = hvd.grad(function, has_aux=True)({"a": w["a"]}, 2.0)
        assert aux == "aux" and gradients["a"].tolist() == [1.5] * 3
        # The gradients of integers hold nothing.
        mixed = jax.grad(lambda w: w["a"].sum() * (rank + 1), allow_int=True)(w)
        assert hvd.allreduce_gradients(mixed)["n"].dtype == jax.dtypes.float0
        assert hvd.allreduce_gradients(mixed)["a"].tolist() == [1.5] * 3
        assert hvd.allreduce_gradients({}) == {} and hvd.allreduce_gradients({"none": None}) == {"none": None}

    world.run(run)


def test_start_values_are_those_of_the_root(world: World) -> None:
    def run() -> list[str]:
        rank = hvd.rank()
        params = {
            "w": jnp.full((2, 3), float(rank)),
            "key": jax.random.key(rank),
            "half": jnp.ones(2, jnp.bfloat16) * rank,
        }
        params |= {"step": rank, "name": f"rank {rank}", "nothing": None, "host": np.full(2, rank)}
        seen = hvd.broadcast_parameters(params, 1)
        assert seen["w"].tolist() == [[1.0] * 3] * 2 and seen["half"].dtype == jnp.bfloat16
        assert (seen["step"], seen["name"], seen["nothing"]) == (1, "rank 1", None) and seen["host"].tolist() == [1, 1]
        assert jax.random.key_data(seen["key"]).tolist() == jax.random.key_data(jax.random.key(1)).tolist()
        state = optax.adam(0.1 * (rank + 1)).init({"w": params["w"]})
        state = hvd.broadcast_optimizer_state(state, root_rank=0)
        assert jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(
            optax.adam(0.1).init({"w": params["w"]})
        )
        texts = []
        for tree in ({"w": jnp.ones(2 + rank)}, {"a": {"b": 1.0}} if rank else {"a": [jnp.ones(1)]}):
            with pytest.raises(hvd.HorovodInternalError) as caught:
                hvd.broadcast_parameters(tree)
            texts.append(str(caught.value))
        return texts

    for shape, keys in world.run(run):
        assert "`broadcast.broadcast_parameters['w']`; rank 1: expected shape [2], got [3]" in shape
        assert "['a'][0]`, which rank 0 has, and rank 0 lacks " in keys and "['a']['b'] (no tensor)" in keys, keys


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": [[1]]}, "expected a number of groups"),
        ({"backward_passes_per_step": 0}, "expected a whole number, 1 or more"),
        ({"op": 9}, "op=9: expected one of"),
        ({"compression": "fp16"}, "hint: hvd.Compression.fp16"),
        ({"gradient_predivide_factor": 2.0, "op": 1}, "is for op=Average only"),
        ({"process_set": [0]}, "expected a ProcessSet"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(world: World, options: dict[str, Any], text: str) -> None:
    def run(options: dict[str, Any]) -> str:
        with pytest.raises(ValueError) as caught:
            hvd.DistributedGradientTransformation(optax.sgd(0.1), **options)
        with pytest.raises(TypeError, match="expected an optax.GradientTransformation, got 3"):
            hvd.DistributedGradientTransformation(3)
        return str(caught.value)

    assert all(text in seen for seen in world.run(run, options))


def test_a_set_that_is_not_registered_is_refused(world: World) -> None:
    pytest.importorskip("flax", reason="not run: flax is not installed")

    def run() -> None:
        with pytest.raises(ValueError, match="is not registered"):
            hvd.allreduce_gradients({"w": jnp.ones(2)}, process_set=hvd.ProcessSet([]))
        layer = hvd.SyncBatchNorm(use_running_average=False, process_set=hvd.ProcessSet([0, 1]))
        with pytest.raises(ValueError, match="is not registered"):
            layer.init_with_output(jax.random.key(0), jnp.ones((3, 2)))
            layer.apply(layer.init(jax.random.key(0), jnp.ones((3, 2))), jnp.ones((3, 2)), mutable=["batch_stats"])

    world.run(run)


@pytest.mark.slow("compiles with XLA")
@pytest.mark.parametrize("is_compiled", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_batches_are_normalized_as_if_they_were_one(world: World, is_compiled: bool) -> None:
    pytest.importorskip("flax", reason="not run: flax is not installed")

    def run(is_compiled: bool) -> None:
        import flax.linen as nn

        random = np.random.default_rng(3)
        whole = random.standard_normal((10, 4, 3)) * [1.0, 20.0, 0.1] + [0.0, 100.0, -1e4]
        weights = random.standard_normal((10, 4, 3))
        rows = slice(0, 3) if hvd.rank() == 0 else slice(3, 10)  # uneven
        way = jax.jit if is_compiled else (lambda function: function)

        def results(layer: Any, inputs: Any, weights: Any) -> Any:
            variables = layer.init(jax.random.key(0), inputs)
            variables["params"]["scale"] = jnp.array([1.0, 2.0, 3.0])

            def loss(params: Any, inputs: Any) -> Any:
                given = {"params": params, "batch_stats": variables["batch_stats"]}
                output, changed = layer.apply(given, inputs, mutable=["batch_stats"])
                return (output * weights).sum(), (output, changed["batch_stats"])

            return way(jax.grad(loss, argnums=(0, 1), has_aux=True))(variables["params"], inputs)

        layer = hvd.SyncBatchNorm(use_running_average=False, momentum=0.9)
        (mine, to_input), (output, statistics) = results(layer, whole[rows], weights[rows])
        alone = nn.BatchNorm(use_running_average=False, momentum=0.9, use_fast_variance=False)
        (expected, expected_input), (expected_output, expected_statistics) = results(alone, whole, weights)
        assert jnp.allclose(output, expected_output[rows], atol=1e-6)
        assert jnp.allclose(to_input, expected_input[rows], atol=1e-6)
        for name in ("scale", "bias"):
            assert jnp.allclose(hvd.allreduce(mine[name], op=hvd.Sum), expected[name], atol=1e-6)
        for name in ("mean", "var"):
            assert statistics[name].dtype == jnp.float32
            assert jnp.allclose(statistics[name], expected_statistics[name], rtol=1e-5)
        calm = {"params": {"scale": jnp.ones(3), "bias": jnp.zeros(3)}, "batch_stats": statistics}
        local = layer.copy(use_running_average=True).apply(calm, whole[:2])  # asks nobody
        assert local.shape == (2, 4, 3)
        with pytest.raises(ValueError, match="expected a floating-point input, got int"):
            layer.init(jax.random.key(0), jnp.arange(6).reshape(2, 3))

    world.run(run, is_compiled)


@pytest.mark.slow("compiles with XLA")
def test_batches_are_normalized_by_the_layer_for_nnx(world: World) -> None:
    pytest.importorskip("flax", reason="not run: flax is not installed")

    def run() -> None:
        from flax import nnx

        whole = np.random.default_rng(3).standard_normal((10, 4, 3)) * [1.0, 20.0, 0.1] + [0.0, 100.0, -1e4]
        rows = slice(0, 3) if hvd.rank() == 0 else slice(3, 10)  # uneven

        @nnx.jit
        def step(layer: Any, inputs: Any) -> Any:
            def loss(layer: Any, inputs: Any) -> Any:
                output = layer(inputs)
                return (output**3).sum(), output

            return nnx.grad(loss, argnums=(0, 1), has_aux=True)(layer, inputs)

        options = {"momentum": 0.9, "rngs": nnx.Rngs(0)}
        mine = hvd.nnx.SyncBatchNorm(3, **options)
        alone = nnx.BatchNorm(3, use_fast_variance=False, **options)
        (own, to_input), output = step(mine, whole[rows])
        (expected, expected_input), expected_output = step(alone, whole)
        assert jnp.allclose(output, expected_output[rows], atol=1e-6)
        assert jnp.allclose(to_input, expected_input[rows], atol=1e-5)
        gradients = zip(jax.tree.leaves(own), jax.tree.leaves(expected), strict=True)
        for number, (gradient, of_all) in enumerate(gradients):  # of scale and bias
            assert jnp.allclose(hvd.allreduce(gradient, op=hvd.Sum, name=f"gradient.{number}"), of_all, atol=1e-5)
        assert number == 1
        for name in ("mean", "var"):
            assert jnp.allclose(getattr(mine, name)[...], getattr(alone, name)[...], rtol=1e-5)
            assert getattr(mine, name)[...].dtype == jnp.float32
        if hvd.rank() == 0:  # these ask nobody
            mine.eval()
            assert jnp.allclose(mine(whole[:2]), alone(whole[:2], use_running_average=True), atol=1e-6)
            mine.train()
            assert mine(whole[:2].astype(jnp.bfloat16), use_running_average=True).dtype == jnp.bfloat16
            with pytest.raises(ValueError, match="expected a floating-point input, got int"):
                mine(jnp.arange(6).reshape(2, 3))
            with pytest.raises(TypeError, match="SyncBatchNorm has no option axis_name"):
                hvd.nnx.SyncBatchNorm(3, axis_name="ranks", rngs=nnx.Rngs(0))

    world.run(run)


@pytest.mark.slow("compiles with XLA")
def test_keras_reduces_inside_of_its_compiled_step(worlds: WorldPool) -> None:
    def run() -> tuple[int, float]:
        import keras

        import horovod.keras as hvd

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
        random = np.random.default_rng(hvd.rank())
        inputs = random.standard_normal((40, 6))
        before = shim.calls()
        model.fit(inputs, inputs[:, :1], batch_size=10, epochs=3, verbose=0)
        return shim.calls() - before, float(sum(np.abs(weights).sum() for weights in model.get_weights()))

    results = started(worlds, "jax").run(run)
    assert [calls for calls, _ in results] == [12, 12], "one call a step"
    assert results[0] == results[1]


@pytest.mark.thorough
def test_frameworks_of_a_process_share_one_world(worlds: WorldPool) -> None:
    """PyTorch, TensorFlow and JAX in one job: one start, one order, one set of ranks.

    In the world of TensorFlow's tests: it takes longest to import.
    """
    pytest.importorskip("torch", reason="not run: torch is not installed")
    pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

    def run() -> dict[str, Any]:
        import horovod.torch as of_torch

        of_torch.init()
        import tensorflow as tf
        import torch

        import horovod.tensorflow as of_tensorflow

        rank = hvd.rank()
        hvd.init()  # the world that there is
        compiled = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="jax"))
        graph = tf.function(lambda x: of_tensorflow.allreduce(x, op=of_tensorflow.Sum, name="tensorflow"))
        seen = []
        for step in range(5):
            handle = of_torch.allreduce_async(torch.full((3,), float(rank + step)), name="torch", op=of_torch.Sum)
            jaxs, tensorflows = compiled(jnp.full(3, float(rank + step))), graph(tf.fill([3], float(rank + step)))
            seen.append([float(each[0]) for each in (of_torch.synchronize(handle), jaxs, tensorflows)])
        mixed = (
            hvd.allgather(jnp.full(1, rank), name="mixed")
            if rank
            else of_torch.allgather(torch.full((1,), rank, dtype=torch.int32), name="mixed")
        )  # ranks with different frameworks meet, too
        statistics = [module.statistics()["batches"] for module in (of_torch, of_tensorflow, hvd)]
        of_tensorflow.shutdown()
        return {
            "seen": seen,
            "mixed": mixed.tolist(),
            "one engine": len(set(statistics)) == 1,
            "initialized": [module.is_initialized() for module in (of_torch, of_tensorflow, hvd)],
        }

    for results in worlds(2, TENSORFLOW_ENV).run(run):
        assert results["seen"] == [[1.0 + 2 * step] * 3 for step in range(5)]
        assert results["mixed"] == [0, 1] and results["one engine"]
        assert results["initialized"] == [False] * 3
