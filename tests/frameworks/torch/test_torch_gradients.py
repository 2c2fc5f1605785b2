# SPDX-License-Identifier: Apache-2.0
"""Autograd through every collective: each gradient is computed from the definition, with the ranks' own weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.frameworks import SetModule
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd
from horovod.torch import mpi_ops as old

WORLDS = [(1, "auto"), (2, "shm"), (3, "tcp"), (3, "shm")]

# Inputs and weights are functions of the rank, so that every rank can say what all gradients are.


def data(rank: int, *shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank), dtype=torch.float64)


def weighted(outputs: Any, weights: Any) -> Any:
    """A loss whose gradient with respect to outputs[i] is weights[i]."""
    return sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))


def check(hvd: Any, inputs: list[Any], call: Callable[[list[Any]], Any], weights: list[Any], expected: Any) -> None:
    tensors = [tensor.clone().requires_grad_() for tensor in inputs]
    for _ in range(2):  # the second time all names are known
        for tensor in tensors:
            tensor.grad = None
        outputs = call(tensors)
        weighted(outputs, weights).backward()
        for tensor, gradient in zip(tensors, expected, strict=True):
            assert tensor.grad is not None
            torch.testing.assert_close(tensor.grad, gradient, rtol=1e-12, atol=1e-12)


def own_rows(tensor: Any, size: int, rank: int) -> Any:
    return torch.tensor_split(tensor, size)[rank]


def allreduce_case(hvd: Any, rank: int, size: int) -> None:
    for op, factor in ((hvd.Average, 1 / size), (hvd.Sum, 1.0)):
        gradient = sum(data(r, 4, 2, seed=1) for r in range(size)) * factor * 0.5 * 3
        how = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
        check(
            hvd,
            [data(rank, 4, 2)],
            lambda t, how=how: [hvd.allreduce(t[0], name="a", **how)],
            [data(rank, 4, 2, seed=1)],
            [gradient],
        )
        check(
            hvd,
            [data(rank, 4, 2), data(rank, 3)],
            lambda t, how=how: hvd.grouped_allreduce(t, name="g", **how),
            [data(rank, 4, 2, seed=1), torch.ones(3, dtype=torch.float64)],
            [gradient, torch.full((3,), size * factor * 1.5, dtype=torch.float64)],
        )


def allgather_case(hvd: Any, rank: int, size: int) -> None:
    total = sum(r + 1 for r in range(size))
    mean = sum(data(r, total, 2, seed=1) for r in range(size)) / size
    first = sum(r + 1 for r in range(rank))
    gradient = mean[first : first + rank + 1]
    weight = data(rank, total, 2, seed=1)
    check(hvd, [data(rank, rank + 1, 2)], lambda t: [hvd.allgather(t[0], name="a")], [weight], [gradient])
    check(
        hvd,
        [data(rank, rank + 1, 2), data(rank, rank)],
        lambda t: hvd.grouped_allgather(t, name="g"),
        [weight, torch.ones(total - size, dtype=torch.float64)],
        [gradient, torch.ones(rank, dtype=torch.float64)],
    )


def broadcast_case(hvd: Any, rank: int, size: int) -> None:
    mean = sum(data(r, 4, seed=1) for r in range(size)) / size
    root = size - 1
    gradient = mean if rank == root else torch.zeros(4, dtype=torch.float64)
    check(hvd, [data(rank, 4)], lambda t: [hvd.broadcast(t[0], root)], [data(rank, 4, seed=1)], [gradient])


def alltoall_case(hvd: Any, rank: int, size: int) -> None:
    # Rank s sends s + d rows to d and keeps one for itself; the weight of a row that d got from s is 10 d + s.
    splits = [rank + d for d in range(size)]
    weight = torch.cat([torch.full((s + rank, 2), 10.0 * rank + s, dtype=torch.float64) for s in range(size)])
    gradient = torch.cat([torch.full((rank + d, 2), 10.0 * d + rank, dtype=torch.float64) for d in range(size)])
    gradient = torch.cat([gradient, torch.zeros(1, 2, dtype=torch.float64)])
    rows = sum(splits) + 1
    check(hvd, [data(rank, rows, 2)], lambda t: hvd.alltoall(t[0], splits, name="a")[:1], [weight], [gradient])
    even = torch.cat([torch.full((2,), float(d), dtype=torch.float64) for d in range(size)])
    weight = torch.full((2 * size,), float(rank), dtype=torch.float64)
    check(hvd, [data(rank, 2 * size)], lambda t: [hvd.alltoall(t[0])], [weight], [even])


def reducescatter_case(hvd: Any, rank: int, size: int) -> None:
    # A rank's weight for its rows is its part of one tensor that all know; 7 rows are uneven, 1 row is a rank's alone.
    for rows, op, factor in ((7, hvd.Average, 1), (7, hvd.Sum, size), (1, hvd.Sum, size)):
        whole = data(0, rows, 2, seed=1)
        how = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
        weight, gradient = own_rows(whole, size, rank), whole * factor * 1.5
        check(
            hvd,
            [data(rank, rows, 2)],
            lambda t, how=how: [hvd.reducescatter(t[0], name="r", **how)],
            [weight],
            [gradient],
        )
        check(
            hvd,
            [data(rank, rows, 2), data(rank, rows, 2)],
            lambda t, how=how: hvd.grouped_reducescatter(t, name="g", **how),
            [weight, 2 * weight],
            [gradient, 2 * gradient],
        )


CASES = [allreduce_case, allgather_case, broadcast_case, alltoall_case, reducescatter_case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removesuffix("_case"))
@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_the_gradient_of(worlds: WorldPool, size: int, transport: str, case: Callable[..., None]) -> None:
    def run(case: Callable[..., None]) -> None:
        hvd.init()
        case(hvd, hvd.rank(), hvd.size())

    worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removesuffix("_case"))
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_gradient_over_a_set_of(worlds: WorldPool, transport: str, case: Callable[..., None]) -> None:
    def run(case: Callable[..., None]) -> bool:
        hvd.init()
        pair = hvd.add_process_set([0, 2])
        if pair.included():
            case(SetModule(hvd, pair), pair.rank(), pair.size())
        return hvd.remove_process_set(pair)

    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert worlds(3, env).run(run, case) == [True] * 3


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (3, "shm"), (3, "tcp")])
def test_a_penalty_on_gradients_is_differentiated_through_the_operations(
    worlds: WorldPool, size: int, transport: str
) -> None:
    """Of y = T(x) and the loss sum(y^3): g = T'(3 y^2), and the gradient of sum(g^2) is T'(6 y T''(2 g)), where T' is
    the gradient of T, and T'' that of T'."""

    def run() -> bool:
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        rows = [2 + r for r in range(size)]
        total, first = sum(rows), sum(rows[:rank])
        places = torch.tensor_split(torch.arange(total), size)[rank]

        def padded(part: Any) -> Any:
            whole = torch.zeros(total, dtype=torch.float64)
            whole[first : first + rows[rank]] = part
            return whole

        def summed(t: Any) -> Any:
            return hvd.allreduce(t, op=hvd.Sum)

        def on_root(t: Any) -> Any:
            return hvd.allreduce(t) * (rank == 0)

        def own(t: Any) -> Any:
            return hvd.allreduce(t)[first : first + rows[rank]]

        def dealt(t: Any) -> Any:
            return hvd.alltoall(t, [1] * size)[0]

        def back(t: Any) -> Any:
            return torch.cat([hvd.alltoall(t, [1] * size)[0], torch.zeros(1, dtype=torch.float64)])

        # rows of x, T, T', T''
        table: dict[str, tuple[int, Any, Any, Any]] = {
            "allreduce": (4, summed, summed, summed),
            "grouped_allreduce": (4, lambda t: hvd.grouped_allreduce([t], op=hvd.Sum)[0], summed, summed),
            "allgather": (rows[rank], hvd.allgather, own, lambda t: hvd.allreduce(padded(t))),
            "grouped_allgather": (
                rows[rank],
                lambda t: hvd.grouped_allgather([t])[0],
                own,
                lambda t: hvd.allreduce(padded(t)),
            ),
            "broadcast": (4, lambda t: hvd.broadcast(t, 0), on_root, lambda t: hvd.allreduce(t * (rank == 0))),
            "alltoall": (size + 1, dealt, back, dealt),
            "reducescatter": (
                total,
                lambda t: hvd.reducescatter(t, op=hvd.Sum),
                lambda t: hvd.allgather(t) * size,
                lambda t: hvd.allreduce(t)[places] * size,
            ),
            "grouped_reducescatter": (
                total,
                lambda t: hvd.grouped_reducescatter([t])[0],
                hvd.allgather,
                lambda t: hvd.allreduce(t)[places],
            ),
        }
        for label, (length, forward, gradient_of, gradient_of_gradient) in table.items():
            x = data(rank, length).requires_grad_()
            y = forward(x)
            g = torch.autograd.grad((y**3).sum(), x, create_graph=True)[0]
            seen = torch.autograd.grad((g**2).sum(), x)[0]
            y, g = y.detach(), g.detach()
            torch.testing.assert_close(g, gradient_of(3 * y**2), rtol=1e-12, atol=1e-12, msg=label)
            expected = gradient_of(6 * y * gradient_of_gradient(2 * g))
            torch.testing.assert_close(seen, expected, rtol=1e-12, atol=1e-12, msg=label)
        return True

    assert worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run) == [True] * size


