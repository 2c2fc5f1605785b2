# SPDX-License-Identifier: Apache-2.0
"""Training with PyTorch on GPUs, which the stand-in has: streams, memory, the optimizer, failures, generations."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest
from frameworks.torch import test_torch_optimizer_matrix as matrix
from support import frameworks
from support.gpu import standin
from support.memory import held_kib, steady_growth_kib
from support.world import World, WorldPool

from horovod.core import context, operations
from horovod.core.exceptions import MismatchError

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

WAYS = ("best", "host")


def started() -> Any:
    """horovod.torch, initialized in this rank, which has GPUs."""
    return frameworks.load("torch_gpu").hvd


def world_of(worlds: WorldPool, way: str = "best", size: int = 2, **env: str) -> World:
    return worlds(size, standin.environment(way, HOROVOD_DYNAMIC_PROCESS_SETS="1", **env))


@pytest.fixture(params=WAYS)
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    if request.param == "two streams":
        return world_of(worlds, HOROVOD_NUM_NCCL_STREAMS="2")
    return world_of(worlds, request.param)


# Streams


def test_whoever_waits_keeps_the_stream_waiting_and_not_itself(worlds: WorldPool) -> None:
    def run() -> str:
        hvd, library, gpu = started(), standin.library(), standin.gpu()
        tensor = standin.to_gpu(torch.ones(8))
        hvd.allreduce(standin.to_gpu(torch.ones(1)), name="meet")  # NCCL's start is a matter of the host
        library.standin_hold(gpu.default_stream)
        try:
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="held")
            result = hvd.synchronize(handle)  # returns, though the input has not been computed
            assert result is tensor and tensor._memory_of.plain.tolist() == [1.0] * 8
        finally:
            library.standin_release(gpu.default_stream)
        assert tensor.cpu().tolist() == [float(hvd.size())] * 8
        return standin.races()

    assert world_of(worlds).run(run) == ["", ""]


def test_the_stream_of_the_call_and_the_stream_of_the_wait_may_differ(world: World) -> None:
    def run() -> str:
        hvd, gpu = started(), standin.gpu()
        side = gpu.new_stream()
        for step in range(20):
            with gpu.stream(side):
                tensor = standin.to_gpu(torch.full((1000,), 1.0 + step))
                handles = [hvd.allreduce_async(tensor, op=hvd.Sum, name="out of place")]
                handles.append(hvd.allreduce_async_(tensor + 1, op=hvd.Sum, name="in place"))
                handles.append(hvd.allgather_async(tensor[:2], name="gathered"))
            del tensor
            first, second, third = map(hvd.synchronize, handles)
            # Used on the default stream, and dropped: its memory is the side stream's.
            assert float(first.sum() + second.sum()) == 1000 * hvd.size() * (2 * step + 3)
            assert third.cpu().tolist() == [1.0 + step] * 2 * hvd.size()
            del first, second, third
            with gpu.stream(side):
                standin.to_gpu(torch.zeros(1000))
        return standin.races()

    assert world.run(run) == ["", ""]


def test_a_result_is_written_after_the_last_use_of_its_memory(world: World) -> None:
    """Its memory is new at each call, and may have been another tensor's a moment ago; the input is an old one."""

    def run() -> str:
        hvd = started()
        tensor = standin.to_gpu(torch.ones(1000))
        for _ in range(5):
            assert hvd.allreduce(tensor, op=hvd.Sum, name="again").cpu()[0] == hvd.size()
        return standin.races()

    assert world.run(run) == ["", ""]


def test_a_call_that_nobody_waits_for_keeps_its_tensors(world: World) -> None:
    def run() -> str:
        hvd = started()
        for step in range(10):
            hvd.allreduce_async_(standin.to_gpu(torch.ones(1000)), name=f"dropped {step}")

        operations._pending.clear()  # as if a script had lost the handles
        hvd.barrier()
        return standin.races()

    assert world.run(run) == ["", ""]


def test_poll_is_true_once_synchronize_would_not_wait(worlds: WorldPool) -> None:
    def run() -> None:
        hvd, library, gpu = started(), standin.library(), standin.gpu()
        tensor = standin.to_gpu(torch.ones(8))
        hvd.allreduce(tensor, name="meet")
        library.standin_hold(gpu.default_stream)
        try:
            handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="polled")
            while not hvd.poll(handle):
                pass
        finally:
            library.standin_release(gpu.default_stream)
        assert hvd.synchronize(handle).cpu().tolist() == [float(hvd.size())] * 8

    world_of(worlds).run(run)


# The optimizer


