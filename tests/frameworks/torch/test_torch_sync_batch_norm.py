# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm is torch's BatchNorm on the ranks' batches joined: forward, running statistics and backward."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

SHM = {"HOROVOD_TRANSPORT": "shm"}
CHANNELS = 5
BETWEEN = {1: (), 2: (7,), 3: (4, 3), 4: (3, 2, 2)}  # dimensions behind the channels, by a key of the tests
Result = dict[str, np.ndarray[Any, Any]]


def batches(rows: list[int], dims: int, step: int, dtype: Any = torch.float64) -> list[Any]:
    """Each rank's batch; far from zero, and each rank's at another place."""
    generator = torch.Generator().manual_seed(step)
    return [
        (torch.randn(count, CHANNELS, *BETWEEN[dims], generator=generator, dtype=torch.float64) * 2 + 30 + rank).to(
            dtype
        )
        for rank, count in enumerate(rows)
    ]


def train(layer: Any, of_step: Any, steps: int = 3, evaluate: bool = False) -> Result:
    """Trains some steps; the loss weights each output differently. Returns everything that can be compared."""
    torch.set_num_threads(1)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(0.5, 2.0, CHANNELS))
            layer.bias.copy_(torch.linspace(-1.0, 1.0, CHANNELS))
    for step in range(steps):
        layer.zero_grad()
        values, factors = of_step(step)
        values.requires_grad_(True)
        output = layer(values)
        (output * factors).sum().backward()
    if evaluate:
        layer.eval()
        output = layer(values)
    result = {"output": output, "gradient": values.grad, **dict(layer.named_buffers())}
    result |= {f"{name}.grad": parameter.grad for name, parameter in layer.named_parameters()}
    return {name: value.detach().numpy().copy() for name, value in result.items()}


def synchronized(rows: list[int], dims: int, options: dict[str, Any], evaluate: bool, members: Any = None) -> Result:
    """Runs in a rank."""
    hvd.init()
    chosen = hvd.global_process_set if members is None else hvd.add_process_set(members)
    try:
        layer = hvd.SyncBatchNorm(CHANNELS, **options, process_set=chosen).double()
        place = chosen.rank() if chosen.included() else None

        def of_step(step: int) -> tuple[Any, Any]:
            whole = batches(rows, dims, step)
            index = hvd.rank() if place is None else place
            return whole[index], factors_of(whole)[index]

        return train(layer, of_step, evaluate=evaluate)
    finally:
        if members is not None:
            hvd.barrier()
            hvd.remove_process_set(chosen)


def factors_of(whole: list[Any]) -> list[Any]:
    shape = (sum(map(len, whole)), *whole[0].shape[1:])
    factors = torch.linspace(-1.0, 2.0, int(np.prod(shape)), dtype=torch.float64).reshape(shape).sin()
    return list(factors.split([len(batch) for batch in whole]))


def joined(rows: list[int], dims: int, options: dict[str, Any], evaluate: bool) -> Result:
    kind = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d, 4: torch.nn.BatchNorm3d}[dims]

    def of_step(step: int) -> tuple[Any, Any]:
        whole = batches(rows, dims, step)
        return torch.cat(whole), torch.cat(factors_of(whole))

    return train(kind(CHANNELS, **options).double(), of_step, evaluate=evaluate)


