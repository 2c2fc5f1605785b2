# SPDX-License-Identifier: Apache-2.0
"""What trains with PyTorch on GPUs, which the stand-in has, beside plain gradients: sparse ones, Adasum, SyncBatchNorm,
and what torch.compile makes of the operations."""

from __future__ import annotations

from typing import Any

import pytest
from frameworks.torch import test_torch_compile as compiling
from support import frameworks
from support.gpu import standin
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from horovod.torch import ops


def started() -> Any:
    """horovod.torch, initialized in this rank, which has GPUs."""
    return frameworks.load("torch_gpu").hvd


@pytest.fixture(params=("best", "host"))
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return worlds(2, standin.environment(request.param, HOROVOD_DYNAMIC_PROCESS_SETS="1"))


# Sparse


def test_sparse_tensors_of_another_stream(world: World) -> None:
    def run() -> str:
        hvd, gpu = started(), standin.gpu()
        rank, side = hvd.rank(), gpu.new_stream()
        for step in range(5):
            with gpu.stream(side):
                # Rank r has r + 1 rows; row 0 is everybody's.
                values = torch.full((rank + 1, 3), 1.0 + rank + step)
                sparse = standin.to_gpu(torch.sparse_coo_tensor([list(range(rank + 1))], values, (4, 3)))
                assert sparse.is_sparse and isinstance(sparse._indices(), standin.GpuTensor)
                wait = hvd.sparse_allreduce_async(sparse, "rows", hvd.Sum)
                del sparse
            result = wait()
            assert result.is_sparse and isinstance(result._values(), standin.GpuTensor)
            assert result.to_dense().cpu()[:, 0].tolist() == [3.0 + 2 * step, 2.0 + step, 0.0, 0.0]
        return standin.races()

    assert world.run(run) == ["", ""]


def test_an_embedding_s_gradient_stays_sparse_on_its_gpu(world: World) -> None:
    def run() -> tuple[list[float], str]:
        hvd = started()
        table = standin.module_to_gpu(torch.nn.Embedding(4, 2, sparse=True))
        with torch.no_grad():
            table.weight.zero_()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            table(standin.to_gpu(torch.tensor([0, 1 + hvd.rank()]))).sum().backward()
            optimizer.synchronize()
            assert table.weight.grad.is_sparse and isinstance(table.weight.grad._values(), standin.GpuTensor)
            with optimizer.skip_synchronize():
                optimizer.step()
        return table.weight.detach().cpu()[:, 0].tolist(), standin.races()

    for values, races in world.run(run):
        assert values == [-2.0, -1.0, -1.0, 0.0] and races == ""


# torch.compile


def test_the_operators_of_compiled_functions(world: World) -> None:
    """What a compiled function calls gives values and gradients as the eager operation, on the GPU."""

    def run() -> tuple[list[str], str]:
        hvd = started()

        wrong = []
        for case, call in compiling.CASES.items():
            if (
                case == "one_of_a_group"
            ):  # autograd makes zeros for the other, and would have to know the stand-in's GPU
                continue
            seen = []
            for compiled in (False, True):
                x = standin.to_gpu(compiling.rows(hvd.rank(), 6)).requires_grad_()
                y = standin.to_gpu(compiling.rows(hvd.rank(), hvd.rank() + 1)).requires_grad_()
                ops.is_compiling = lambda compiled=compiled: compiled
                results = call(hvd, x, y)
                ops.is_compiling = lambda: False
                sum((result * (index + 1)).square().sum() for index, result in enumerate(results)).backward()
                gradients = [tensor.grad for tensor in (x, y) if tensor.grad is not None]
                seen.append([tensor.detach() for tensor in (*results, *gradients)])
            if not all(isinstance(t, standin.GpuTensor) for t in seen[1] if t.is_floating_point()):
                wrong.append(f"{case}: not on the GPU")  # counts of rows are in host memory
            if [t.cpu().tolist() for t in seen[0]] != [t.cpu().tolist() for t in seen[1]]:
                wrong.append(f"{case}: eager {seen[0]}, compiled {seen[1]}")
        return wrong, standin.races()

    for wrong, races in world.run(run):
        assert wrong == [] and races == ""


# Adasum


def test_adasum_moves_parameters_as_on_the_cpu(world: World) -> None:
    def run() -> tuple[list[list[float]], str]:
        hvd = started()

        def trained(place: Any) -> list[float]:
            torch.manual_seed(5)
            model = place(torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)).double())
            inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Adasum)
            for step in range(4):
                generator = torch.Generator().manual_seed(100 * hvd.rank() + step)
                rows = torch.randn(8, 6, generator=generator, dtype=torch.float64)
                optimizer.zero_grad()
                model(rows if place is torch.nn.Module.cpu else standin.to_gpu(rows)).square().mean().backward()
                optimizer.step()
            return [value for p in model.parameters() for value in p.detach().cpu().flatten().tolist()]

        return [trained(standin.module_to_gpu), trained(torch.nn.Module.cpu)], standin.races()

    for (on_gpu, on_host), races in world.run(run):
        assert on_gpu == on_host and races == ""


# SyncBatchNorm


@pytest.mark.parametrize("rows", [[4, 4], [1, 6], [5, 0]], ids=str)
def test_batch_normalization_of_uneven_batches_does_not_wait_for_the_gpu(world: World, rows: list[int]) -> None:
    def run(rows: list[int]) -> tuple[float, int, str]:
        hvd = started()
        generator = torch.Generator().manual_seed(1)
        whole = torch.randn(sum(rows), 3, 2, generator=generator, dtype=torch.float64) + 30
        alone, together = torch.nn.BatchNorm1d(3).double(), standin.module_to_gpu(hvd.SyncBatchNorm(3).double())
        begin = sum(rows[: hvd.rank()])
        own = slice(begin, begin + rows[hvd.rank()])
        mine, every = standin.to_gpu(whole[own]).requires_grad_(), whole.clone().requires_grad_()
        standin.reads_back.clear()
        output = together(mine)
        output.square().sum().backward()
        waits = len(standin.reads_back)
        expected = alone(every)
        expected.square().sum().backward()
        pairs = [(output, expected[own]), (mine.grad, every.grad[own]), (together.running_var, alone.running_var)]
        off = [(a.detach().cpu() - b).abs().max().item() for a, b in pairs if len(b)]
        return max(off), waits, standin.races()

    for rank, (off, waits, races) in enumerate(world.run(run, rows)):
        assert off < 1e-10 and races == ""
        assert waits == (1 if rows[rank] * 2 <= 1 else 0)  # with one value or none it might have to refuse


def test_a_step_reads_no_number_back(world: World) -> None:
    """So the host can run ahead of the GPU from one step to the next."""

    def run() -> list[str]:
        hvd = started()
        model = standin.module_to_gpu(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)))
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), compression=hvd.Compression.fp16)
        standin.reads_back.clear()
        for _ in range(3):
            optimizer.zero_grad()
            model(standin.to_gpu(torch.ones(2, 3))).sum().backward()
            optimizer.step()
        return standin.reads_back

    assert world.run(run) == [[], []]
