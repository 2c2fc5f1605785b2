# SPDX-License-Identifier: Apache-2.0
"""Functions that TensorFlow compiles by XLA for CUDA: what XLA calls, on the stand-in."""

from __future__ import annotations

from typing import Any

import pytest
from support import standin, tensorflow_on_gpu
from support.tensorflow_xla_calls import call, plan_of
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")


def rows(*values: float) -> Any:
    return standin.to_gpu(torch.tensor(values, dtype=torch.float32))


def world_of(worlds: WorldPool, way: str = "nccl", **more: str) -> World:
    return worlds(2, {**tensorflow_on_gpu.environment(way), **more})


def started() -> Any:
    tensorflow_on_gpu.with_gpus()
    import horovod.tensorflow as hvd

    hvd.init()
    return hvd


@pytest.mark.parametrize("way", ["nccl", "host"])
def test_one_call_reduces_all_tensors_of_a_step(worlds: WorldPool, way: str) -> None:
    def run() -> tuple[list[Any], str, int]:
        hvd = started()
        rank = hvd.rank()
        first, second = (rows(1, 2 + rank), rows(0, 0)), (rows(rank), rows(0))
        plan = plan_of(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum), first[0], second[0])
        found: list[Any] = []
        for _ in range(3):  # the request is prepared by the second one
            found.append(call(plan, [first, second]) or [first[1].cpu().tolist(), second[1].cpu().tolist()])
        statistics = hvd.statistics()
        return found, standin.races(), statistics["batches_by_nccl"] + statistics["batches_staged"]

    for found, races, batches in world_of(worlds, way).run(run):
        assert (found, races) == ([[[2, 5], [1]]] * 3, "") and batches >= 3


def test_the_host_does_not_wait_for_the_gpu(worlds: WorldPool) -> None:
    def run() -> tuple[list[float], str]:
        hvd = started()
        stream, library = standin.gpu().current_stream(), standin.library()
        given, result, late = rows(-1, -1), rows(0, 0), rows(1, 2 + hvd.rank())
        plan = plan_of(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), given)
        library.standin_hold(stream)
        library.standin_copy(stream, given.data_ptr(), late.data_ptr(), 8)
        assert call(plan, [(given, result)]) is None
        library.standin_release(stream)
        return result.cpu().tolist(), standin.races()

    assert world_of(worlds).run(run) == [([1.0, 2.5], "")] * 2


def test_a_step_may_begin_with_empty_tensors() -> None:
    """They have no address that tells the GPU, and no operation came before."""

    def run() -> tuple[str | None, str]:
        hvd = started()
        given, result = rows(), rows()
        return call(plan_of(lambda x: hvd.allreduce(x), given), [(given, result)]), standin.races()

    with World(2, tensorflow_on_gpu.environment("nccl")) as world:
        assert world.run(run) == [(None, "")] * 2


@pytest.mark.parametrize("way", ["nccl", "host"])
def test_what_cannot_be_done_is_an_error_on_all_ranks(worlds: WorldPool, way: str) -> None:
    def run() -> list[str | None]:
        hvd = started()
        uneven, one = rows(*[1.0] * (1 + hvd.rank())), rows(1)
        said = [call(plan_of(lambda x: hvd.allreduce(x, name="uneven"), uneven), [(uneven, uneven)])]
        plan = plan_of(lambda x: hvd.allreduce(x, name="one"), one)
        if hvd.rank() == 1:
            standin.library().standin_fail(b"cuPointerGetAttributes", 0, 2, 1)
        return [*said, call(plan, [(one, one)]), call(plan, [(one, one)]), call((plan[0], "1000000"), [])]

    for uneven, failed, well, unknown in world_of(worlds, way).run(run):
        assert uneven is not None and "expected shape" in uneven, uneven
        assert failed is not None and "cuPointerGetAttributes failed: CUDA error 2" in failed, failed
        assert well is None
        assert unknown is not None and "unknown reduction" in unknown, unknown


def test_a_step_outlives_its_world(worlds: WorldPool) -> None:
    def run() -> tuple[str | None, list[float]]:
        hvd = started()
        value = rows(1)
        plan = plan_of(lambda x: hvd.allreduce(x, op=hvd.Sum), value)
        assert call(plan, [(value, value)]) is None
        stream = standin.gpu().current_stream()
        standin.library().standin_drain(stream)
        hvd.shutdown()
        error = call(plan, [(value, value)], stream)
        hvd.init()
        assert call(plan, [(value, value)]) is None
        return error, value.cpu().tolist()

    for error, value in world_of(worlds).run(run):
        assert error is not None and error.startswith("Horovod has not been initialized") and value == [4.0]


def test_unless_tensors_stay_on_gpus_tracing_says_how_they_may(worlds: WorldPool) -> None:
    def run() -> str:
        hvd = started()
        with pytest.raises(NotImplementedError) as raised:
            plan_of(lambda x: hvd.allreduce(x), rows(1))
        return str(raised.value)

    for said in world_of(worlds, HOROVOD_TENSORFLOW_GPU="host").run(run):
        assert "jit_compile=False" in said and "HOROVOD_TENSORFLOW_GPU=device" in said, said
