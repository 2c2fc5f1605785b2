# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tools on the backend hvd: what they train is what they train on Gloo, or what one process would; and
its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.extent import later
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

ROOT = Path(__file__).resolve().parents[4]
ENV = {"HOROVOD_TRANSPORT": "shm"}


@pytest.fixture(scope="module", params=[2, *map(later, (3, 4))])
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return worlds(request.param, ENV)


def on_both(function: Callable[..., Any]) -> Callable[[], tuple[Any, Any]]:
    """The values of `function` with Gloo and with hvd. It gets torch.distributed, rank and size."""

    def run() -> tuple[Any, Any]:
        torch.set_num_threads(1)
        values = []
        for backend in ("gloo", "hvd"):
            dist.init_process_group(backend)  # by hvd's rendezvous: there is no MASTER_ADDR
            try:
                if (
                    backend == "gloo"
                ):  # its own thread may otherwise be the last that holds it, and then ends the process
                    torch.distributed.kept = [*getattr(torch.distributed, "kept", ()), dist.group.WORLD]
                torch.manual_seed(0)
                values.append(function(dist, dist.get_rank(), dist.get_world_size()))
            finally:
                dist.destroy_process_group()
        return values[0], values[1]

    return run


def check_equal(world: World, function: Callable[..., Any], rtol: float = 1e-4) -> list[Any]:
    """Both backends give the same on all ranks, but for the order in which they add. Returns hvd's values."""
    results = world.run(on_both(function))
    for of_gloo, of_hvd in results:
        for one, other in zip(of_gloo, of_hvd, strict=True):
            assert torch.allclose(one, other, rtol=rtol, atol=rtol / 10), (one, other)
    return [of_hvd for _, of_hvd in results]


def model(norm: Any = torch.nn.BatchNorm1d) -> Any:
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), norm(32), nn.ReLU(), nn.Linear(32, 8))


def train(wrapped: Any, optimizer: Any, rank: int, steps: int = 4) -> None:
    torch.manual_seed(1 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()


def parameters_of(trained: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in trained.parameters()]


@pytest.mark.parametrize(
    "hook, rtol",
    [("none", 1e-4), ("fp16", 0.05), ("power", 0.05), ("FP16_COMPRESS", 0.05), ("ALLREDUCE", 1e-4)],  # that round
)
@pytest.mark.parametrize("as_views", [True, later(False)])
def test_ddp_with_and_without_hooks(world: World, as_views: bool, hook: str, rtol: float) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

        plain = model()
        # PowerSGD's callbacks call collectives, which several buckets would order differently on each rank.
        wrapped = torch.nn.parallel.DistributedDataParallel(
            plain,
            gradient_as_bucket_view=as_views,
            bucket_cap_mb=None if hook == "power" else 0.001,
            static_graph=hook.isupper(),
        )
        if hook.isupper():
            wrapped._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook))
        if hook == "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "power":
            state = power.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
            wrapped.register_comm_hook(state, power.powerSGD_hook)
        train(wrapped, torch.optim.SGD(plain.parameters(), 0.1), rank)
        return parameters_of(plain)

    values = check_equal(world, run, rtol)
    for others in values[1:]:
        for one, other in zip(values[0], others, strict=True):
            assert torch.equal(one, other)


