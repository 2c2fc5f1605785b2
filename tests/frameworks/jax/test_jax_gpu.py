# SPDX-License-Identifier: Apache-2.0
"""Compiled functions of JAX on CUDA: what they are lowered to, and the handler that XLA calls, on the stand-in."""

from __future__ import annotations

from typing import Any

import pytest
from support import frameworks
from support.extent import later
from support.gpu import standin, xla_calls
from support.world import World, WorldPool

from horovod.core import native
from horovod.core.native import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
jax = pytest.importorskip("jax", reason="not run: jax is not installed")
import jax.numpy as jnp

import horovod.jax as hvd
from horovod.jax.elastic_state import JaxState

SUM = int(native.Sum)


def world_of(worlds: WorldPool, way: str = "nccl") -> World:
    return frameworks.jax_world(worlds, 2, **standin.environment(way))


# Through host memory every operation runs with PyTorch's tensors.
@pytest.fixture(params=["nccl", later("host")])
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return world_of(worlds, request.param)


def started() -> Any:
    hvd.init()
    return hvd


def rows(*values: float) -> Any:
    return standin.to_gpu(torch.tensor(values, dtype=torch.float32))


def on_stream(*pairs: Any, kind: int, **more: Any) -> str | None:
    return xla_calls.call(list(pairs), standin.gpu().current_stream(), kind=kind, **more)


def test_a_function_for_cuda_calls_the_handler(worlds: WorldPool) -> None:
    def run() -> tuple[int, str]:
        hvd = started()
        traced = jax.jit(lambda x: hvd.allreduce(x) + hvd.allgather(x).sum()).trace(jnp.ones(3))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        try:
            traced.lower(lowering_platforms=("rocm",))
        except NotImplementedError as error:
            return text.count("@horovod_collective"), str(error)
        return 0, ""

    ((calls, said),) = frameworks.jax_world(worlds, 1).run(run)
    assert calls == 2 and "for rocm is not supported: expected a function for the CPU or CUDA" in said


@pytest.mark.slow("compiles with XLA")
def test_the_host_does_not_wait_for_the_gpu(worlds: WorldPool) -> None:
    def run() -> tuple[list[float], str]:
        hvd = started()
        stream, library = standin.gpu().current_stream(), standin.library()
        given, result = rows(-1, -1), rows(0, 0)
        late = rows(1, 2 + hvd.rank())
        library.standin_hold(stream)
        library.standin_copy(stream, given.data_ptr(), late.data_ptr(), 8)
        assert on_stream((given, result), kind=ALLREDUCE, op=SUM, name="x", prescale=0.5) is None
        library.standin_release(stream)
        return result.cpu().tolist(), standin.races()

    assert world_of(worlds).run(run) == [([1.0, 2.5], "")] * 2


@pytest.mark.slow("compiles with XLA")
def test_each_operation(world: World) -> None:
    def run() -> tuple[dict[str, Any], str]:
        rank = started().rank()
        found: dict[str, Any] = {}

        def has(name: str, kind: int, given: Any, result: Any, **more: Any) -> None:
            for step in range(3):  # the request is prepared by the second one
                result = standin.to_gpu(torch.full_like(result.cpu(), -1))
                error = on_stream((given, result), kind=kind, name=name, members=2, member=rank, **more)
                found[name] = error or result.cpu().tolist()
                assert step == 0 or not error, error

        has("gather", ALLGATHER, rows(rank, 10 + rank), rows(0, 0, 0, 0))
        has("broadcast", BROADCAST, rows(rank, 5), rows(0, 0), root_rank=1)
        has("scatter", REDUCESCATTER, rows(1, 2, 3 + rank), rows(0, 0) if rank == 0 else rows(0), op=SUM)
        has("alltoall", ALLTOALL, rows(rank, 10 + rank), rows(0, 0))
        first, second = (rows(1), rows(-1)), (rows(2, 3), rows(-1, -1))
        error = on_stream(first, second, kind=ALLREDUCE, op=SUM, name="group", keys="a\nb", checksums="1 5 6")
        found["group"] = error or [first[1].cpu().tolist(), second[1].cpu().tolist()]
        return found, standin.races()

    common = {"gather": [0, 10, 1, 11], "broadcast": [1, 5], "group": [[2], [4, 6]]}
    assert world.run(run) == [
        ({**common, "scatter": [2, 4], "alltoall": [0, 1]}, ""),
        ({**common, "scatter": [7], "alltoall": [10, 11]}, ""),
    ]