@pytest.mark.parametrize("world", [*WAYS, "two streams"], indirect=True)
def test_training_equals_one_process(world: World) -> None:
    """As on the CPU: clipping, accumulation, a gradient scaler, sparse gradients, compression of what travels."""

    def run() -> tuple[list[str], str]:
        hvd = started()
        model_for, wrong = matrix.model_for, []
        matrix.model_for = lambda name: standin.module_to_gpu(model_for(name))
        try:
            for name, wrapping, how in [
                ("SGD", {}, {"clip": 0.05}),
                ("Adam", {"backward_passes_per_step": 2}, {"passes": 2}),
                ("AdamW", {}, {"scaled": True, "clip": 0.05}),
                ("SparseAdam", {}, {}),
                ("SparseAdam", {"sparse_as_dense": True}, {}),
                ("RMSprop", {"gradient_predivide_factor": 2.0}, {}),
            ]:
                wrong += matrix.off(hvd, name, matrix.OPTIMIZERS[name][0], wrapping, **how)
        finally:
            matrix.model_for = model_for
        return wrong, standin.races()

    for wrong, races in world.run(run):
        assert wrong == [] and races == ""


def test_the_end_of_backward_does_not_wait_for_gradients(worlds: WorldPool) -> None:
    """The host runs ahead: when backward returns, the last gradient has not even been computed. The step waits."""

    def run() -> tuple[float, float, str]:
        hvd, library, gpu = started(), standin.library(), standin.gpu()
        weight = torch.nn.Parameter(standin.to_gpu(torch.ones(4)))
        kept: list[Any] = []

        def arrives_late(parameter: Any) -> None:
            memory = parameter.grad._memory_of.plain
            kept.append(standin.to_gpu(memory))
            library.standin_drain(gpu.default_stream)
            library.standin_hold(gpu.default_stream)
            memory.fill_(float("nan"))
            count_bytes = memory.numel() * memory.element_size()
            library.standin_copy(gpu.default_stream, memory.data_ptr(), kept[-1].data_ptr(), count_bytes)

        weight.register_post_accumulate_grad_hook(arrives_late)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), named_parameters=[("late", weight)])
        hvd.allreduce(standin.to_gpu(torch.ones(1)), name="meet")
        (weight * (1.0 + hvd.rank())).sum().backward()
        seen = float(weight.grad._memory_of.plain[0])
        library.standin_release(gpu.default_stream)
        optimizer.step()
        return seen, float(weight.detach().cpu()[0]), standin.races()

    for seen, stepped, races in world_of(worlds).run(run):
        assert seen != seen and stepped == 1 - 1.5 and races == ""


def test_parameters_that_only_some_passes_use(world: World) -> None:
    """Two backward passes of one step with parameters of their own, as of two losses; and one without any gradient."""

    def run() -> tuple[list[float], str]:
        hvd = started()
        first, second, third = (torch.nn.Parameter(standin.to_gpu(torch.ones(3))) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([first, second, third], lr=1.0),
            named_parameters=[("first", first), ("second", second), ("third", third)],
        )
        for _ in range(2):
            optimizer.zero_grad()
            (first * (1.0 + hvd.rank())).sum().backward()
            second.sum().backward()
            optimizer.step()
        return [float(p.detach().cpu()[0]) for p in (first, second, third)], standin.races()

    for values, races in world.run(run):
        assert values == [1 - 3.0, 1 - 2.0, 1.0] and races == ""


def test_compressed_gradients_of_another_stream(world: World) -> None:
    def run() -> tuple[float, str]:
        hvd, gpu = started(), standin.gpu()
        weight = torch.nn.Parameter(standin.to_gpu(torch.ones(500)))
        side = gpu.new_stream()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.25),
            named_parameters=[("side", weight)],
            compression=hvd.Compression.fp16,
        )
        hook = optimizer._hvd_ready

        def on_the_side(parameter: Any) -> None:  # as a hook of a node whose forward ran on another stream
            standin.library().standin_order(gpu.default_stream, side)
            with gpu.stream(side):
                hook(parameter)

        optimizer._hvd_ready = on_the_side
        for _ in range(3):
            optimizer.zero_grad()
            (weight * (1.0 + hvd.rank())).sum().backward()
            optimizer.step()
        return float(weight.detach().cpu()[0]), standin.races()

    for value, races in world.run(run):
        assert value == 1 - 3 * 0.25 * 1.5 and races == ""