def compare(by_rank: list[Result], expected: Result, rows: list[int]) -> None:
    begin = 0
    for result, count in zip(by_rank, rows, strict=True):
        assert result.keys() == expected.keys()
        for name in ("output", "gradient"):
            np.testing.assert_allclose(result[name], expected[name][begin : begin + count], rtol=0, atol=1e-10)
        begin += count
        for name in set(result) - {"output", "gradient", "weight.grad", "bias.grad"}:
            np.testing.assert_allclose(result[name], expected[name], rtol=0, atol=1e-10, err_msg=name)
            assert result[name].tobytes() == by_rank[0][name].tobytes(), f"{name} differs between ranks"
    for name in {"weight.grad", "bias.grad"} & set(expected):
        np.testing.assert_allclose(sum(result[name] for result in by_rank), expected[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("dims", sorted(BETWEEN))
@pytest.mark.parametrize("rows", [[4, 4], [1, 6, 3], [5, 0, 2]], ids=str)
def test_it_equals_batch_norm_on_the_joined_batch(worlds: WorldPool, rows: list[int], dims: int) -> None:
    by_rank = worlds(len(rows), SHM).run(synchronized, rows, dims, {}, False)
    compare(by_rank, joined(rows, dims, {}, False), rows)


@pytest.mark.parametrize(
    ("options", "evaluate"),
    [
        *itertools.product([{"momentum": None}, {"affine": False}, {"eps": 0.1, "momentum": 0.7}], [False, True]),
        ({"track_running_stats": False}, False),  # in eval() it has no statistics to use and is local: see below
    ],
    ids=str,
)
def test_its_options_are_those_of_batch_norm(worlds: WorldPool, options: dict[str, Any], evaluate: bool) -> None:
    rows = [1, 6, 3]
    by_rank = worlds(3, SHM).run(synchronized, rows, 3, options, evaluate)
    compare(by_rank, joined(rows, 3, options, evaluate), rows)


def test_over_tcp(worlds: WorldPool) -> None:
    by_rank = worlds(2, {"HOROVOD_TRANSPORT": "tcp"}).run(synchronized, [2, 5], 2, {}, False)
    compare(by_rank, joined([2, 5], 2, {}, False), [2, 5])


def test_it_joins_the_batches_of_its_process_set_alone(worlds: WorldPool) -> None:
    rows = [3, 5]  # of the members; rank 1, which is none, has the second one's for itself
    by_rank = worlds(3, {**SHM, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(synchronized, rows, 1, {}, False, [0, 2])
    compare([by_rank[0], by_rank[2]], joined(rows, 1, {}, False), rows)
    alone = train(
        torch.nn.BatchNorm1d(CHANNELS).double(),
        lambda step: (batches(rows, 1, step)[1], factors_of(batches(rows, 1, step))[1]),
    )
    compare([by_rank[1]], alone, [5])


def test_eval_without_statistics_asks_nobody(two: World) -> None:
    def run() -> None:
        layer = hvd.SyncBatchNorm(3, track_running_stats=False).eval()
        values = torch.randn(4, 3)
        if hvd.rank() == 0:  # the other rank never calls it
            assert torch.equal(layer(values), torch.nn.BatchNorm1d(3, track_running_stats=False)(values))
        hvd.barrier()

    two.run(run)


def test_a_mean_far_from_zero_costs_no_precision(two: World) -> None:
    def run() -> float:
        layer = hvd.SyncBatchNorm(1).double()
        # Deviations of 1e-3 around 1e6: sums of squares would leave 3 digits of the variance.
        values = 1e6 + 1e-3 * torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64) * (hvd.rank() + 1)
        layer(values)
        return float(layer.running_var)

    sample = np.array([1.0, 2.0, 4.0, 2.0, 4.0, 8.0]) * 1e-3
    expected = 0.9 + 0.1 * float(np.var(sample, ddof=1))
    for seen in two.run(run):
        assert seen - 0.9 == pytest.approx(expected - 0.9, rel=1e-6)


@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_other_types_come_out_in_their_own(two: World, name: str, tolerance: float) -> None:
    def run(name: str) -> tuple[Any, Any]:
        whole = batches([4, 3], 3, 0, getattr(torch, name))
        values = whole[hvd.rank()].to(memory_format=torch.channels_last).requires_grad_(True)
        output = hvd.SyncBatchNorm(CHANNELS)(values)
        assert output.dtype == values.dtype
        (output.float() * factors_of(whole)[hvd.rank()].float()).sum().backward()
        assert values.grad.dtype == values.dtype
        return output.detach().float().numpy(), values.grad.float().numpy()

    whole = batches([4, 3], 3, 0, getattr(torch, name))
    values = torch.cat(whole).double().requires_grad_(True)
    expected = torch.nn.BatchNorm2d(CHANNELS).double()(values)
    (expected * torch.cat(factors_of(whole))).sum().backward()
    outcomes = two.run(run, name)
    for index, reference in enumerate((expected.detach(), values.grad)):
        seen = np.concatenate([outcome[index] for outcome in outcomes])
        np.testing.assert_allclose(seen, reference.numpy(), rtol=tolerance, atol=2 * tolerance)


def test_one_value_per_channel_in_all_is_refused_on_all_ranks(two: World) -> None:
    def run() -> None:
        layer = hvd.SyncBatchNorm(2)
        with pytest.raises(ValueError, match="more than 1 value per channel.*got 1 on all ranks"):
            layer(torch.zeros(1 - hvd.rank(), 2))
        assert int(layer.num_batches_tracked) == 0
        layer(torch.zeros(1, 2))  # one a rank are two

    two.run(run)


def test_an_input_that_is_wrong_on_one_rank_fails_on_all(two: World) -> None:
    def run() -> str:
        layer = hvd.SyncBatchNorm(3)
        kind = ValueError if hvd.rank() == 1 else hvd.HorovodInternalError
        with pytest.raises(kind) as caught:
            layer(torch.zeros(2, 4 if hvd.rank() == 1 else 3))
        layer(torch.randn(2, 3))
        return str(caught.value)

    for text in two.run(run):
        assert "rank 1" in text and "expected an input of shape (N, 3, ...), got (2, 4)" in text


def test_a_copy_works_like_the_original(worlds: WorldPool) -> None:
    def run() -> bool:
        hvd.init()
        pair = hvd.add_process_set([0, 1])
        for process_set in (hvd.global_process_set, pair):
            layer = hvd.SyncBatchNorm(3, process_set=process_set)
            values = torch.randn(4, 3)
            copies = [copy.deepcopy(layer)]
            if process_set is not pair:
                copies.append(pickle.loads(pickle.dumps(layer)))
            expected = layer(values)
            assert all(torch.equal(expected, one(values)) for one in copies)
        hvd.barrier()
        return bool(hvd.remove_process_set(pair))

    assert worlds(3, {**SHM, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(run) == [True] * 3


def test_alone_it_is_batch_norm_and_before_init_it_says_so(worlds: WorldPool) -> None:
    def run() -> bool:
        hvd.init()
        layer, values = hvd.SyncBatchNorm(3), torch.randn(4, 3)
        assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        assert torch.equal(layer(values), torch.nn.BatchNorm1d(3)(values))
        hvd.shutdown()
        with pytest.raises(ValueError, match="init"):
            layer(values)
        hvd.init()
        return True

    assert worlds(1).run(run) == [True]