def test_what_has_no_gradient_says_so(two: World) -> None:
    def run() -> None:
        tensor = torch.ones(4, requires_grad=True)
        with pytest.raises(NotImplementedError, match="reducescatter with op=Max has no gradient"):
            hvd.reducescatter(tensor, op=hvd.Max).sum().backward()
        _, received = hvd.alltoall(tensor, [2, 2])
        assert not received.requires_grad and received.dtype == torch.int32
        assert not hvd.allgather(tensor.detach()).requires_grad
        with torch.no_grad():
            assert not hvd.reducescatter(tensor).requires_grad
        hidden = tensor * 2
        product = hidden * hidden  # saves hidden
        hvd.allreduce_(hidden.detach(), op=hvd.Sum)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()

    two.run(run)


def test_the_functions_of_autograd_can_be_applied_by_their_old_names(two: World) -> None:
    def run() -> None:
        everyone, x = hvd.global_process_set, torch.full((2,), 3.0, requires_grad=True)
        how = (0.5, 4.0, everyone)
        results = [
            old.HorovodAllreduce.apply(x, None, "a", hvd.Sum, *how),
            *old.HorovodGroupedAllreduce.apply(True, "g", None, *how, x, x),
            old.HorovodAllgather.apply(x, None, everyone),
            *old.HorovodGroupedAllgather.apply("gg", everyone, x),
            old.HorovodBroadcast.apply(x, 1, "b", everyone),
            old.HorovodAlltoall.apply(x, [1, 1], "t", everyone)[0],
            old.HorovodReducescatter.apply(x, "r", hvd.Sum, everyone, 0.5, 4.0),
            *old.HorovodGroupedReducescatter.apply("gr", hvd.Average, everyone, 0.5, 4.0, x),
        ]
        assert [result.tolist() for result in results[:3]] == [[12.0] * 2, [6.0] * 2, [6.0] * 2]
        assert [len(result) for result in results[3:]] == [4, 4, 2, 2, 1, 1] and results[7].tolist() == [12.0]
        torch.cat(results).sum().backward()
        root = 1.0 if hvd.rank() == 1 else 0.0
        assert x.grad.tolist() == [4.0 + 2 + 2 + 1 + 1 + root + 1 + 4 + 2] * 2, x.grad

    two.run(run)


