# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with the backend hvd, and horovod.torch: tensors of every layout give what dense ones give, or the
call fails on all ranks. Rank 0 alone has the odd tensor, so nothing that one rank finds wrong may leave the others
waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.extent import later
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import torch.distributed as dist

import horovod.torch as hvd


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return worlds(3, {"HOROVOD_TRANSPORT": "shm"})


def strided(values: Any) -> Any:
    wide = torch.zeros(2 * values.numel() + 1, dtype=values.dtype)
    return wide[1::2][: values.numel()].copy_(values.reshape(-1)) if values.dim() else wide[1].copy_(values)


# Tensors of the given values, which are all equal. PyTorch has no negative strides.
KINDS: dict[str, Callable[[Any], Any]] = {
    "strided": strided,
    "expanded": lambda values: values.new_full((), 1.0 if not values.numel() else values.reshape(-1)[0]).expand(
        values.shape
    ),
    "negated": lambda values: torch._neg_view(values.neg()),
    "of a parameter": lambda values: values.clone().requires_grad_(),
    "conjugated": lambda values: values.conj().resolve_conj().conj() if values.is_complex() else values,
    "imaginary": lambda values: (
        values if values.is_complex() else torch.complex(values, -values).conj().imag  # it is lazily negated
    ),
}
SHAPES: list[tuple[int, ...]] = [(6,), (3,), (0,), ()]


def like(tensor: Any, rows: int) -> Any:
    return torch.zeros((rows, *tensor.shape), dtype=tensor.dtype)


