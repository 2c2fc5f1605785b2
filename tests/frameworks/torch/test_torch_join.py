# SPDX-License-Identifier: Apache-2.0
"""Training on uneven data: DistributedOptimizer goes on with the ranks that have some, as one process would whose batch
has rows of no weight for the others."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd


def steps_of(rank: int) -> int:
    return (3, 5, 2, 5)[rank]


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "shm"), (4, "tcp")])
@pytest.mark.parametrize("passes", [1, 2])
def test_training_goes_on_with_the_ranks_that_have_data(
    worlds: WorldPool, size: int, transport: str, passes: int
) -> None:
    def run(steps: list[int], passes: int) -> tuple[int, list[float], list[float]]:
        hvd.init()

        def model_of(seed: int) -> Any:
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))

        def batch(rank: int, step: int) -> tuple[Any, Any]:
            generator = torch.Generator().manual_seed(1000 * rank + step)
            return torch.randn(4, 5, generator=generator), torch.randn(4, 1, generator=generator)

        def flat(model: Any) -> list[float]:
            return [float(value) for parameter in model.parameters() for value in parameter.detach().reshape(-1)]

        model = model_of(hvd.rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=passes)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        with hvd.uneven_data() as data:
            for step in range(steps[hvd.rank()]):
                for part in range(passes):
                    inputs, wanted = batch(hvd.rank(), step * passes + part)
                    torch.nn.functional.mse_loss(model(inputs), wanted).backward()
                optimizer.step()
                optimizer.zero_grad()
        # Who stopped early has old weights: those of the last rank are the result.
        hvd.broadcast_parameters(model.state_dict(), root_rank=data.last_rank)
        hvd.broadcast_optimizer_state(optimizer, root_rank=data.last_rank)

        alone = model_of(0)
        reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
        for step in range(max(steps)):
            for rank in range(hvd.size()):
                for part in range(passes if step < steps[rank] else 0):
                    inputs, wanted = batch(rank, step * passes + part)
                    (torch.nn.functional.mse_loss(alone(inputs), wanted) / hvd.size()).backward()
            reference.step()
            reference.zero_grad()
        # One more step together: all hooks, and the fast way, are as before.
        inputs, wanted = batch(hvd.rank(), 99)
        for _ in range(passes):
            torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        before = flat(model)
        optimizer.step()
        assert flat(model) != before
        return data.last_rank, before, flat(alone)

    steps = [steps_of(rank) for rank in range(size)]
    results = worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run, steps, passes)
    last_ranks = {last for last, _, _ in results}
    assert len(last_ranks) == 1 and steps[last_ranks.pop()] == max(steps)
    for _, weights, expected in results:
        assert weights == results[0][1]
        assert weights == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_while_others_have_joined_is_named(transport: str) -> None:
    def run() -> None:
        hvd.init()
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)])
        for step in range(10):
            if step == 1 and hvd.rank() == 0:
                hvd.join()
            if step == 5 and hvd.rank() == 2:
                import os

                os.kill(os.getpid(), signal.SIGKILL)
            weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with World(3, {"HOROVOD_TRANSPORT": transport}) as world:
        outcomes = world.run_each(run)
        assert outcomes[2].died == "killed by SIGKILL"
        for rank in (0, 1):
            error: Any = outcomes[rank].error
            assert type(error).__name__ == "RankLostError" and error.failed_rank == 2, world.describe(outcomes)
