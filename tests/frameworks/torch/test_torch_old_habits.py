# SPDX-License-Identifier: Apache-2.0
"""What scripts do around backward() and step(): some of it docs/differences.md explains."""

from __future__ import annotations

from typing import Any

import pytest
from support.world import WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

SHM = {"HOROVOD_TRANSPORT": "shm"}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_before_step_is_as_in_one_process(worlds: WorldPool, set_to_none: bool) -> None:
    def run(set_to_none: bool) -> list[float]:
        import horovod.torch as hvd

        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0, momentum=0.5))
        values = []
        for clears in (False, True, False):
            (weight * float(hvd.rank())).sum().backward()
            if clears:
                optimizer.zero_grad(set_to_none=set_to_none)
            optimizer.step()
            optimizer.zero_grad()
            values.append(weight.item())
        return values

    # Velocities 0.5, half of it, and half of that with 0.5 more. Without a gradient the second step does nothing.
    expected = [-0.5, -0.5, -1.25] if set_to_none else [-0.5, -0.75, -1.375]
    assert worlds(2, SHM).run(run, set_to_none) == [expected] * 2


def test_synchronize_and_then_step_reduce_nothing_again(worlds: WorldPool) -> None:
    def run() -> tuple[float, int]:
        import horovod.torch as hvd

        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        before = hvd.statistics()["tensors"]
        (weight * float(hvd.rank() + 1)).sum().backward()
        optimizer.synchronize()
        weight.grad.mul_(1 + hvd.rank())  # another reduction would make the ranks' gradients equal again
        optimizer.step()
        return weight.item(), hvd.statistics()["tensors"] - before

    without_check = {**SHM, "HOROVOD_REPLICA_CHECK_STEPS": "0"}  # which is an operation, too
    assert worlds(2, without_check).run(run) == [(-1.5, 1), (-3.0, 1)]


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_step_hooks_run_once_after_a_checkpoint_was_loaded(worlds: WorldPool, op: str) -> None:
    def run(op: str) -> list[str]:
        import horovod.torch as hvd

        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=getattr(hvd, op))
        optimizer.load_state_dict(optimizer.state_dict())
        events: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: events.append("before"))
        optimizer.register_step_post_hook(lambda *_: events.append("after"))
        weight.sum().backward()
        optimizer.step()
        return events

    assert worlds(2, SHM).run(run, op) == [["before", "after"]] * 2


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_a_scheduler_made_before_wrapping_works_after_a_checkpoint_was_loaded(worlds: WorldPool, op: str) -> None:
    def run(op: str) -> list[float]:
        import horovod.torch as hvd

        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        plain = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.1)
        optimizer: Any = hvd.DistributedOptimizer(plain, op=getattr(hvd, op))
        weight.sum().backward()
        optimizer.step()
        checkpoint = optimizer.state_dict()
        for _ in range(2):
            optimizer.load_state_dict(checkpoint)
            optimizer.step()
            scheduler.step()
        assert plain.state[weight] is optimizer.state[weight]
        return [group["lr"] for group in (*plain.param_groups, *optimizer.param_groups)]

    # The checkpoint has the first rate; each of its loads sets the schedule back.
    assert worlds(2, SHM).run(run, op) == [pytest.approx([0.1, 0.1])] * 2


def test_a_rank_without_a_backward_may_step_before_other_collectives(worlds: WorldPool) -> None:
    def run() -> list[float]:
        import horovod.torch as hvd

        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        for way in ("synchronize", "step", "zeros"):
            if hvd.rank() == 0:
                weight.sum().backward()
            elif way == "zeros":
                (0 * weight).sum().backward()
            elif way == "synchronize":
                optimizer.synchronize()
            if way == "step":
                optimizer.step()
                hvd.barrier()
            else:
                hvd.barrier()
                optimizer.step()
            if way != "zeros":
                optimizer.zero_grad()
        return [float(weight), float(weight.grad)]

    assert worlds(2, SHM).run(run) == [[-1.5, 0.5]] * 2


def test_a_sparse_gradient_that_no_rank_has_is_none(worlds: WorldPool) -> None:
    def run() -> bool:
        import horovod.torch as hvd

        hvd.init()
        shared, table = torch.nn.Parameter(torch.ones(2)), torch.nn.Embedding(4, 2, sparse=True)
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([shared, table.weight], lr=1.0))
        (shared.sum() + table(torch.tensor([hvd.rank()])).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        shared.sum().backward()
        return table.weight.grad is None

    assert worlds(2, SHM).run(run) == [True] * 2