@pytest.mark.slow("compiles with XLA")
def test_a_program_may_begin_with_empty_tensors() -> None:
    """They have no address that tells the GPU, and no operation came before."""

    def run() -> tuple[list[str | None], str]:
        started()
        errors = [on_stream((rows(), rows()), kind=ALLREDUCE, op=SUM, name="nothing")]
        errors.append(on_stream((rows(1), rows(0)), kind=ALLREDUCE, op=SUM, name="something"))
        return errors, standin.races()

    with World(2, {**frameworks.TENSORFLOW_ENV, **standin.environment("nccl")}) as world:
        assert world.run(run) == [([None, None], "")] * 2


def test_what_cannot_be_done_is_an_error_on_all_ranks(world: World) -> None:
    def run() -> list[str | None]:
        rank = started().rank()
        uneven = rows(*[1.0] * (1 + rank))
        return [
            on_stream((uneven, rows(0, 0, 0, 0)), kind=ALLGATHER, name="gather", members=2, member=rank),
            on_stream((uneven, uneven), kind=ALLREDUCE, op=SUM, name="g", keys="layer", checksums="1 1"),
            on_stream((uneven, uneven), kind=ALLREDUCE, op=SUM, name="g", process_set=9),
        ]

    for rank, (gather, reduce, unknown) in enumerate(world.run(run)):
        rows_given = f"expected {1 + rank} as on this rank, got {2 - rank} from member {1 - rank}"
        assert gather is not None and "same number of rows from every rank" in gather and rows_given in gather
        assert reduce is not None and "expected shape" in reduce, reduce
        assert unknown is not None and "process set" in unknown, unknown


def test_what_a_gpu_cannot_do_on_one_rank_is_told_to_the_other(worlds: WorldPool) -> None:
    def run() -> str | None:
        hvd = started()
        value = rows(1)
        if hvd.rank() == 1:
            standin.library().standin_fail(b"cuPointerGetAttributes", 0, 2, 1)
        return on_stream((value, value), kind=ALLREDUCE, op=SUM, name="x")

    for said in world_of(worlds).run(run):
        assert said is not None and "cuPointerGetAttributes failed: CUDA error 2" in said, said


def test_a_function_of_a_world_that_is_over(worlds: WorldPool) -> None:
    def run() -> tuple[str | None, list[float]]:
        hvd = started()
        stream, value = standin.gpu().current_stream(), rows(1)

        def reduce() -> str | None:
            return xla_calls.call([(value, value)], stream, kind=ALLREDUCE, op=SUM, name="x")

        assert reduce() is None
        standin.library().standin_drain(stream)
        hvd.shutdown()
        error = reduce()
        hvd.init()
        assert reduce() is None
        return error, value.cpu().tolist()

    for error, value in world_of(worlds).run(run):
        assert error is not None and error.startswith("Horovod was shut down") and value == [4.0]


@pytest.mark.slow("compiles with XLA")
def test_a_commit_hears_of_what_failed_after_the_launch() -> None:
    def run() -> str:
        hvd = started()
        jax.jit(hvd.allreduce).trace(jnp.ones(3)).lower(lowering_platforms=("cuda",))  # what says that there are GPUs
        state, value, library = JaxState(step=0), rows(1), standin.library()
        library.standin_hold(standin.gpu().current_stream())
        assert on_stream((value, value), kind=ALLREDUCE, op=SUM, name="x") is None
        library.standin_fail(b"cuEventQuery", 0, 700, 1 << 30)
        library.standin_release(standin.gpu().current_stream())
        try:
            state.commit()
        except hvd.HorovodInternalError as error:
            return str(error)
        return "committed"

    with World(1, {**frameworks.TENSORFLOW_ENV, **standin.environment("nccl")}) as world:
        (said,) = world.run(run)
        assert "CUDA error 700" in said
        world.end()
