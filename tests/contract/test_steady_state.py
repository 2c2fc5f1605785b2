# SPDX-License-Identifier: Apache-2.0
"""A training step that repeats asks nobody: inside a host no message goes to the coordinator, which is counted. And one
that deviates from what was learned costs messages, never a wrong result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.world import WorldPool

import horovod.core as hvd

MESSAGES = ("slow_requests", "control_messages")


def messages() -> int:
    """How many this rank has sent so far."""
    return sum(hvd.statistics()[name] for name in MESSAGES)


@pytest.mark.parametrize(("named", "quiet_after"), [(True, 3), (False, 36)])  # each of 64 unnamed places is new once
@pytest.mark.parametrize("size", [2, 4])
def test_the_fourth_identical_step_sends_no_message(
    worlds: WorldPool, size: int, named: bool, quiet_after: int
) -> None:
    def run() -> tuple[int, list[int]]:
        hvd.init()
        before, sent = messages(), []
        for step in range(100):
            handles = [hvd.allreduce_async(np.ones(5), name=f"steady {name}", op=hvd.Sum) for name in range(30)]
            handles.append(hvd.grouped_allreduce_async([np.ones(2), np.ones(3)], name="steady group", op=hvd.Sum))
            # What is ragged is not part of what was agreed.
            handles.append(hvd.allgather_async(np.ones((hvd.rank() + step % 5, 2)), name="steady rows"))
            results = [hvd.synchronize(handle) for handle in handles]
            assert all(result[0] == hvd.size() for result in results[:30]), step
            hvd.broadcast(np.ones(4), 1, name="steady root")
            hvd.alltoall(np.ones(2 * hvd.size()), [step % 3] * hvd.size(), name="steady exchange")
            hvd.reducescatter(np.ones(7), name="steady parts")
            if not named:
                assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
                hvd.barrier()
            sent.append(messages())
        return before, sent

    # A world of its own: the names must be new.
    for before, sent in worlds(size, {"HOROVOD_TRANSPORT": "shm", "STEADY": str(named)}).run(run):
        assert sent[0] - before >= 30, "the first step is negotiated"
        assert sent[quiet_after:] == [sent[quiet_after - 1]] * (100 - quiet_after), sent


@pytest.mark.slow("optimizers of PyTorch in two worlds")
def test_the_gradients_of_an_optimizer_are_as_quiet(worlds: WorldPool) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")

    def run() -> list[int]:
        import torch

        import horovod.torch as hvd

        hvd.init()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        sent = []
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            sent.append(messages())
        return sent

    for sent in worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run):
        assert sent[3:] == [sent[2]] * 17, sent


DEVIATIONS = ("none", "missing", "new", "reshaped", "reordered", "late", "another op", "refused")


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (4, "shm"), (3, "tcp"), (4, "2+2")])
def test_steps_that_deviate_have_right_results(worlds: WorldPool, size: int, transport: str) -> None:
    def run() -> tuple[list[str], int]:
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        wrong: list[str] = []

        def one_step(step: int, deviation: str) -> None:
            names = [f"deviating {number}" for number in range(12)]
            chosen = step % 12  # the tensor that deviates
            shapes = dict.fromkeys(names, (3,))
            if deviation == "missing":
                names.pop(chosen)
            if deviation == "new":
                names.append(f"new in {step}")
                shapes[names[-1]] = (3,)
            if deviation == "reshaped":
                shapes[names[chosen]] = (2, 2)
            if deviation == "reordered":
                np.random.default_rng((step, rank)).shuffle(names)
            late = names[chosen] if deviation == "late" and rank == step % size else None
            ops = dict.fromkeys(names, hvd.Sum)
            if deviation == "another op":
                ops[names[chosen]] = hvd.Max
            handles = {
                name: hvd.allreduce_async(np.full(shapes[name], float(rank + step)), name=name, op=ops[name])
                for name in names
                if name != late
            }
            if deviation == "refused":
                kind = ValueError if rank == step % size else hvd.HorovodInternalError
                try:
                    hvd.allreduce(np.ones(2), name="refused", op=99 if rank == step % size else hvd.Sum)
                    wrong.append(f"step {step}: nothing was refused")
                except kind:
                    pass
            results = {name: hvd.synchronize(handle) for name, handle in handles.items()}
            if late is not None:
                results[late] = hvd.allreduce(np.full(3, float(rank + step)), name=late, op=hvd.Sum)
            for name, result in results.items():
                expected = size * step + size * (size - 1) / 2 if ops[name] == hvd.Sum else step + size - 1
                if result.shape != shapes[name] or not np.all(result == expected):
                    wrong.append(f"step {step}, {deviation}, {name}: expected {expected}, got {result}")

        for step in range(200):
            one_step(step, DEVIATIONS[step % len(DEVIATIONS)])
        for step in range(3):
            one_step(step, "none")
        before = messages()
        for step in range(20):
            one_step(step, "none")
        return wrong, messages() - before

    for wrong, sent in worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run):
        assert wrong == []
        if transport == "shm":
            assert sent == 0, f"{sent} messages after it was steady again"


@pytest.mark.slow("every deviation in every step")
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (4, "shm"), (3, "tcp"), (4, "2+2")])
def test_steps_with_every_deviation_have_right_results(worlds: WorldPool, size: int, transport: str) -> None:
    """A tensor missing, one new, one reshaped, another order on every rank, a rank that is late with one, and a rank
    that joins before the others are done: each in every one of 200 steps."""

    def run() -> tuple[list[str], int]:
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        wrong: list[str] = []

        def check(step: int, name: str, result: Any, shape: tuple[int, ...], ranks: list[int]) -> None:
            expected = sum(member + step for member in ranks)
            if result.shape != shape or not np.all(result == expected):
                wrong.append(f"step {step}, {name}: expected {expected} in {shape}, got {result}")

        def one_step(step: int) -> None:
            names = [f"deviating {number}" for number in range(12)]
            shapes = dict.fromkeys(names, (3,)) | {names[(step + 3) % 12]: (2, 2), f"new in {step}": (3,)}
            late = names[(step + 5) % 12]
            missing = names.pop(step % 12)
            names.append(f"new in {step}")
            np.random.default_rng((step, rank)).shuffle(names)
            is_late, joins = rank == step % size, (step + 1) % size
            handles = {
                name: hvd.allreduce_async(np.full(shapes[name], float(rank + step)), name=name, op=hvd.Sum)
                for name in names
                if not (is_late and name == late)
            }
            results = {name: hvd.synchronize(handle) for name, handle in handles.items() if name != late}
            if is_late:
                results[late] = hvd.allreduce(np.full(shapes[late], float(rank + step)), name=late, op=hvd.Sum)
            else:
                results[late] = hvd.synchronize(handles[late])
            for name, result in results.items():
                check(step, name, result, shapes[name], list(range(size)))
            if rank != joins:
                left = [member for member in range(size) if member != joins]
                for name in (missing, f"alone in {step}", None):
                    check(
                        step,
                        str(name),
                        hvd.allreduce(np.full(3, float(rank + step)), name=name, op=hvd.Sum),
                        (3,),
                        left,
                    )
            hvd.join()

        def steady_step() -> None:
            handles = [hvd.allreduce_async(np.ones(3), name=f"deviating {number}") for number in range(12)]
            for handle in handles:
                hvd.synchronize(handle)

        for step in range(200):
            one_step(step)
        for _ in range(3):
            steady_step()
        before = messages()
        for _ in range(20):
            steady_step()
        return wrong, messages() - before

    for wrong, sent in worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run):
        assert wrong == []
        if transport == "shm":
            assert sent == 0, f"{sent} messages after it was steady again"