def test_compressed_forms_are_differentiable(two: World) -> None:
    def run() -> None:
        tensor = torch.full((4,), 3.0, requires_grad=True)
        part = hvd.reducescatter(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
        assert part.dtype == torch.float32 and part.tolist() == [6.0, 6.0]
        both = hvd.grouped_reducescatter([tensor, tensor], compression=hvd.Compression.fp16)
        whole = hvd.allreduce(tensor, compression=hvd.Compression.fp16) * (hvd.rank() + 1)
        (part.sum() + both[0].sum() + whole.sum()).backward()
        assert tensor.grad.tolist() == [4.5] * 4  # 2 for the Sum, 1 for the Average, and the ranks' average of 1 and 2

    two.run(run)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sparse_tensors_are_summed_where_they_meet(worlds: WorldPool, transport: str) -> None:
    def run() -> None:
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        # Rank r has r + 1 rows; row 0 is everybody's, one is given twice on each rank.
        indices = [[0, 0, *range(2, 2 + rank)]]
        values = torch.ones(rank + 2, 3) * (rank + 1)
        sparse = torch.sparse_coo_tensor(indices, values, (8, 3))
        dense = [torch.zeros(8, 3) for _ in range(size)]
        for r in range(size):
            dense[r][0] += 2 * (r + 1)
            dense[r][2 : 2 + r] += r + 1
        for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
            for name in ("embedding", None):
                wait = hvd.sparse_allreduce_async(sparse, name, op)
                other = hvd.allreduce(torch.ones(2), op=hvd.Sum)
                result = hvd.synchronize(wait) if name else wait()
                assert result.is_sparse and result.shape == sparse.shape and other.tolist() == [size, size]
                torch.testing.assert_close(result.to_dense(), sum(dense) / divisor)
        empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 3), (8, 3))
        result = hvd.sparse_allreduce_async(empty if rank else sparse, "partly empty", hvd.Sum)()
        torch.testing.assert_close(result.to_dense(), dense[0])
        whole = torch.sparse_coo_tensor([[0, 1]], torch.tensor([-3, 5 * rank]), (2,))
        result = hvd.sparse_allreduce_async(whole, "integers", hvd.Average)()
        assert result.dtype == torch.int64 and result.coalesce().values().tolist() == [
            -1 * size,
            sum(5 * r // size for r in range(size)),
        ]

    worlds(3, {"HOROVOD_TRANSPORT": transport}).run(run)


def test_a_sparse_call_that_is_wrong_on_one_rank_fails_on_all(two: World) -> None:
    def run() -> list[str]:
        sparse = torch.eye(3).to_sparse()
        with pytest.raises(ValueError, match=r"hint: .*sparse_allreduce_async.* sparse_as_dense=True"):
            hvd.allreduce(sparse, name="for dense tensors")
        wrong = [(torch.eye(3), hvd.Sum), (sparse, hvd.Max), (sparse, 17), (3, hvd.Sum), (sparse, hvd.Adasum)]
        texts = []
        for index, (tensor, op) in enumerate(wrong):
            arguments = (tensor, op) if hvd.rank() == 1 else (sparse, hvd.Sum)
            kinds = (TypeError, ValueError, NotImplementedError) if hvd.rank() == 1 else hvd.HorovodInternalError
            with pytest.raises(kinds) as caught:
                hvd.sparse_allreduce_async(arguments[0], f"s{index}", arguments[1])()
            texts.append(str(caught.value))
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
        return texts

    for texts in two.run(run):
        for text, part in zip(
            texts,
            [
                "got torch.strided",
                "got op=Max",
                "got op=17",
                "got int",
                "got op=Adasum",
            ],
            strict=True,
        ):
            assert part in text and "rank 1" in text, text


@pytest.mark.slow("each operation with complex numbers")
def test_operations_on_complex_tensors_have_gradients_and_complex_parameters_train(two: World) -> None:
    def run(compiled: bool) -> list[list[complex]]:
        rank = hvd.rank()
        x = torch.tensor([1.0 + 2.0j], requires_grad=True)
        calls: list[Any] = [
            lambda y: hvd.allreduce(y, op=hvd.Sum),
            hvd.allgather,
            hvd.alltoall,
            lambda y: hvd.broadcast(y, 1),
        ]
        seen = []
        for call in calls:
            operation = torch.compile(call, backend="aot_eager") if compiled else call
            loss = operation(x.expand(2) * (rank + 1)).abs().square().sum()
            seen.append(torch.autograd.grad(loss, x)[0].tolist())
        parameter = torch.nn.Parameter(torch.tensor([1.0 + 2.0j]))
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        (parameter.abs().square().sum() * (rank + 1)).backward()
        optimizer.step()
        return [*seen, parameter.tolist()]

    x = 1 + 2j
    for compiled in (False, True):
        for rank, seen in enumerate(two.run(run, compiled)):
            factors = [24.0 * (rank + 1), 4.0 * (rank + 1) ** 2, 4.0 * (rank + 1) ** 2, 16.0 * rank, -2.0]
            assert seen == [[pytest.approx(factor * x)] for factor in factors]
