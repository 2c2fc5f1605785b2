# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer(op=Adasum): each rank steps by itself, and Adasum combines how far the parameters moved."""

from __future__ import annotations

from typing import Any

import pytest
from support import reference
from support.compressors import Broken
from support.world import World, WorldPool

from horovod.core.native import Adasum
from horovod.gradients.options import ReductionOptions

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd
from horovod.torch.adasum_optimizer import adasum_optimizer

SHM = {"HOROVOD_TRANSPORT": "shm"}


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (2, "shm"), (2, "tcp"), (4, "shm")])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_the_parameters_move_by_the_adasum_of_all_ranks_own_steps(
    worlds: WorldPool, size: int, transport: str, kind: str
) -> None:
    def run(kind: str) -> list[list[float]]:
        hvd.init()

        def model() -> Any:
            torch.manual_seed(5)
            return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)).double()

        def optimizer_of(model: Any) -> Any:
            options = {"momentum": 0.9} if kind == "SGD" else {}
            return getattr(torch.optim, kind)(model.parameters(), lr=0.05, **options)

        def backward(model: Any, rank: int, step: int) -> None:
            generator = torch.Generator().manual_seed(100 * rank + step)
            model(torch.randn(8, 6, generator=generator, dtype=torch.float64)).square().mean().backward()

        together = model()
        optimizer = hvd.DistributedOptimizer(optimizer_of(together), together.named_parameters(), op=hvd.Adasum)
        assert isinstance(optimizer, getattr(torch.optim, kind))
        # The same by hand: every rank's model and optimizer, in each process.
        models = [model() for _ in range(hvd.size())]
        optimizers = [optimizer_of(one) for one in models]
        for step in range(4):
            backward(together, hvd.rank(), step)
            optimizer.step()
            optimizer.zero_grad()
            starts = [parameter.detach().clone() for parameter in models[0].parameters()]
            for rank in range(hvd.size()):
                backward(models[rank], rank, step)
                optimizers[rank].step()
                optimizers[rank].zero_grad()
            with torch.no_grad():
                for moved, start in zip(zip(*[one.parameters() for one in models], strict=True), starts, strict=True):
                    delta = torch.from_numpy(reference.adasum([(p - start).numpy() for p in moved]))
                    for parameter in moved:
                        parameter.copy_(start + delta)
            for parameter, wanted in zip(together.parameters(), models[0].parameters(), strict=True):
                torch.testing.assert_close(parameter, wanted, rtol=1e-10, atol=1e-12)
        return [parameter.detach().reshape(-1).tolist() for parameter in together.parameters()]

    results = worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run, kind)
    assert all(result == results[0] for result in results)


def test_accumulation_frozen_and_unused_parameters_compression_and_schedulers(two: World) -> None:
    def run() -> list[float]:
        used, unused, frozen = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
        frozen.requires_grad_(False)
        inner = torch.optim.SGD([used, unused, frozen], lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.1)
        optimizer = hvd.DistributedOptimizer(
            inner,
            op=hvd.Adasum,
            backward_passes_per_step=2,
            compression=hvd.Compression.fp16,
            groups=1,
            sparse_as_dense=True,
        )
        optimizer.set_backward_passes_per_step(2)
        with pytest.raises(ValueError, match="backward_passes_per_step=0"):
            optimizer.set_backward_passes_per_step(0)
        for _ in range(2):
            with optimizer.no_sync():
                used.sum().backward()
        if hvd.rank() == 1:  # trained on one rank alone: its step counts in full
            unused.sum().backward()
        loss = optimizer.step(lambda: 7.0)
        optimizer.synchronize()
        assert loss == 7.0
        before = used.detach().clone()
        used.grad, unused.grad = torch.full_like(used, float(hvd.rank())), None
        optimizer.synchronize()  # as an old script clips
        torch.nn.utils.clip_grad_norm_([used], 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert not torch.equal(used, before), "the other rank's step counts"
        with torch.no_grad():
            used.copy_(before)
        with pytest.raises(ValueError, match="DistributedOptimizer already"):
            hvd.DistributedOptimizer(optimizer)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
        return [used[0].item(), unused[0].item(), frozen[0].item()]

    for result in two.run(run):
        assert result == [0.0, 0.5, 1.0]


def test_an_option_that_adasum_does_not_know_is_refused_by_name() -> None:
    options = ReductionOptions(op=Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="average_aggregated_gradients is not for op=Adasum"):
        adasum_optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0), {}, options)


def test_a_step_that_one_rank_cannot_combine_is_undone_on_all(two: World) -> None:
    def run() -> tuple[str, list[float]]:
        first, second = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2 + hvd.rank()))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0), op=hvd.Adasum)
        (first.sum() + second.sum()).backward()
        with pytest.raises(hvd.HorovodInternalError) as raised:
            optimizer.step()
        return str(raised.value), first.tolist()

    for text, values in two.run(run):
        assert "delta.0.1" in text and "shape [2], got [3]" in text
        assert values == [1.0, 1.0]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sets_and_sizes_and_ranks_without_data(worlds: WorldPool, transport: str) -> None:
    def run() -> list[float]:
        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(4))
        pair = hvd.add_process_set([0, 1])
        with pytest.raises(NotImplementedError, match=r"Adasum needs 2, 4, 8, \.\.\. ranks, got 3"):
            hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum, process_set=pair)
        for _ in range(1 + hvd.rank()):
            weight[hvd.rank()].backward()
            optimizer.step()
            optimizer.zero_grad()
        hvd.join()
        assert hvd.remove_process_set(pair)
        return [float(value) for value in weight.tolist()]

    # Ranks 0 and 1 move along axes of their own, then rank 1 alone; rank 2 is in no set.
    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    seen = worlds(3, env).run(run)
    assert seen == [[-1.0, -1.0, 0.0, 0.0], [-1.0, -2.0, 0.0, 0.0], [0.0, 0.0, -3.0, 0.0]]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(worlds: WorldPool, fused: bool, unscaled: bool) -> None:
    """The ranks' gradients lie in one direction, of which Adasum makes the average."""

    def run(fused: bool, unscaled: bool) -> list[float]:
        hvd.init()
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0, fused=fused), op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            factor = float("inf") if step == 1 and hvd.rank() == 1 else float(hvd.rank() + 1)
            scaler.scale((parameter * factor).sum()).backward()
            if unscaled:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            seen.append(parameter.tolist()[0])
        return seen

    assert worlds(2, SHM).run(run, fused, unscaled) == [[-0.5, -0.5, -2.0, -3.5]] * 2
    # Alone, nobody but step() unscales either.
    assert worlds(1, {}).run(run, fused, unscaled) == [[0.0, -1.0, -2.0, -3.0]]


def test_the_other_rank_does_not_wait_for_a_compressor_that_raises(two: World) -> None:
    def run() -> str:
        broken = hvd.rank() == 1
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=0.1),
            op=hvd.Adasum,
            compression=Broken if broken else hvd.Compression.none,
        )
        parameter.sum().backward()
        with pytest.raises(ArithmeticError if broken else hvd.HorovodInternalError) as caught:
            optimizer.step()
        assert parameter.tolist() == [1.0] * 3
        return str(caught.value)

    peer, own = two.run(run)
    assert own == "there is no codebook"
    assert "rank 1" in peer and "there is no codebook" in peer, peer
