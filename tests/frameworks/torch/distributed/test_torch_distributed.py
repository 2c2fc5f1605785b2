# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with the backend hvd: each call gives what its definition says, also beside hvd's calls."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.extent import later
from support.world import World, WorldPool

from horovod.core import context as contexts

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import horovod.torch as hvd

ENV = {"HOROVOD_TRANSPORT": "shm"}


@pytest.fixture(scope="module", params=[3, *map(later, (1, 2, 4))])
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return worlds(request.param, ENV)


def in_group(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in a process group of all ranks, which Horovod starts. It gets torch.distributed, rank and size."""

    def run(*arguments: Any) -> Any:
        dist.init_process_group("hvd")
        try:
            return function(dist, dist.get_rank(), dist.get_world_size(), *arguments)
        finally:
            dist.destroy_process_group()

    return run


def given(rank: int, dtype: Any = None, count: int = 6) -> Any:
    """What a rank gives: small numbers, so that no sum is rounded."""
    values = (torch.arange(count) * 3 + rank * 5) % 7 + 1
    return values.to(dtype or torch.float32)


def bitwise(dist: Any) -> dict[Any, Any]:
    return {
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }


DTYPES = ["float32", "uint32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "uint16"]
DTYPES += ["uint64", "complex64"]


@pytest.mark.parametrize("dtype_name", [*DTYPES[:2], *map(later, DTYPES[2:-1]), DTYPES[-1]])
def test_reductions_are_those_of_torch(world: World, dtype_name: str) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        dtype = getattr(torch, dtype_name)
        is_integer = not (dtype.is_complex or dtype.is_floating_point)
        all_given = torch.stack([given(other, torch.int64 if is_integer else dtype) for other in range(size)])

        def close(seen: Any, expected: Any) -> bool:  # torch compares no uint32
            return seen.dtype == dtype and torch.allclose(seen.to(all_given.dtype), expected.to(all_given.dtype))

        ops = {
            dist.ReduceOp.SUM: all_given.sum(0).to(dtype),
            dist.ReduceOp.MAX: None if dtype.is_complex else all_given.amax(0),
            dist.ReduceOp.MIN: None if dtype.is_complex else all_given.amin(0),
            **{op: functools.reduce(fold, all_given) if is_integer else None for op, fold in bitwise(dist).items()},
            dist.ReduceOp.PRODUCT: None if dtype.is_complex else all_given.prod(0).to(dtype),
            dist.ReduceOp.AVG: all_given.mean(0) if dtype in (torch.float32, torch.float64) else None,
        }
        for op, expected in ops.items():
            if expected is None:
                continue
            for repeat in range(3):  # the third time the request is prepared
                for is_async in (False, True):
                    tensor = given(rank, dtype)
                    work = dist.all_reduce(tensor, op, async_op=is_async)
                    assert not is_async or work.wait()
                    assert close(tensor, expected), (op, repeat, is_async, tensor, expected)
            tensor = given(rank, dtype)
            dist.reduce(tensor, size - 1, op)
            assert close(tensor, expected if rank == size - 1 else given(rank, dtype)), (op, "reduce")
        strided = torch.zeros(6, 2, dtype=dtype)
        strided[:, 0] = given(rank, dtype)
        dist.all_reduce(strided[:, 0])
        assert close(strided, torch.stack([ops[dist.ReduceOp.SUM], torch.zeros(6, dtype=dtype)], 1))

    world.run(in_group(run))


def test_scaled_sums_bools_and_sparse_tensors(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        total = sum(given(other) for other in range(size))
        for factor in (0.5, 0.5, 0.5, 3.0, 0.5, torch.tensor(2.0)):  # from the third time on, requests are prepared
            tensor, scattered = given(rank), torch.zeros(6)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            dist.reduce_scatter_tensor(scattered, given(rank).repeat(size), dist._make_nccl_premul_sum(factor))
            assert torch.equal(tensor, total * factor) and torch.equal(scattered, total * factor), factor
            dist.all_reduce(tensor, dist.ReduceOp.SUM)
            assert torch.equal(tensor, total * factor * size)
        mine = torch.tensor([rank == 0, True, False])
        any_of, all_of = torch.tensor([True, True, False]), torch.tensor([size == 1, True, False])
        odd = torch.tensor([True, size % 2 == 1, False])
        by_op = {"SUM": any_of, "MAX": any_of, "BOR": any_of, "MIN": all_of, "BAND": all_of, "BXOR": odd}
        for name, expected in by_op.items():
            tensor = mine.clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            assert torch.equal(tensor, expected), name
        with pytest.raises(ValueError, match="op=BitXor is for integers and bool, got float32"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR)
        with pytest.raises(ValueError, match="dtype torch.float8_e5m2 is not supported"):
            dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))

        sparse = torch.sparse_coo_tensor([[0, rank]], [1.0, 2.0], (size,))
        dense = sparse.to_dense()
        dist.all_reduce(sparse)
        dist.all_reduce(dense)
        assert torch.equal(sparse.to_dense(), dense)

    world.run(in_group(run))


MOVED = ["float32", "bool", "uint16", "uint64", "complex128", "float8_e4m3fn"]


@pytest.mark.parametrize("dtype_name", [*MOVED[:1], *map(later, MOVED[1:-1]), MOVED[-1]])
def test_what_only_moves_takes_any_dtype(world: World, dtype_name: str) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        dtype = getattr(torch, dtype_name)
        same = lambda one, other: torch.equal(one.float().nan_to_num(), other.float().nan_to_num())  # noqa: E731
        if dtype.is_complex:
            same = torch.equal
        everything = [given(other, dtype) for other in range(size)]
        tensor = given(rank, dtype)
        dist.broadcast(tensor, size - 1)
        assert same(tensor, everything[-1])
        parts = [torch.zeros(6).to(dtype) for _ in range(size)]
        dist.all_gather(parts, given(rank, dtype))
        assert all(map(same, parts, everything))
        whole = torch.zeros(size, 6).to(dtype)
        dist.distributed_c10d._get_default_group().all_gather_single(whole, given(rank, dtype)).wait()
        assert all(map(same, whole, everything))
        chunks = list(torch.zeros(size, 6).to(dtype).unbind())  # they follow each other: no copy
        dist.all_gather(chunks, given(rank, dtype))
        assert all(map(same, chunks, everything))
        parts = [torch.zeros(6).to(dtype) for _ in range(size)]
        dist.gather(given(rank, dtype), parts if rank == 0 else None, 0)
        assert rank != 0 or all(map(same, parts, everything))
        tensor = torch.zeros(6).to(dtype)
        dist.scatter(tensor, everything if rank == size - 1 else None, size - 1)
        assert same(tensor, everything[rank])

    world.run(in_group(run))


def test_uneven_parts_and_layouts(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        parts = [torch.zeros(2, other + 1).t() for other in range(size)]
        dist.all_gather(parts, torch.full((rank + 1, 2), float(rank)))
        assert [part.unique().item() for part in parts] == list(range(size))
        # reduce_scatter of even and uneven lists, and of one tensor
        even, uneven = torch.zeros(2, 2), torch.zeros(rank + 1)
        dist.reduce_scatter(even, [torch.full((2, 2), float(other + rank)) for other in range(size)])
        dist.reduce_scatter(uneven, [torch.full((other + 1,), float(other)) for other in range(size)])
        total = size * (size - 1) / 2
        assert (even == size * rank + total).all() and (uneven == size * rank).all()
        group = dist.distributed_c10d._get_default_group()
        group.reduce_scatter_single(even, torch.arange(4.0 * size).view(2 * size, 2)).wait()
        assert torch.equal(even, size * torch.arange(4.0 * size).view(size, 2, 2)[rank])
        # all_to_all: rank r sends s + 1 rows to rank s
        sent = torch.cat([torch.full((other + 1, 2), 10.0 * rank + other) for other in range(size)])
        got = torch.zeros(size * (rank + 1), 2)
        dist.all_to_all_single(got, sent, [rank + 1] * size, [other + 1 for other in range(size)])
        assert torch.equal(got[:: rank + 1, 0], 10.0 * torch.arange(size) + rank)
        even = torch.zeros(size)
        dist.all_to_all_single(even, 10.0 * rank + torch.arange(size))
        assert torch.equal(even, 10.0 * torch.arange(size) + rank)
        parts = [torch.zeros(rank + 1, 2) for _ in range(size)]
        dist.all_to_all(parts, [torch.full((other + 1, 2), 10.0 * rank + other) for other in range(size)])
        assert [part.unique().item() for part in parts] == [10.0 * other + rank for other in range(size)]

    world.run(in_group(run))


def test_several_tensors_are_one_call(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        from torch.distributed.distributed_c10d import _coalescing_manager

        tensors = [torch.full((count,), float(rank)) for count in (1, 3)]
        group = dist.distributed_c10d._get_default_group()
        assert group.allreduce_coalesced(tensors).wait()
        assert [tensor.unique().item() for tensor in tensors] == [size * (size - 1) / 2] * 2
        for device in (None, torch.device("cpu")):
            tensors = [torch.full((count,), float(rank)) for count in (1, 3)]
            with _coalescing_manager(device=device):
                for tensor in tensors:
                    dist.all_reduce(tensor)
            assert [tensor.unique().item() for tensor in tensors] == [size * (size - 1) / 2] * 2
        outputs = [torch.zeros(size), torch.zeros(2 * size)]
        inputs = [torch.full((1,), float(rank)), torch.full((2,), float(rank))]
        assert group.all_gather_single_coalesced(outputs, inputs).wait()
        assert torch.equal(outputs[0], torch.arange(float(size))) and torch.equal(outputs[1][::2], outputs[0])
        assert group.reduce_scatter_single_coalesced(inputs, outputs).wait()
        assert inputs[0].item() == inputs[1][0].item() == size * rank
        lists = [[torch.zeros(1), torch.zeros(2)] for _ in range(size)]
        assert group.allgather_coalesced(lists, [torch.full((1,), float(rank)), torch.full((2,), 1.0 + rank)]).wait()
        assert [[one[0].item() for one in of_rank] for of_rank in lists] == [[r, 1.0 + r] for r in range(size)]

    world.run(in_group(run))


def test_objects_and_barriers(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        everything = [{"rank": other, "text": "x" * other} for other in range(size)]
        found: list[Any] = [None] * size
        dist.all_gather_object(found, everything[rank])
        assert found == everything
        at_root = [None] * size if rank == 0 else None
        dist.gather_object(everything[rank], at_root, 0)
        assert rank != 0 or at_root == everything
        (mine,) = scattered = [None]
        dist.scatter_object_list(scattered, everything if rank == 0 else None, 0)
        assert mine is None and scattered == [everything[rank]]
        shared = [rank]
        dist.broadcast_object_list(shared, size - 1)
        assert shared == [size - 1]
        dist.barrier()
        assert dist.barrier(async_op=True).wait()
        dist.distributed_c10d._get_default_group().monitored_barrier(timedelta(seconds=60))

    world.run(in_group(run))


@pytest.mark.slow("compiles with PyTorch")
def test_functional_collectives_run_compiled(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        def of_tensor(tensor: Any) -> Any:
            total = functional.all_reduce(tensor, "sum", dist.group.WORLD)
            parts = functional.all_gather_tensor(tensor, 0, dist.group.WORLD)
            return total * 2, functional.reduce_scatter_tensor(parts, "sum", 0, dist.group.WORLD)

        for function in (of_tensor, torch.compile(of_tensor, backend="aot_eager")):
            total, own = function(torch.full((2,), float(rank)))
            assert total.tolist() == [size * (size - 1.0)] * 2 and own.tolist() == [float(size * rank)] * 2

    world.run(in_group(run))


def test_a_group_is_made_by_its_members_and_has_an_order_of_its_own(worlds: WorldPool) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        pair, again = dist.new_group([0, 2]), dist.new_group([0, 2])
        alone = dist.new_group([2, 1], use_local_synchronization=True)  # rank 0 makes nothing
        assert (pair == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 1)
        if rank != 0:
            tensor = torch.full((1,), float(rank))
            dist.broadcast(tensor, 2, group=alone)
            assert tensor.item() == 2.0 and dist.get_rank(alone) == rank - 1
        if rank != 1:
            # On two threads, in the other order on the other rank; more than the names that a group has.
            started = threading.Event()
            results: list[float] = []

            def reduce(group: Any) -> None:
                works = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for _ in range(100)]
                started.set()
                results.extend(work.result()[0].item() for work in works)

            first, second = (pair, again) if rank == 0 else (again, pair)
            thread = threading.Thread(target=reduce, args=(first,))
            thread.start()
            started.wait()
            reduce(second)
            thread.join()
            assert results == [2.0] * 200
            parts = [torch.zeros(1), torch.zeros(1)]
            dist.all_gather(parts, torch.full((1,), float(rank)), group=again)
            assert [part.item() for part in parts] == [0.0, 2.0]
            dist.barrier(group=again)
            dist.destroy_process_group(again)
            with pytest.raises(dist.DistBackendError, match="was destroyed\nhint: call init_process_group or new_gr"):
                again.allreduce([torch.ones(1)])
        with pytest.raises(NotImplementedError, match="sort_ranks=False"):
            dist.new_group([2, 1, 0], sort_ranks=False)
        gloo = dist.new_group(backend="gloo")
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=gloo)
        assert tensor.item() == size and dist.get_backend(gloo) == "gloo" and dist.get_backend() == "hvd"

    worlds(3, ENV).run(in_group(run))


def test_hvd_and_torch_calls_mix_and_groups_come_again(worlds: WorldPool) -> None:
    def run() -> list[float]:
        results = []
        hvd.init()
        for _ in range(2):
            dist.init_process_group("hvd")
            assert (hvd.rank(), hvd.size()) == (dist.get_rank(), dist.get_world_size())
            with pytest.raises(ValueError, match="initialize the default process group twice"):
                dist.init_process_group("hvd")
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            handle = hvd.allreduce_async_(torch.ones(2), op=hvd.Sum)
            dist.all_reduce(tensor)  # both have no name: they meet by the order of the script
            assert hvd.synchronize(handle).tolist() == [2.0, 2.0] and tensor.tolist() == [4.0, 4.0]
            results.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
            dist.destroy_process_group()
            assert hvd.is_initialized()  # the script has called hvd.init
        return results

    assert worlds(2, ENV).run(run) == [[2.0, 2.0]] * 2


def test_futures_are_completed_and_tell_errors(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        tensor = torch.full((2,), 1.0)
        future = dist.all_reduce(tensor, async_op=True).get_future()

        def once_more(done: Any) -> Any:  # as PowerSGD does: waits for another operation in the callback
            return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()

        assert future.then(once_more).then(once_more).wait()[0][0].item() == size**3
        parts = [torch.zeros(2) for _ in range(size)]
        work = dist.all_gather(parts, tensor, async_op=True)
        while not work.is_completed():
            pass
        assert torch.equal(torch.stack(parts), tensor.expand(size, 2))  # without a wait
        work = dist.all_reduce(tensor, async_op=True)
        assert work.get_future() is work.get_future() and work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
        failing = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: 1 // 0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            failing.wait()
        if size > 1:
            work = dist.all_reduce(torch.ones(1 + rank), async_op=True)
            with pytest.raises(RuntimeError, match=r"disagree about unnamed allreduce; rank 1: expected shape \[1\]"):
                work.get_future().wait()
            with pytest.raises(dist.DistBackendError) as caught:
                work.wait()
            assert not work.is_success() and work.exception() is caught.value
            assert isinstance(caught.value, hvd.HorovodInternalError)
        dist.barrier()  # the job goes on

    world.run(in_group(run))


def test_a_wrong_call_is_told_to_all(worlds: WorldPool) -> None:
    def run(dist: Any, rank: int, size: int) -> None:
        group = dist.distributed_c10d._get_default_group()
        with pytest.raises(ValueError, match="expected 2 times the 3 elements of torch.float32 of one rank"):
            group.all_gather_single(torch.zeros(5), torch.zeros(3))
        with pytest.raises(ValueError, match="expected a list of 2 tensors, one for each rank, got 1"):
            group.allgather([[torch.zeros(1)]], [torch.zeros(1)])
        with pytest.raises(ValueError, match=r"input_split_sizes=\[1, 1\]: expected 2 numbers that add up to the 3 ro"):
            group.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 2], [1, 1])
        with pytest.raises(ValueError, match="expected a multiple of 2 input rows, got 3"):
            group.all_to_all_single(torch.zeros(4), torch.zeros(3), [], [])

    worlds(2, ENV).run(in_group(run))


@pytest.mark.parametrize("through_future", [False, True])
def test_a_late_rank_ends_the_job_after_the_time_out(through_future: bool) -> None:
    def run(dist: Any, rank: int, size: int) -> str:
        dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=0.3))
        if rank == 1:  # does not call all_reduce until rank 0 has given up
            context = contexts.current()
            while context.library.hvd_settle(context.pointer, 0, None) == 0:
                time.sleep(0.01)
        with pytest.raises(RuntimeError) as caught:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            if through_future:
                work.get_future().wait()
            else:
                work.wait()
        assert through_future or isinstance(caught.value, dist.DistBackendError)
        return str(caught.value)

    with World(2, ENV) as world:
        for text in world.run(in_group(run)):
            assert "rank 0 has waited 0.3 s, the timeout of torch.distributed, for allreduce in the " in text, text
            assert "process group '0' of ranks [0, 1]" in text, text


def test_a_lost_rank_is_named_in_wait_and_through_the_future(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def run(dist: Any, rank: int, size: int) -> str:
        dist.barrier()
        if rank == 1:
            while not begun.exists():  # else rank 0 may still be in the barrier
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
        begun.touch()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        with pytest.raises(RuntimeError, match="rank 1"):
            work.get_future().wait()
        with pytest.raises(dist.DistBackendError, match="rank 1") as caught:
            work.wait()
        return type(caught.value).__mro__[1].__name__

    with World(2, ENV) as world:
        survivor, lost = world.run_each(in_group(run))
    assert survivor.value == "RankLostError", survivor
    assert lost.died
