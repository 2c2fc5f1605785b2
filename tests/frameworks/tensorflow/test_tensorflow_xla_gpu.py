# SPDX-License-Identifier: Apache-2.0
"""Functions that TensorFlow compiles by XLA for CUDA: calls what XLA would call, with the stand-in as the GPU."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpu import standin, tensorflow_on_gpu
from support.gpu.tensorflow_xla_calls import call, plan_of, plans_of
from support.world import World, WorldPool

from horovod.core.exceptions import HorovodInternalError

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
import horovod.tensorflow as hvd
from horovod.tensorflow.elastic import TensorFlowState

# XLA has never called this on a GPU. Every day, its calls are tested on the CPU.
pytestmark = pytest.mark.thorough


def rows(*values: float) -> Any:
    return standin.to_gpu(torch.tensor(values, dtype=torch.float32))


def world_of(worlds: WorldPool, way: str = "nccl", **more: str) -> World:
    return worlds(2, {**tensorflow_on_gpu.environment(way), **more})


def started() -> Any:
    tensorflow_on_gpu.with_gpus()

    hvd.init()
    return hvd


@pytest.mark.parametrize(("way", "counter"), [("nccl", "batches_by_nccl"), ("host", "batches_staged")])
def test_one_call_reduces_all_tensors_of_a_step(worlds: WorldPool, way: str, counter: str) -> None:
    def run(counter: str) -> tuple[list[Any], str, int]:
        hvd = started()
        rank = hvd.rank()
        before = hvd.statistics()[counter]
        first, second = (rows(1, 2 + rank), rows(0, 0)), (rows(rank), rows(0))
        plan = plan_of(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum), first[0], second[0])
        found: list[Any] = []
        for _ in range(3):  # the request is prepared by the second one
            found.append(call(plan, [first, second]) or [first[1].cpu().tolist(), second[1].cpu().tolist()])
        return found, standin.races(), hvd.statistics()[counter] - before

    assert world_of(worlds, way).run(run, counter) == [([[[2, 5], [1]]] * 3, "", 3)] * 2


def test_calls_of_one_function_wait_for_each_other(worlds: WorldPool) -> None:
    """Each is given a result of the one before, beside its own tensors."""

    def run() -> tuple[list[list[float]], str]:
        hvd = started()
        x, y, z = rows(1, 2), rows(hvd.rank()), rows(3)
        results = [rows(0, 0), rows(0), rows(0)]
        plans = plans_of(lambda x, y, z: [hvd.allreduce(each, op=hvd.Sum) for each in (x, y, z)], x, y, z)
        before: list[Any] = []
        for plan, given, result in zip(plans, (x, y, z), results, strict=True):
            assert call(plan, [(given, result)], before=before) is None
            before = [result]
        return [result.cpu().tolist() for result in results], standin.races()

    assert world_of(worlds).run(run) == [([[2.0, 4.0], [1.0], [6.0]], "")] * 2


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
    """Empty tensors have no address, so the GPU must be found by the stream."""

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
        said += [call(plan, [(one, one)]), call(plan, [(one, one)])]
        return [*said, call((plan[0], plan[1].partition(" ")[2]), []), call((plan[0], "x"), [])]

    for uneven, failed, well, *unknown in world_of(worlds, way).run(run):
        assert uneven is not None and "expected shape" in uneven, uneven
        assert failed is not None and "cuPointerGetAttributes failed: CUDA error 2" in failed, failed
        assert well is None
        assert all(text is not None and "another version of Horovod has saved" in text for text in unknown), unknown


def test_a_step_outlives_its_world(worlds: WorldPool) -> None:
    def run() -> tuple[str | None, list[float]]:
        hvd = started()
        value = rows(1)
        plan = plan_of(lambda x: hvd.allreduce(x, op=hvd.Sum), value)
        stream = standin.gpu().current_stream()
        for _ in range(3):  # the request is prepared by the second one
            assert call(plan, [(value, value)]) is None
        standin.library().standin_drain(stream)
        hvd.shutdown()
        error = call(plan, [(value, value)], stream)
        hvd.init()
        for _ in range(2):
            assert call(plan, [(value, value)]) is None
        return error, value.cpu().tolist()

    for error, value in world_of(worlds).run(run):
        assert error is not None and error.startswith("Horovod was shut down") and value == [32.0]


def test_a_step_over_a_process_set_that_is_made_again(worlds: WorldPool) -> None:
    """A prepared request belongs to the set of the time; another one may get its number."""

    def run() -> tuple[list[float], str]:
        hvd = started()
        value, plan = rows(1), None
        for _ in range(2):
            some = hvd.add_process_set([0, 1])
            if hvd.rank() < 2:
                plan = plan or plan_of(lambda x, some=some: hvd.allreduce(x, op=hvd.Sum, process_set=some), value)
                assert [call(plan, [(value, value)]) for _ in range(3)] == [None] * 3
            hvd.remove_process_set(some)
        return value.cpu().tolist(), standin.races()

    env = {**tensorflow_on_gpu.environment("nccl"), "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert worlds(3, env).run(run) == [([64.0], ""), ([64.0], ""), ([1.0], "")]


def test_ranks_must_agree_whether_a_step_runs_on_a_gpu(worlds: WorldPool) -> None:
    def run() -> str:
        hvd = started()
        if hvd.rank() == 1:
            return str(call(plan_of(lambda x: hvd.allreduce(x, name="x"), rows(1)), [(rows(1), rows(0))]))
        with tf.device("CPU:0"), pytest.raises(tf.errors.InternalError) as raised:
            tf.function(lambda x: hvd.allreduce(x, name="x"), jit_compile=True, autograph=False)(tf.ones(1))
        return str(raised.value)

    for said in world_of(worlds).run(run):
        assert "expected memory" in said, said


@pytest.mark.parametrize("generation", [1, 2])
def test_what_fails_after_the_launch_is_raised_by_a_commit(generation: int) -> None:
    """Also in a generation after that in which the function was traced."""

    def run(generation: int) -> str:
        hvd = started()
        value, library = rows(1), standin.library()
        plan = plan_of(lambda x: hvd.allreduce(x, op=hvd.Sum), value)
        with tf.device("CPU:0"):
            state = TensorFlowState([tf.Variable(1.0)], step=0)
        if generation == 2:
            hvd.shutdown()
            hvd.init()
        library.standin_hold(standin.gpu().current_stream())
        assert call(plan, [(value, value)]) is None
        library.standin_fail(b"cuEventQuery", 0, 700, 1 << 30)
        library.standin_release(standin.gpu().current_stream())
        try:
            state.commit()
        except HorovodInternalError as error:
            return str(error)
        return "committed"

    with World(1, tensorflow_on_gpu.environment("nccl")) as world:
        (said,) = world.run(run, generation)
        assert "CUDA error 700" in said
        world.end()


def test_tracing_names_the_setting_that_is_missing(worlds: WorldPool) -> None:
    def run() -> str:
        hvd = started()
        with pytest.raises(NotImplementedError) as raised:
            plan_of(lambda x: hvd.allreduce(x), rows(1))
        return str(raised.value)

    for said in world_of(worlds, HOROVOD_TENSORFLOW_GPU="host").run(run):
        assert "only with HOROVOD_TENSORFLOW_GPU=device" in said and "jit_compile=False" in said, said
