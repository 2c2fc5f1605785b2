# SPDX-License-Identifier: Apache-2.0
"""Ranks whose parameters or options differ are told before the first step, and every so many steps if asked."""

from __future__ import annotations

import contextlib
import io
import linecache
import sys
import warnings
from typing import Any

import pytest
from support.world import WorldPool

from horovod.core.exceptions import MismatchError
from horovod.core.process_sets import global_process_set
from horovod.gradients.replica_check import ReplicaCheck, of_value

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

SHM = {"HOROVOD_TRANSPORT": "shm"}


def test_what_differs_and_on_which_ranks_is_named(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        rank = hvd.rank()

        def said(name: str, values: list[tuple[str, Any]], process_set: Any = global_process_set) -> str:
            check = ReplicaCheck(name, process_set)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if check.is_due():
                    check.compare(of_value(key, value) for key, value in values)
            return str(caught[0].message).splitlines()[0] if caught else ""

        texts = [
            said("equal", [("lr", 0.1), ("w", 1)]),
            said("one", [("lr", 0.1 if rank != 1 else 0.2), ("w", 1), ("b", rank)]),
            said("more", [("lr", 0.1), *([("b", 1)] if rank == 2 else [])]),
        ]
        odd = hvd.add_process_set([1, 2])
        texts.append(said("in a set", [("w", rank == 0)], odd) if rank else "")
        kept = ReplicaCheck("kept", global_process_set)
        due = [kept.is_due(), kept.is_due()]
        with hvd.uneven_data():
            if rank:
                due.append(kept.is_due())
                texts.append(said("joined", [("w", 1)]))
                texts.append(said("joined, too", [("w", rank)]))
        assert due == [True, *[False] * (len(due) - 1)]
        after = [kept.is_due() for _ in range(4)]
        assert after == [True, False, False, True], "a join leaves old weights, and unequal numbers of steps"
        hvd.remove_process_set(odd)  # other tests use this world, too
        return texts

    none = ["", "", "", ""]
    common = [
        "",
        "before step 1 of one, the ranks differ in `lr`, and 1 other after it; rank 1 is unlike the other 2 ranks",
        "before step 1 of more, the ranks have different parts: rank 0 lacks `b`, which rank 2 has",
        "",
    ]
    joined = ["", "before step 1 of joined, too, the ranks differ in `w`; rank 1 is unlike rank 2"]
    environment = {**SHM, "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_REPLICA_CHECK_STEPS": "3"}
    assert worlds(3, environment).run(run) == [common, [*none, *joined], [*none, "", ""]]


def training(every: str) -> Any:
    def run() -> list[str]:
        hvd.init()
        torch.manual_seed(hvd.rank())
        net = torch.nn.Linear(4, 1)
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
        if every != "0":
            hvd.broadcast_parameters(net.state_dict(), 0)
        texts = []
        for number in range(5):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            if number == 1 and hvd.rank() == 1:
                with torch.no_grad():
                    net.weight.add_(1.0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            texts += [f"{number}: {one.message}".splitlines()[0] for one in caught]
            assert all(linecache.getline(one.filename, one.lineno).strip() == "optimizer.step()" for one in caught)
        return texts

    return run


@pytest.mark.parametrize("every", ["0", "1", "2"])
def test_pytorchs_optimizer_checks_its_first_step_and_more_if_asked(worlds: WorldPool, every: str) -> None:
    seen = worlds(2, {**SHM, "HOROVOD_REPLICA_CHECK_STEPS": every}).run(training(every))
    weight = "before step {} of the optimizer that updates `bias`, the ranks differ in `weight`"
    expected = {"0": [], "1": [], "2": [2, 4]}[every]
    assert seen[1] == []
    for number, text in zip(expected, seen[0], strict=True):
        assert text.startswith(f"{number}: {weight.format(number + 1)}; rank 0 is unlike rank 1")


def test_a_forgotten_broadcast_is_an_error_if_asked_and_a_rank_may_step_without_a_backward(worlds: WorldPool) -> None:
    def run() -> str:
        hvd.init()
        net = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.constant_(net.weight, float(hvd.rank()))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
        if hvd.rank() == 0:
            net(torch.ones(2, 2)).sum().backward()
        with pytest.raises(MismatchError) as caught:
            optimizer.step()
        assert net.weight.tolist() == [[float(hvd.rank())] * 2]
        return str(caught.value)

    for text in worlds(2, {**SHM, "HOROVOD_REPLICA_CHECK": "error"}).run(run):
        assert "the ranks differ in `weight`; rank 0 is unlike rank 1" in text and "hint: broadcast" in text


def test_training_apart_is_told_at_the_end(worlds: WorldPool) -> None:
    def run() -> dict[str, str]:
        net, scale = torch.nn.Linear(4, 3), torch.nn.Parameter(torch.ones(()))
        table = torch.nn.Embedding(9, 3, sparse=True)

        def backward() -> list[torch.Tensor]:
            net.zero_grad()
            (net(torch.ones(2, 4)) * scale).sum().backward()
            return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]

        def optimize(parameters: list[torch.nn.Parameter]) -> None:
            optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
            backward()
            optimizer.step()

        def look_up() -> None:
            table(torch.tensor([1])).sum().backward()
            assert table.weight.grad is not None
            hvd.sparse_allreduce_async(table.weight.grad, "table", hvd.Average)()

        ways = {
            "nothing": lambda: None,
            "the loss": lambda: [hvd.allreduce(torch.ones(())) for _ in range(20)],
            "loss and accuracy": lambda: hvd.allreduce(torch.ones(2)),
            "by hand": lambda: [hvd.allreduce(gradient) for gradient in backward()],
            "in place": lambda: hvd.allreduce_(backward()[1]),
            "grouped": lambda: hvd.grouped_allreduce(backward()),
            "flat": lambda: hvd.allreduce(torch.cat([gradient.flatten() for gradient in backward()])),
            "scattered": lambda: hvd.reducescatter(backward()[0]),
            "sparse": look_up,
            "a scalar": lambda: optimize([scale]),
            "a scalar by Adasum": lambda: hvd.DistributedOptimizer(torch.optim.SGD([scale], 0.1), op=hvd.Adasum).step(),
        }
        said = {}
        hvd.shutdown()  # what an earlier test has begun

        def ends(case: str, *calls: Any) -> None:
            hvd.init()
            for call in calls:
                call()
            with contextlib.redirect_stderr(io.StringIO()) as caught:
                hvd.shutdown()
            said[case] = caught.getvalue().splitlines()[0] if caught.getvalue() else ""

        for way, reduce in ways.items():
            ends(way, lambda: hvd.broadcast_parameters({**net.state_dict(), "scale": scale}, 0), reduce)
        scalars = {"scale": scale, "shift": torch.zeros(())}
        ends("of scalars", lambda: hvd.broadcast_parameters(scalars, 0), lambda: hvd.allreduce(torch.ones(())))
        ends("scalars alone", lambda: hvd.broadcast_parameters(scalars, 0))
        ends("no model", lambda: hvd.allreduce(torch.ones(2)))
        ends("no call")
        frameworks = [f"horovod.{name}" for name in ("torch", "tensorflow", "keras", "jax", "mxnet")]
        with pytest.MonkeyPatch.context() as patch:
            for name in frameworks:
                patch.delitem(sys.modules, name, raising=False)
            ends("no call and no framework")
        return said

    first, second = worlds(2, SHM).run(run)
    for apart in ("nothing", "the loss", "loss and accuracy", "scalars alone"):
        assert first.pop(apart).startswith("horovod: warning: the parameters were broadcast, but nothing as large"), (
            apart
        )
    assert first.pop("no call").startswith("horovod: note: the 2 ranks have exchanged nothing.")
    assert set(first.values()) == {""}, first
    assert set(second.values()) == {""}
