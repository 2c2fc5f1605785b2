# SPDX-License-Identifier: Apache-2.0
"""Training with horovod.torch is training: equal to one process on the whole batch, on every rank, bit by bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

ROWS, STEPS = 24, 20
WORLDS = [(size, transport) for size in (2, 3, 4) for transport in ("shm", "tcp")]


def model_and_data() -> tuple[Any, Any, Any]:
    """The same on every rank and in the test's own process."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Tanh()
    )
    model.append(torch.nn.Linear(8, 3))
    return model.double(), torch.randn(ROWS, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (ROWS,))


def parameters_of(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def alone() -> dict[str, np.ndarray[Any, Any]]:
    model, images, labels = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return parameters_of(model)


def distributed(**options: Any) -> tuple[dict[str, np.ndarray[Any, Any]], list[int]]:
    """Runs in a rank; returns its parameters and the rows it has seen."""
    hvd.init()
    model, images, labels = model_and_data()
    if hvd.rank() != 0:  # start values come from rank 0
        for parameter in model.parameters():
            parameter.data.normal_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        **options,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    rows = list(range(hvd.rank(), ROWS, hvd.size()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return parameters_of(model), rows


def distance(a: dict[str, np.ndarray[Any, Any]], b: dict[str, np.ndarray[Any, Any]]) -> float:
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_twenty_momentum_steps_equal_one_process_on_the_whole_batch(
    worlds: WorldPool, size: int, transport: str
) -> None:
    outcomes = worlds(size, {"HOROVOD_TRANSPORT": transport}).run(distributed)
    expected = alone()
    for parameters, _ in outcomes:
        assert distance(parameters, expected) < 1e-10
        for name, value in parameters.items():
            assert value.tobytes() == outcomes[0][0][name].tobytes(), f"{name} differs from rank 0's"
    rows = [set(rows) for _, rows in outcomes]
    assert set.union(*rows) == set(range(ROWS)) and sum(map(len, rows)) == ROWS, "each rank sees rows of its own"


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_compressed_gradients_train_all_ranks_alike(three: World, kind: str) -> None:
    def run(kind: str) -> dict[str, np.ndarray[Any, Any]]:
        return distributed(compression=getattr(hvd.Compression, kind))[0]

    outcomes = three.run(run, kind)
    assert 0 < distance(outcomes[0], alone()) < 0.1
    assert all(distance(parameters, outcomes[0]) == 0 for parameters in outcomes)


def test_a_job_goes_on_from_rank_0_s_checkpoint(two: World) -> None:
    def run() -> tuple[float, list[float]]:
        model, images, labels = model_and_data()

        def wrapped(model: Any) -> Any:
            adam = torch.optim.AdamW(model.parameters(), lr=0.01)
            return hvd.DistributedOptimizer(adam, named_parameters=model.named_parameters())

        def steps(model: Any, optimizer: Any, count: int) -> None:
            rows = slice(hvd.rank(), None, hvd.size())
            for _ in range(count):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()

        optimizer = wrapped(model)
        steps(model, optimizer, 3)
        file = io.BytesIO()
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        steps(model, optimizer, 3)

        resumed, _, _ = model_and_data()
        optimizer = wrapped(resumed)
        if hvd.rank() == 0:
            saved = torch.load(io.BytesIO(file.getvalue()))
            resumed.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        else:
            optimizer.param_groups[0]["lr"] = 99.0
        hvd.broadcast_parameters(resumed.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state_steps = [float(state["step"]) for state in optimizer.state.values()]
        steps(resumed, optimizer, 3)
        return distance(parameters_of(model), parameters_of(resumed)), state_steps

    for far, state_steps in two.run(run):
        assert far == 0.0
        assert state_steps == [3.0] * 6


def test_data_loader_workers_are_no_ranks(two: World) -> None:
    def run() -> tuple[int, dict[str, np.ndarray[Any, Any]]]:
        model, images, labels = model_and_data()
        data = torch.utils.data.TensorDataset(images, labels)
        loader = torch.utils.data.DataLoader(
            data, batch_size=2, sampler=range(hvd.rank(), ROWS, hvd.size()), num_workers=2
        )
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
        )
        count = 0
        for _ in range(2):
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                count += len(labels)
        return count, parameters_of(model)

    outcomes = two.run(run)
    assert [count for count, _ in outcomes] == [ROWS, ROWS]
    assert distance(outcomes[0][1], outcomes[1][1]) == 0
