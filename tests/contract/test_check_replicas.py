# SPDX-License-Identifier: Apache-2.0
"""hvd.check_replicas: one wrong bit on one rank is found, and named; equal replicas are never reported."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV
from support.world import WorldPool

from horovod.core.exceptions import HorovodInternalError

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

SHM = {"HOROVOD_TRANSPORT": "shm"}


def text_of(check: Any, *arguments: Any, **keywords: Any) -> str:
    try:
        check(*arguments, **keywords)
    except HorovodInternalError as error:
        return str(error).splitlines()[0]
    return ""


def test_one_bit_of_any_dtype_is_found_and_the_odd_rank_is_named(worlds: WorldPool) -> None:
    def run() -> dict[str, str]:
        hvd.init()
        said = {}
        floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]
        for dtype in [*floats, torch.int64, torch.uint8, torch.bool]:
            tensor = torch.ones(3, 50_000).to(dtype)  # beyond what a sample sees
            tensors = {"empty": torch.empty(0, dtype=dtype), "scalar": torch.ones(()).to(dtype), "w": tensor}
            said[f"{dtype} equal"] = text_of(hvd.check_replicas, tensors)
            if hvd.rank() == 1:
                tensor.view(torch.uint8).reshape(-1)[1 if dtype is torch.bool else -1] ^= 1
            said[str(dtype)] = text_of(hvd.check_replicas, tensors)
        nans = [struct.unpack("f", struct.pack("I", bits))[0] for bits in (0x7FC00001, 0x7FC00002)]
        bits = torch.tensor([0x7FC00001 + (hvd.rank() == 2)], dtype=torch.int32)
        said["NaN equal"] = text_of(hvd.check_replicas, {"w": torch.tensor([float("nan"), nans[0]])})
        said["payload"] = text_of(hvd.check_replicas, {"w": bits.view(torch.float32)})
        said["zero"] = text_of(hvd.check_replicas, {"w": torch.tensor([-0.0 if hvd.rank() == 0 else 0.0])})
        strided = torch.arange(12.0).reshape(3, 4).t()
        said["strided equal"] = text_of(hvd.check_replicas, [("w", strided if hvd.rank() else strided.contiguous())])
        sparse = torch.sparse_coo_tensor([[0, 1 + (hvd.rank() == 0)]], [1.0, 2.0], (4,))
        said["sparse"] = text_of(hvd.check_replicas, {"w": sparse})
        return said

    expected = {0: "rank 0 is unlike the other 2 ranks", 1: "rank 1 is unlike the other 2 ranks"}
    for said in worlds(3, SHM).run(run):
        for case, text in said.items():
            odd = {"payload": "rank 2 is unlike the other 2 ranks", "zero": expected[0], "sparse": expected[0]}
            if case.endswith("equal"):
                assert text == "", case
            else:
                assert text == f"check_replicas: the ranks differ in `w`; {odd.get(case, expected[1])}", case


def test_structures_sets_and_ties_are_told_apart(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        rank = hvd.rank()
        one, two = torch.ones(2), torch.full((2,), float(rank))
        pair = hvd.add_process_set([1, 3])
        texts = [
            text_of(hvd.check_replicas, {"a": one, **({"b": one} if rank == 2 else {})}),
            text_of(hvd.check_replicas, {"a": one, "c" if rank == 1 else "b": one}),
            text_of(hvd.check_replicas, {"a": one if rank else one.double()}),
            text_of(hvd.check_replicas, {"a": one if rank else torch.ones(3)}),
            text_of(hvd.check_replicas, dict([("a", one), ("b", one)][:: 1 if rank else -1])),
            text_of(hvd.check_replicas, {"z": one, "b": two, "a": two}),
            text_of(hvd.check_replicas, {"a": torch.tensor(rank // 2)}),
            text_of(hvd.check_replicas, {"a": torch.tensor(rank % 2)}, process_set=pair) if rank % 2 else "",
            text_of(hvd.check_replicas, {"a": torch.tensor(rank)}, process_set=pair) if rank % 2 else "",
        ]
        hvd.remove_process_set(pair)
        with pytest.raises(ValueError, match=r"not a model|expected a module") as caught:
            hvd.check_replicas("a model" if rank == 1 else 5)
        texts.append(str(caught.value).splitlines()[0])
        return texts

    differ = "check_replicas: the ranks have different parts: "
    everywhere = [
        f"{differ}rank 0 lacks `b`, which rank 2 has",
        f"{differ}rank 1 lacks `b`, which rank 0 has, and rank 0 lacks `c`, which rank 1 has",
        f"{differ}`a` is float32 [2] on rank 1 and float64 [2] on rank 0",
        f"{differ}`a` is float32 [2] on rank 1 and float32 [3] on rank 0",
        "",
        "check_replicas: the ranks differ in `b`, and 1 other after it; rank 0 is unlike ranks 1, 2, 3",
        "check_replicas: the ranks differ in `a`; rank 0 is unlike ranks 2, 3",
    ]
    environment = {**SHM, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    for rank, texts in enumerate(worlds(4, environment).run(run)):
        assert texts[:7] == everywhere
        last = "check_replicas: the ranks differ in `a`; rank 1 is unlike rank 3"
        assert texts[7:9] == ["", last if rank % 2 else ""]
        assert f"rank {rank}: allreduce of `check_replicas.total`: check_replicas: expected a module" in texts[9]


def training(steps: int) -> Any:
    def run() -> list[str]:
        hvd.init()
        torch.manual_seed(0)
        net = torch.nn.Linear(200, 200)
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters())
        texts = []
        for step in range(steps):
            optimizer.zero_grad()
            net(torch.ones(2, 200)).sum().backward()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            texts += [f"{step}: {one.message}".splitlines()[0] for one in caught]
            if step == 0:
                texts.append(text_of(hvd.check_replicas, net, optimizer))
                if hvd.rank() == 1:
                    optimizer.state[net.weight]["exp_avg"].view(torch.int32)[3, 7] ^= 1 << 20
                texts.append(text_of(hvd.check_replicas, net))
                texts.append(text_of(hvd.check_replicas, net, optimizer))
        return texts

    return run


@pytest.mark.parametrize("whole", ["0", "1"])
def test_pytorchs_optimizer_state_is_compared_by_the_call_and_if_asked_before_steps(
    worlds: WorldPool, whole: str
) -> None:
    environment = {**SHM, "HOROVOD_REPLICA_CHECK_STEPS": "2", "HOROVOD_REPLICA_CHECK_WHOLE": whole}
    by_call = ["", "", "check_replicas: the ranks differ in `exp_avg of state of weight`; rank 0 is unlike rank 1"]
    first, second = worlds(2, environment).run(training(3))
    assert second == by_call
    assert first[:3] == by_call
    assert len(first) == (4 if whole == "1" else 3)
    if whole == "1":
        assert first[3].startswith("2: before step 3 of the optimizer that updates `bias`, the ranks differ in `")


@pytest.mark.slow("compiles or trains with another framework")
@pytest.mark.check
def test_jax_names_the_leaf_of_parameters_and_of_the_state(worlds: WorldPool) -> None:
    def run() -> list[str]:
        import jax
        import jax.numpy as jnp

        import horovod.jax as hvd

        hvd.init()
        rank = hvd.rank()
        tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "n": 3, "key": jax.random.key(0), "e": jnp.zeros(0)}
        state = (jnp.zeros(3), {"count": jnp.int32(4)})
        odd = {**tree, "w": tree["w"].at[1, 2].add(rank)}
        texts = [
            text_of(hvd.check_replicas, tree, state),
            text_of(hvd.check_replicas, odd, state),
            text_of(hvd.check_replicas, {**tree, "n": rank}),
            text_of(hvd.check_replicas, {**tree, "key": jax.random.key(rank)}),
            text_of(hvd.check_replicas, tree, (state[0], {"count": jnp.int32(rank)})),
        ]
        with pytest.raises(ValueError, match="check_replicas cannot be part of a compiled function"):
            jax.jit(lambda x: hvd.check_replicas(x) or x)(jnp.ones(2))
        hvd.shutdown()  # other tests use this world, too
        return texts

    names = ["['w']", "['n']", "['key']", "state[1]['count']"]
    expected = ["", *(f"check_replicas: the ranks differ in `{name}`; rank 0 is unlike rank 1" for name in names)]
    assert worlds(2, SHM).run(run) == [expected, expected]


@pytest.mark.check
def test_tensorflow_and_keras_compare_models_and_their_optimizers(worlds: WorldPool) -> None:
    def run() -> list[str]:
        import keras
        import tensorflow as tf

        import horovod.keras
        import horovod.tensorflow as hvd

        hvd.init()
        rank = hvd.rank()
        if rank == 1:
            keras.layers.Dense(1)  # counters of names must not matter
        keras.utils.set_random_seed(0)
        net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
        net.compile(optimizer=horovod.keras.DistributedOptimizer(keras.optimizers.Adam()), loss="mse")
        check = horovod.keras.callbacks.CheckReplicasCallback(every=2)
        data = np.full((8, 4), rank, np.float32), np.ones((8, 3), np.float32)
        net.fit(*data, batch_size=2, verbose=0, callbacks=[check])
        texts = [text_of(horovod.keras.check_replicas, net), text_of(hvd.check_replicas, net, net.optimizer)]
        slot = net.optimizer.variables[-1]
        slot.assign(slot + rank)
        texts.append(text_of(horovod.keras.check_replicas, net).split(":")[1])
        texts.append(text_of(net.fit, *data, batch_size=2, verbose=0, callbacks=[check]).split(":")[1])
        texts.append(text_of(hvd.check_replicas, net))
        odd = tf.Variable([1.0, 2.0 + rank], dtype=tf.bfloat16, name="odd")
        texts.append(text_of(hvd.check_replicas, [odd]))
        texts.append(text_of(hvd.check_replicas, [tf.Variable(["a", f"b{rank}"])]).split(":")[1])
        with pytest.raises(ValueError, match="cannot be part of a function"):
            tf.function(lambda: hvd.check_replicas([odd]))()
        with pytest.raises(ValueError, match="every=0: expected a number of batches"):
            horovod.keras.callbacks.CheckReplicasCallback(0)
        hvd.shutdown()
        return texts

    for texts in worlds(2, {**SHM, **TENSORFLOW_ENV}).run(run):
        slots = " the ranks differ in `optimizer variable "
        assert texts[:2] == ["", ""]
        assert all(text.startswith(slots) for text in texts[2:3])
        assert texts[3].startswith(" the ranks differ in `")
        assert "`variable 0: odd" in texts[5] and "rank 0 is unlike rank 1" in texts[5]
        assert texts[6].startswith(" the ranks differ in `variable 0")