def of_distributed(rank: int, size: int, kind: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """The calls, as functions from this rank's values to the results."""
    last = size - 1

    def gather(x: Any) -> Any:
        parts = list(like(x, size)) if rank == last else None
        dist.gather(kind(x), parts, last)
        return parts or []

    def scatter(x: Any) -> Any:
        output = kind(torch.zeros_like(x))
        dist.scatter(output, [kind(x + i) for i in range(size)] if rank == last else None, last)
        return output

    def from_first(x: Any) -> Any:
        tensor = kind(x)
        dist.broadcast(tensor, 0)
        return tensor

    def in_place(call: Callable[..., Any]) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            tensor = kind(x)
            call(tensor)
            return tensor

        return run

    def all_gather(x: Any) -> Any:
        parts = [kind(part) for part in like(x, size)]
        dist.all_gather(parts, kind(x))
        return parts

    def all_gather_into(x: Any) -> Any:
        output = kind(like(x, size).reshape(-1))
        dist.all_gather_into_tensor(output, kind(x.reshape(-1)))
        return output

    def all_to_all(x: Any) -> Any:
        parts = [kind(part) for part in like(x, size)]
        dist.all_to_all(parts, [kind(x + i) for i in range(size)])
        return parts

    def all_to_all_single(x: Any) -> Any:
        output = kind(torch.zeros_like(x))
        dist.all_to_all_single(output, kind(x))
        return output

    def reduce_scatter(x: Any) -> Any:
        output = kind(torch.zeros_like(x))
        dist.reduce_scatter(output, [kind(x + i) for i in range(size)])
        return output

    def reduce_scatter_tensor(x: Any) -> Any:
        output = kind(x.new_zeros(x.numel() // size))
        dist.reduce_scatter_tensor(output, kind(x))
        return output

    def around(x: Any) -> Any:
        if rank == last:
            return []
        received = torch.zeros_like(x)
        # PyTorch sends complex numbers as pairs of real ones, which it does not make of conjugated ones.
        sent = kind(x).resolve_conj()
        dist.send(sent, 1) if rank == 0 else dist.recv(received, 0)
        return received if rank else []

    calls = {
        "all_reduce": in_place(dist.all_reduce),
        "reduce": in_place(lambda tensor: dist.reduce(tensor, last)),
        "broadcast": in_place(lambda tensor: dist.broadcast(tensor, 0)),
        "broadcast from another": in_place(lambda tensor: dist.broadcast(tensor, last)),
        **{call.__name__: call for call in (gather, scatter, all_gather, all_gather_into, all_to_all, reduce_scatter)},
        "send": around,
    }
    even = {"all_to_all_single": all_to_all_single, "reduce_scatter_tensor": reduce_scatter_tensor}
    return calls | even


def of_horovod(rank: int, size: int, kind: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    def in_place(call: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda x: call(kind(x))

    return {
        "allreduce": lambda x: hvd.allreduce(kind(x)),
        "allreduce_": in_place(lambda tensor: hvd.allreduce_(tensor, op=hvd.Sum)),
        "grouped_allreduce": lambda x: hvd.grouped_allreduce([kind(x), x], op=hvd.Sum),
        "grouped_allreduce_": in_place(lambda tensor: hvd.grouped_allreduce_([tensor, torch.ones(1)], op=hvd.Sum)),
        "allgather": lambda x: hvd.allgather(kind(x)),
        "grouped_allgather": lambda x: hvd.grouped_allgather([kind(x), kind(x)]),
        "broadcast": lambda x: hvd.broadcast(kind(x), 0),
        "broadcast_": in_place(lambda tensor: hvd.broadcast_(tensor, 2)),
        "alltoall": lambda x: hvd.alltoall(kind(x)),
        "alltoall with splits": lambda x: hvd.alltoall(kind(x), [x.numel(), 0, 0])[0],
        "reducescatter": lambda x: hvd.reducescatter(kind(x), op=hvd.Sum),
        "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([kind(x), x], op=hvd.Sum),
    }


def outcome(call: Callable[[Any], Any], values: Any) -> Any:
    """The results' values, or the error."""
    try:
        results = call(values)
    except (RuntimeError, ValueError) as error:
        return error
    given = results if isinstance(results, (list, tuple)) else [results]
    return [
        torch.view_as_real(one).tolist() if one.is_complex() else one.tolist()
        for one in (result.detach().resolve_conj().resolve_neg() for result in given)
    ]


@pytest.mark.parametrize("dtype", ["complex128", later("float32")])
@pytest.mark.parametrize("api", [of_distributed, of_horovod])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_gives_what_a_dense_tensor_gives_or_fails_everywhere(
    world: World, kind: str, api: Any, dtype: str
) -> None:
    def run() -> list[tuple[str, Any, Any]]:
        dist.init_process_group("hvd")
        rank, size = dist.get_rank(), dist.get_world_size()
        # PyTorch itself refuses to take some of them as pairs of numbers: then on all ranks.
        odd = rank == 0 or kind == "conjugated"
        seen = []
        for shape in SHAPES:
            values = torch.full(shape, rank + 1, dtype=getattr(torch, dtype))
            plain = api(rank, size, torch.clone)
            for name, call in api(rank, size, KINDS[kind] if odd else torch.clone).items():
                expected = outcome(plain[name], values)
                got = outcome(call, values)
                errors = [str(one) if isinstance(one, Exception) else None for one in (expected, got)]
                seen.append((f"{name} {shape}", errors, errors[1] is not None or got == expected))
        dist.destroy_process_group()
        return seen

    by_rank = world.run(run)
    for of_all in zip(*by_rank, strict=True):
        failed = [errors[1] is not None for _, errors, _ in of_all]
        expected = [errors[0] is not None for _, errors, _ in of_all]
        assert all(right for *_, right in of_all), of_all
        if any(failed):
            assert all(failed), of_all
            assert all(expected) or kind in ("expanded", "of a parameter") or "conj" in str(of_all), of_all


# By name: a call that is wrong, with a part of the error, and the others'.
WRONG: dict[str, tuple[Callable[[Any], Any], str, Callable[[Any], Any]]] = {
    "sizes": (
        lambda group: group.all_gather_single(torch.zeros(5), torch.zeros(3)),
        "expected 2 times the 3 elements",
        lambda group: group.all_gather_single(torch.zeros(6), torch.zeros(3)),
    ),
    "list": (
        lambda group: group.allgather([[torch.zeros(1)]], [torch.zeros(1)]),
        "expected a list of 2 tensors, one for each rank, got 1",
        lambda group: group.allgather([[torch.zeros(1)] * 2], [torch.zeros(1)]),
    ),
    "splits": (
        lambda group: group.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 2], [1, 1]),
        "expected 2 numbers that add up to the 3 rows",
        lambda group: group.all_to_all_single(torch.zeros(3), torch.zeros(3), [2, 1], [1, 2]),
    ),
    "output of another dtype": (
        lambda group: group.all_to_all_single(torch.zeros(2, dtype=torch.float64), torch.zeros(2), [], []),
        "expected an output of float32, got float64",
        lambda group: group.all_to_all_single(torch.zeros(2), torch.zeros(2), [], []),
    ),
    "reduction": (
        lambda group: group.reduce_scatter_single(torch.zeros(3), torch.zeros(5)),
        "expected 2 times the 3 elements",
        lambda group: group.reduce_scatter_single(torch.zeros(3), torch.zeros(6)),
    ),
    "sparse": (
        lambda group: group.broadcast([torch.zeros(2).to_sparse()], dist.BroadcastOptions()),
        "layout torch.sparse_coo is not supported",
        lambda group: group.broadcast([torch.zeros(2)], dist.BroadcastOptions()),
    ),
    "op": (
        lambda group: dist.all_reduce(torch.zeros(2).bool(), dist._make_nccl_premul_sum(2.0), group=group),
        "PREMUL_SUM of bool tensors",
        lambda group: dist.all_reduce(torch.zeros(2).bool(), group=group),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_on_one_rank_is_told_to_the_others(worlds: WorldPool, case: str) -> None:
    wrong, text, right = WRONG[case]

    def run(wrong: Any, text: str, right: Any) -> None:
        dist.init_process_group("hvd")
        # The second group of the same ranks has names for its calls.
        for group in (dist.new_group([0, 1]), dist.new_group([0, 1])):
            for _ in range(4):  # from the third time on, requests are prepared
                right(group)  # it need not be waited for
                kinds = (RuntimeError, ValueError, NotImplementedError)
                with pytest.raises(kinds if dist.get_rank() == 0 else hvd.HorovodInternalError, match=text):
                    work = (wrong if dist.get_rank() == 0 else right)(group)
                    assert dist.get_rank() == 1
                    work.wait()
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2.0
        dist.destroy_process_group()

    worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, wrong, text, right)
