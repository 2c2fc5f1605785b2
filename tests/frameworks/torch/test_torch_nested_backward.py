# SPDX-License-Identifier: Apache-2.0
"""A backward inside of a backward, as activation checkpointing with use_reentrant=True and reversible layers run it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.world import World

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd


def wrapped(parameters: Any, **options: Any) -> Any:
    hvd.init()
    torch.set_num_threads(1)
    return hvd.DistributedOptimizer(torch.optim.SGD(list(parameters), lr=1.0), **options)


class Nested(torch.autograd.Function):
    """The sum of functions of x, each with a backward of its own in backward; then `fails` raises."""

    @staticmethod
    def forward(ctx: Any, x: Any, functions: Any, fails: bool) -> Any:
        ctx.save_for_backward(x)
        ctx.functions, ctx.fails = functions, fails
        with torch.no_grad():
            return sum(function(x) for function in functions)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        total = torch.zeros_like(gradient)
        for function in ctx.functions:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                y = function(x)
            torch.autograd.backward(y, gradient)
            total += x.grad
        if ctx.fails:
            raise RuntimeError("no room")
        return total, None, None


def scaled(weight: Any) -> Any:
    return lambda x: x * weight


@pytest.mark.parametrize("passes", [1, 2])
def test_blocks_that_are_all_checkpointed_are_one_round(two: World, passes: int) -> None:
    def run(passes: int) -> tuple[list[float], int]:
        a, b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        for layer in (a, b):
            torch.nn.init.ones_(layer.weight)
        optimizer = wrapped([*a.parameters(), *b.parameters()], backward_passes_per_step=passes)
        optimizer._hvd_reducer.check = None  # it sends something, too
        before = hvd.statistics()["tensors"]
        x = torch.full((1, 1), float(hvd.rank() + 1), requires_grad=True)
        for _ in range(passes):
            # The second block holds a third one, whose backward is nested twice.
            inner = lambda y: checkpoint(b, y, use_reentrant=True)  # noqa: E731
            checkpoint(inner, checkpoint(a, x, use_reentrant=True), use_reentrant=True).sum().backward()
        assert not optimizer._hvd_reducer.in_flight
        return [float(a.weight.grad), float(a.bias.grad)], hvd.statistics()["tensors"] - before

    assert two.run(run, passes) == [([1.5 * passes, 1.0 * passes], 4)] * 2


def test_a_node_with_several_backwards_belongs_to_one_round(two: World) -> None:
    def run() -> tuple[list[float], int]:
        weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
        optimizer = wrapped(weights)
        optimizer._hvd_reducer.check = None  # it sends something, too
        before = hvd.statistics()["tensors"]
        x = torch.tensor([float(hvd.rank())], requires_grad=True)
        for _ in range(2):
            optimizer.zero_grad()
            loss = Nested.apply(x * weights[0], [scaled(weights[1]), scaled(weights[2])], False)
            loss.backward(retain_graph=True)
        return [float(weight.grad) for weight in weights], hvd.statistics()["tensors"] - before

    assert two.run(run) == [([1.0, 0.5, 0.5], 6)] * 2


def test_a_backward_after_one_that_failed_behind_a_nested_one_is_reduced_when_it_returns(two: World) -> None:
    def run() -> float:
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = wrapped([weight])
        x = torch.tensor([float(hvd.rank())], requires_grad=True)
        kept = Nested.apply(x, [scaled(weight)], True)
        with pytest.raises(RuntimeError, match="no room"):
            kept.backward()
        optimizer.synchronize()
        optimizer.zero_grad()
        (weight * x).backward()
        return float(weight.grad)

    assert two.run(run) == [0.5] * 2


def test_a_layer_that_checkpointed_parts_share_is_an_error_with_a_hint(two: World) -> None:
    def run() -> str:
        torch.manual_seed(0)
        shared, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        optimizer = wrapped([*shared.parameters(), *head.parameters()])

        def loss(use_reentrant: bool) -> Any:
            x = torch.ones(2, 8, requires_grad=True) * (hvd.rank() + 1)
            h = checkpoint(shared, x, use_reentrant=use_reentrant)
            h.register_hook(lambda _: time.sleep(0.2))  # the first arrival's reduction is done, or not
            return head(checkpoint(shared, h, use_reentrant=use_reentrant)).sum()

        with pytest.raises(AssertionError) as caught:
            loss(use_reentrant=True).backward()
        optimizer.synchronize()
        optimizer.zero_grad()
        loss(use_reentrant=False).backward()
        gathered = hvd.allgather(shared.weight.grad[None])
        assert torch.equal(gathered[0], gathered[1])
        # As the hint says: with as many passes as parts, there is one reduction, of their sum.
        optimizer.step()
        optimizer.zero_grad()
        expected = None
        for passes, use_reentrant in ((1, False), (2, True)):
            optimizer.set_backward_passes_per_step(passes)
            loss(use_reentrant).backward()
            expected = shared.weight.grad.clone() if expected is None else expected
            torch.testing.assert_close(shared.weight.grad, expected)
            optimizer.zero_grad()
        return str(caught.value)

    for text in two.run(run):
        assert "arrived again while it was being reduced" in text and "use_reentrant=False" in text
