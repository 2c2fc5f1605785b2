# SPDX-License-Identifier: Apache-2.0
"""Training and state over a process set: its members agree, and the other ranks are left alone."""

from __future__ import annotations

import pytest
from support.world import WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_optimizer_over_a_set_averages_its_members_gradients(worlds: WorldPool, transport: str) -> None:
    def run() -> list[float]:
        hvd.init()
        pair = hvd.add_process_set([0, 2])
        weight = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        if pair.included():
            hvd.broadcast_parameters({"weight": weight.data, "epoch": hvd.rank()}, root_rank=2, process_set=pair)
            hvd.broadcast_optimizer_state(optimizer, root_rank=2, process_set=pair)
        optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], process_set=pair)
        for _ in range(3):
            optimizer.zero_grad()
            (weight.sum() * (hvd.rank() + 1)).backward()
            optimizer.step()
        # Two optimizers over sets that share a rank, in one backward.
        other = hvd.add_process_set([1, 2])
        both = torch.nn.Parameter(torch.zeros(1))
        overlapping = hvd.DistributedOptimizer(torch.optim.SGD([both], lr=1.0), [("both", both)], process_set=other)
        ((both + weight.sum()) * (hvd.rank() + 1)).backward()
        overlapping.step()
        assert hvd.remove_process_set(pair) and hvd.remove_process_set(other)
        return [weight[0].item(), both.item(), weight.grad[0].item()]

    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    # Members start from rank 2's value and average the gradients 1 and 3; rank 1 goes on with its own, 2. The last
    # backward adds to what the third step left.
    assert worlds(3, env).run(run) == [
        [2.0 - 3 * 2.0, -1.0, 4.0],
        [1.0 - 3 * 2.0, -2.5, 4.0],
        [2.0 - 3 * 2.0, -2.5, 4.0],
    ]


def test_state_that_differs_in_a_set_names_its_world_ranks(worlds: WorldPool) -> None:
    def run() -> str:
        hvd.init()
        pair = hvd.add_process_set([1, 2])
        text = ""
        if pair.included():
            weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(hvd.rank())]
            with pytest.raises(hvd.HorovodInternalError) as caught:
                hvd.broadcast_optimizer_state(torch.optim.SGD(weights, lr=1.0), root_rank=1, process_set=pair)
            text = str(caught.value)
        assert hvd.remove_process_set(pair)
        return text

    texts = worlds(3, {"HOROVOD_TRANSPORT": "shm", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(run)
    assert texts[0] == ""
    for text in texts[1:]:
        assert "the optimizer of rank 2 is not like that of rank 1, the root" in text, text
        assert "expected parameter groups of [1] parameters, got [2]" in text, text


def test_a_set_that_is_not_registered_is_refused_by_its_members(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        pair, everybody = hvd.ProcessSet([0, 1]), hvd.ProcessSet([])
        weight = torch.nn.Parameter(torch.zeros(1))
        texts = []
        for process_set in (pair, everybody):
            for op in (hvd.Average, hvd.Adasum):
                sgd = torch.optim.SGD([weight], lr=1.0)
                try:
                    hvd.DistributedOptimizer(sgd, op=op, process_set=process_set)
                except ValueError as error:
                    texts.append(str(error))
            layer = hvd.SyncBatchNorm(2, process_set=process_set)
            layer.eval()(torch.ones(1, 2))  # nothing is averaged
            try:
                layer.train()(torch.ones(3, 2))
            except ValueError as error:
                texts.append(str(error))
        return texts

    members, other = ["[0, 1]"] * 3 + ["[]"] * 3, ["[]"] * 3
    for texts, expected in zip(worlds(3).run(run), [members, members, other], strict=True):
        for text, ranks in zip(texts, expected, strict=True):
            assert text.startswith(f"ProcessSet(process_set_id=None, ranks={ranks}, mpi_comm=None) is not registered")
            assert "hint: give it to init" in text