def test_start_values_of_model_and_optimizer(world: World) -> None:
    def run() -> list[float]:
        hvd = started()
        torch.manual_seed(hvd.rank())
        model = standin.module_to_gpu(torch.nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + hvd.rank()), momentum=0.9)
        if hvd.rank() == 0:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        found = [tensor for parameter in model.parameters() for tensor in (parameter, optimizer.state[parameter])]
        values = [t["momentum_buffer"] if isinstance(t, dict) else t for t in found]
        return [value for t in values for value in t.detach().cpu().flatten().tolist()]

    first, second = world.run(run)
    assert first == second and len(first) == 16


# Failures


def test_an_error_after_the_launch_is_raised_by_the_next_call(worlds: WorldPool) -> None:
    def run(look: str) -> str:
        hvd, library = started(), standin.library()
        tensor = standin.to_gpu(torch.ones(8))
        library.standin_hold(standin.gpu().default_stream)
        hvd.allreduce_(tensor, name="gradient")

        with pytest.raises(hvd.HorovodInternalError) as raised:
            hvd.barrier()  # all have launched it
            library.standin_fail(b"cuEventQuery", 0, 700, 1 << 30)
            library.standin_release(standin.gpu().default_stream)
            for _ in range(1000):
                if look == "settle":
                    context.current().settle()
                elif look == "object":
                    hvd.broadcast_object("checkpoint")
                else:
                    hvd.allreduce(tensor, name="next")
        hvd.shutdown()
        return str(raised.value)

    for look in ("settle", "object", "next"):
        with World(2, standin.environment()) as world:
            for outcome in world.run_each(run, look):
                assert outcome.ok and "CUDA error 700" in outcome.value, outcome


def test_an_error_that_no_call_tells_stands_on_stderr(worlds: WorldPool) -> None:
    def run() -> None:
        hvd, library = started(), standin.library()
        tensor = standin.to_gpu(torch.ones(8))
        library.standin_hold(standin.gpu().default_stream)
        hvd.allreduce_(tensor, name="last")
        library.standin_fail(b"cuEventQuery", 0, 700, 1 << 30)
        library.standin_release(standin.gpu().default_stream)
        hvd.shutdown()

    with World(1, standin.environment()) as world:
        world.run(run)
        text = world.output(0)
    assert "CUDA error 700" in text and "rank 0" in text, text


# Generations, and what is there


@pytest.mark.thorough
def test_many_generations_leave_nothing_behind(worlds: WorldPool) -> None:
    def run() -> tuple[list[int], list[int], list[list[int]]]:
        hvd, library = started(), standin.library()
        tensor = standin.to_gpu(torch.ones(1000))
        held, files, counts = [], [], []
        for generation in range(100):
            hvd.init()
            for _ in range(3):
                hvd.allreduce_(tensor, name="gradient")
                hvd.allgather(tensor[:3], name="rows")
            if generation % 2 == 0:
                tensor.cpu()
            hvd.shutdown()
            held.append(held_kib())
            files.append(len(os.listdir("/proc/self/fd")))
            count = library.standin_count()
            counts.append([count.streams, count.events, count.allocations, count.pinned])
        hvd.init()
        return held, files, counts

    for held, files, counts in world_of(worlds).run(run):
        assert files[10] == files[-1], files
        (streams, events, allocations, pinned), last = counts[10], counts[-2]  # both without work on the GPU
        assert last[0] == streams and last[1] <= events + 4 and last[2] <= allocations + 2 and last[3] <= pinned + 2
        assert steady_growth_kib(held[10:]) < 4096, held


def test_what_is_built_is_told_without_initializing_cuda(worlds: WorldPool) -> None:
    def run() -> tuple[bool, int, int]:
        hvd.init()
        built = hvd.cuda_built(), hvd.nccl_built()
        count = ctypes.c_int()
        return *built, standin.library().cuDeviceGetCount(ctypes.byref(count))  # 3: not initialized

    with World(1, standin.environment()) as world:
        assert world.run(run) == [(True, 23203, 3)]
    with World(1, {"HOROVOD_CUDA_LIBRARY": "/none", "HOROVOD_NCCL_LIBRARY": "/none"}) as world:

        def none() -> tuple[bool, int]:
            return hvd.cuda_built(), hvd.nccl_built()

        assert world.run(none) == [(False, 0)]


# Replicas


def test_replicas_on_gpus_are_compared_bit_by_bit(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd = started()
        texts = []
        for odd in (0.0, 1.0):
            named = {"w": standin.to_gpu(torch.ones(3, 4) + odd * hvd.rank()), "half": torch.ones(2).half()}
            try:
                hvd.check_replicas(named)
                texts.append("")
            except MismatchError as error:
                texts.append(str(error).splitlines()[0])
        return [*texts, standin.races()]

    text = "check_replicas: the ranks differ in `w`; rank 0 is unlike rank 1"
    assert world_of(worlds).run(run) == [["", text, ""]] * 2
