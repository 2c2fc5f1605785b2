# SPDX-License-Identifier: Apache-2.0
"""Steps in which something is missing: gradients of some parameters, or some of the passes."""

from __future__ import annotations

import pytest
from support.world import WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")


def test_a_parameter_without_gradient_on_some_ranks_is_reduced_on_all(worlds: WorldPool) -> None:
    def run() -> tuple[list[float], list[float], list[bool], list[float]]:
        import horovod.torch as hvd

        hvd.init()
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
    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run) == [([1.0, 1.0], [2.0, 2.0], [True, True], [0.0, 0.0])] * 2


@pytest.mark.parametrize("rest", ["step", "drop", "drop in place", "keep"])
def test_an_epochs_last_passes_may_be_fewer(worlds: WorldPool, rest: str) -> None:
    """Six passes an epoch, a step after four; the last two have a step, too, or are dropped or kept for the next."""

    def run(rest: str) -> float:
        import horovod.torch as hvd

        hvd.init()
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

    assert max(worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, rest)) < 1e-6
