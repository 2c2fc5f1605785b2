# SPDX-License-Identifier: Apache-2.0
"""Gradients that change in place by other means than backward: written by hand, zeroed, clipped."""

from __future__ import annotations

from typing import Any

import pytest
from support.world import WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

SHM = {"HOROVOD_TRANSPORT": "shm"}


def wrapped(parameters: Any, **options: Any) -> Any:
    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    return hvd.DistributedOptimizer(torch.optim.SGD(list(parameters), lr=1.0), **options)


def test_gradients_written_by_hand_are_reduced_in_every_step(worlds: WorldPool) -> None:
    def run() -> float:
        import horovod.torch as hvd

        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = wrapped([weight])
        weight.grad = torch.zeros(1)
        for _ in range(2):
            weight.grad.copy_(torch.tensor([float(hvd.rank())]))
            optimizer.step()
        return float(weight)

    assert worlds(2, SHM).run(run) == [-1.0] * 2


def test_gradients_may_be_zeroed_in_place_when_a_step_was_left_out(worlds: WorldPool) -> None:
    def run() -> list[float]:
        import horovod.torch as hvd

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

    assert worlds(2, SHM).run(run) == [[1.5, 4.5]] * 2


def test_gradients_clipped_between_two_losses_of_a_step_are_not_reduced_again(worlds: WorldPool) -> None:
    def run() -> list[float]:
        import horovod.torch as hvd

        a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = wrapped([a, b], op=hvd.Sum)
        seen = []
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            (a * (hvd.rank() + 1)).sum().backward()
            torch.nn.utils.clip_grad_norm_([a], 1.0)
            (b * (hvd.rank() + 1)).sum().backward()
            seen += [round(float(a.grad), 3), float(b.grad)]
        return seen

    assert worlds(2, SHM).run(run) == [[1.0, 3.0] * 2] * 2