def test_the_hook_reduces_with_hvd_on_any_backend(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        hvd.init()
        results = []
        for hook in (None, hvd.ddp_hook):
            plain = model()
            wrapped = torch.nn.parallel.DistributedDataParallel(plain)
            if hook is not None:
                wrapped.register_comm_hook(None, hook)
            before = hvd.statistics()["batches"]
            train(wrapped, torch.optim.SGD(plain.parameters(), 0.1), rank)
            assert hook is None or hvd.statistics()["batches"] > before
            results.append(parameters_of(plain))
        assert all(map(torch.allclose, *results))
        return results[1]

    check_equal(world, run)


@pytest.mark.slow("compiles with PyTorch")
def test_a_compiled_model_is_trained(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        wrapped = DistributedDataParallel(model())  # its buffers are broadcast between two compiled parts
        train(torch.compile(wrapped, backend="eager"), torch.optim.SGD(wrapped.parameters(), 0.1), rank)
        return parameters_of(wrapped)

    check_equal(world, run)


def test_zero_and_joined_inputs(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        from torch.distributed.algorithms.join import Join
        from torch.distributed.optim import ZeroRedundancyOptimizer

        # Not BatchNorm: the gradient of the bias before it is noise, which Adam makes large.
        plain = model(torch.nn.Identity)
        wrapped = torch.nn.parallel.DistributedDataParallel(plain)
        zero = ZeroRedundancyOptimizer(plain.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
        train(wrapped, zero, rank)
        linear = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
        optimizer = torch.optim.SGD(linear.parameters(), 0.1)
        with Join([linear]):
            train(linear, optimizer, rank, steps=2 + rank)  # each rank has another number of batches
        return parameters_of(plain) + parameters_of(linear)

    check_equal(world, run)


def test_fsdp_and_tensor_parallel(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
        nn = torch.nn
        torch.manual_seed(0)
        sharded = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        for layer in (sharded[0], sharded[2], sharded):
            fully_shard(layer, mesh=mesh)
        train(sharded, torch.optim.Adam(sharded.parameters(), 1e-2), rank)
        results = [parameter.full_tensor().detach() for parameter in sharded.parameters()]

        torch.manual_seed(0)
        split = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8))
        parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        train(split, torch.optim.SGD(split.parameters(), 0.1), 0)
        results += [parameter.full_tensor().detach() for parameter in split.parameters()]

        matrix = torch.arange(144.0).view(12, 12)
        rows = distribute_tensor(matrix, mesh, [Shard(0)])
        columns = rows.redistribute(placements=[Shard(1)])
        assert torch.equal((rows.T @ columns).full_tensor(), matrix.T @ matrix)
        return results

    check_equal(world, run)


@pytest.mark.parametrize("policy", ["plain", "mixed precision"])
def test_fsdp_reshards_or_not_and_accumulates(world: World, policy: str) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = dist.init_device_mesh("cpu", (size,))
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
        nn = torch.nn
        results = []
        for reshards in (True, False):
            torch.manual_seed(0)
            sharded = nn.Sequential(nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 1))  # one row is on one rank alone
            for layer in (sharded[0], sharded[2], sharded):
                options = {"mp_policy": half} if policy == "mixed precision" else {}
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshards, **options)
            optimizer = torch.optim.SGD(sharded.parameters(), 0.1)
            torch.manual_seed(1 + rank)
            for step in range(6):
                last = step % 3 == 2
                sharded.set_requires_gradient_sync(last)
                sharded.set_is_last_backward(last)
                sharded(torch.randn(8, 16)).square().mean().backward()
                if last:
                    results.append(nn.utils.clip_grad_norm_(sharded.parameters(), 0.5).full_tensor())
                    optimizer.step()
                    optimizer.zero_grad()
            results += [parameter.full_tensor().detach() for parameter in sharded.parameters()]
        assert all(map(torch.equal, results[: len(results) // 2], results[len(results) // 2 :]))
        return results

    check_equal(world, run)


def test_a_dtensor_is_laid_out_anew(world: World) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

        mesh = dist.init_device_mesh("cpu", (size,))
        results = []
        for shape in ((7, 5), (1, 9), (8, 12)):  # uneven, with nothing on some ranks, even
            whole = torch.arange(float(shape[0] * shape[1])).view(shape)
            for first in (Shard(0), Shard(1), Replicate()):
                placed = distribute_tensor(whole, mesh, [first])
                for then in (Shard(0), Shard(1), Replicate()):
                    moved = placed.redistribute(placements=[then])
                    assert torch.equal(moved.full_tensor(), whole), (first, then)
            for reduced in (Partial(), Partial("min"), Partial("max")):  # Gloo of older releases has no average
                parts = DTensor.from_local(whole * (rank + 1), mesh, [reduced])
                for then in (Shard(0), Shard(1), Replicate()):
                    moved = parts.redistribute(placements=[then])
                    results += [moved.to_local(), moved.full_tensor()]
        return results

    check_equal(world, run)


def test_a_mesh_of_two_dimensions_shards_and_replicates(worlds: WorldPool) -> None:
    def run(dist: Any, rank: int, size: int) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        torch.manual_seed(0)
        plain = torch.nn.Linear(16, 8)
        fully_shard(plain, mesh=mesh)
        train(plain, torch.optim.SGD(plain.parameters(), 0.1), rank)
        return [parameter.full_tensor().detach() for parameter in plain.parameters()]

    check_equal(worlds(4, ENV), run)


@pytest.mark.parametrize("saver", ["hvd", "gloo"])
def test_a_checkpoint_is_loaded_by_another_number_of_ranks(worlds: WorldPool, tmp_path: Path, saver: str) -> None:
    def run(folder: str, backend: str, saves: bool) -> Any:
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group(backend)
        try:
            torch.manual_seed(0 if saves else 9)
            plain = torch.nn.Linear(16, 8)
            fully_shard(plain, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
            optimizer = torch.optim.Adam(plain.parameters(), 1e-2)
            if saves:
                train(plain, optimizer, dist.get_rank())
            of_model, of_optimizer = get_state_dict(plain, optimizer)
            state = {"model": of_model, "optimizer": of_optimizer}
            if saves:
                saved = checkpoint.async_save(state, checkpoint_id=f"{folder}/async", process_group=dist.new_group())
                checkpoint.save(state, checkpoint_id=f"{folder}/sync")
                saved.result()
            values = []
            for name in ("sync",) if saves else ("sync", "async"):
                if not saves:
                    checkpoint.load(state, checkpoint_id=f"{folder}/{name}")
                    set_state_dict(plain, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
                values += [parameter.full_tensor().detach() for parameter in plain.parameters()]
                values += [value["exp_avg"].full_tensor() for value in optimizer.state.values()]
            return values
        finally:
            dist.destroy_process_group()

    saved = worlds(2, ENV).run(run, str(tmp_path), saver, True)
    loaded = worlds(3, ENV).run(run, str(tmp_path), "hvd", False)
    for one in saved:
        assert len(one) == 4 and all(map(torch.equal, one, saved[0]))
    for one in loaded:
        assert len(one) == 8 and all(map(torch.equal, one, saved[0] * 2))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [2, *map(later, (3, 4))])
def test_pytorchs_own_tests_pass(ranks: int) -> None:
    pytest.importorskip("expecttest", reason="not run: expecttest is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "try-torch-suite"), str(ranks)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=1780,
    )
    ran = int(done.stdout.split(" tests ran")[0].split()[-1])
    assert done.returncode == 0 and ran >= 90, done.stderr[-8000:]
