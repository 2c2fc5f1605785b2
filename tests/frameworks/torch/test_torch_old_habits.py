# SPDX-License-Identifier: Apache-2.0
"""What scripts do around backward() and step(): gradients that change in place, and steps in which some are missing.
Some of it docs/differences.md explains."""

from __future__ import annotations

from typing import Any

import pytest
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_before_step_is_as_in_one_process(two: World, set_to_none: bool) -> None:
    def run(set_to_none: bool) -> list[float]:
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
    assert two.run(run, set_to_none) == [expected] * 2


def test_synchronize_and_then_step_reduce_nothing_again(worlds: WorldPool) -> None:
    def run() -> tuple[float, int]:
        hvd.init()
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        before = hvd.statistics()["tensors"]
        (weight * float(hvd.rank() + 1)).sum().backward()
        optimizer.synchronize()
        weight.grad.mul_(1 + hvd.rank())  # another reduction would make the ranks' gradients equal again
        optimizer.step()
        return weight.item(), hvd.statistics()["tensors"] - before

    checks = ("HOROVOD_REPLICA_CHECK_STEPS", "HOROVOD_SAME_ROWS_CHECK")  # which are operations, too
    assert worlds(2, {"HOROVOD_TRANSPORT": "shm", **dict.fromkeys(checks, "0")}).run(run) == [(-1.5, 1), (-3.0, 1)]


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_step_hooks_run_once_after_a_checkpoint_was_loaded(two: World, op: str) -> None:
    def run(op: str) -> list[str]:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=getattr(hvd, op))
        optimizer.load_state_dict(optimizer.state_dict())
        events: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: events.append("before"))
        optimizer.register_step_post_hook(lambda *_: events.append("after"))
        weight.sum().backward()
        optimizer.step()
        return events

    assert two.run(run, op) == [["before", "after"]] * 2


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_a_scheduler_made_before_wrapping_works_after_a_checkpoint_was_loaded(two: World, op: str) -> None:
    def run(op: str) -> list[float]:
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
    assert two.run(run, op) == [pytest.approx([0.1, 0.1])] * 2


def test_a_rank_without_a_backward_may_step_before_other_collectives(two: World) -> None:
    def run() -> list[float]:
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

    assert two.run(run) == [[-1.5, 0.5]] * 2


# Gradients that change in place by other means than backward


def wrapped(parameters: Any, **options: Any) -> Any:
    hvd.init()
    torch.set_num_threads(1)
    return hvd.DistributedOptimizer(torch.optim.SGD(list(parameters), lr=1.0), **options)


def test_gradients_may_be_zeroed_in_place_when_a_step_was_left_out(two: World) -> None:
    def run() -> list[float]:
        model = torch.nn.Linear(1, 1)
        optimizer = wrapped(model.parameters())
        seen = []
        for factor in (1.0, 3.0):
            (model(torch.ones(1)) * factor * (hvd.rank() + 1)).sum().backward()
            seen.append(float(model.weight.grad))
            model.zero_grad(set_to_none=False)
        (model(torch.ones(1))).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with pytest.raises(AssertionError, match="computed again"):
            (model(torch.ones(1))).sum().backward()
        optimizer.zero_grad()
        return seen

    assert two.run(run) == [[1.5, 4.5]] * 2


# Steps in which something is missing


def test_a_parameter_without_gradient_on_some_ranks_is_reduced_on_all(two: World) -> None:
    def run() -> tuple[list[float], list[float], list[bool], list[float]]:
        shared, sometimes, never, zero = (torch.nn.Parameter(torch.ones(2)) for _ in range(4))
        table = torch.nn.Embedding(4, 2, sparse=True)
        parameters = [shared, sometimes, never, zero, table.weight]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
        (shared.sum() + table(torch.tensor([hvd.rank()])).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = shared.sum()
        if hvd.rank() == 1:
            loss = loss + 4 * sometimes.sum() + 0 * zero.sum()
        loss.backward()
        assert float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)) == 2.0  # nobody is left in backward()
        optimizer.step()
        are_none = [parameter.grad is None for parameter in (never, table.weight)]
        return shared.grad.tolist(), sometimes.grad.tolist(), are_none, zero.grad.tolist()

    # As in one process with the whole batch: an optimizer leaves alone what has no gradient anywhere.
    assert two.run(run) == [([1.0, 1.0], [2.0, 2.0], [True, True], [0.0, 0.0])] * 2


@pytest.mark.parametrize("rest", ["step", "drop", "drop in place", "keep"])
def test_an_epochs_last_passes_may_be_fewer(two: World, rest: str) -> None:
    """Six passes an epoch, a step after four; the last two have a step, too, or are dropped or kept for the next."""

    def run(rest: str) -> float:
        rank = hvd.rank()

        def train(distributed: bool) -> torch.Tensor:
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=4)
            random = torch.Generator().manual_seed(1)
            for _ in range(3):
                for number in range(1, 7):
                    rows = torch.randn(2, 2, generator=random)
                    net(rows[rank : rank + 1] if distributed else rows).pow(2).mean().backward()
                    if number == 4 or (number == 6 and rest == "step"):
                        if distributed and number == 6:
                            optimizer.synchronize()  # type: ignore[attr-defined]
                        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                        optimizer.step()
                        net.zero_grad()
                if rest.startswith("drop"):
                    net.zero_grad(set_to_none=rest == "drop")
            return torch.cat([parameter.detach().ravel() for parameter in net.parameters()])

        difference = float((train(True) - train(False)).abs().max())
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), backward_passes_per_step=2)
        weight.sum().backward()
        torch.nn.utils.clip_grad_norm_([weight], 0.5)
        with pytest.warns(UserWarning, match="was changed, by clipping .* has 1 of 2 backward passes\nhint: call opt"):
            optimizer.step()
        return difference

    assert max(two.run(run, rest)) < 1e-6
