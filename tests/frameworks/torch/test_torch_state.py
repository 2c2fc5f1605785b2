# SPDX-License-Identifier: Apache-2.0
"""Start values: parameters, buffers and optimizer state from one rank."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.world import World

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd


def test_a_state_dict_with_buffers_and_numbers_is_that_of_the_root(two: World) -> None:
    def run() -> None:
        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        model = model.to(memory_format=torch.channels_last)
        model(torch.randn(2, 3, 5, 5))
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        flat = torch.cat([value.double().flatten() for value in model.state_dict().values()])
        gathered = hvd.allgather(flat.unsqueeze(0))
        assert torch.equal(gathered[0], gathered[1]) and torch.equal(gathered[1], flat)
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        mixed = {"weight": torch.full((2,), float(hvd.rank())), "epoch": hvd.rank(), "none": None, "lr": hvd.rank() / 2}
        hvd.broadcast_parameters(mixed, root_rank=1)
        assert mixed["weight"].tolist() == [1.0, 1.0]
        assert (mixed["epoch"], mixed["none"], mixed["lr"]) == (1, None, 0.5)
        with pytest.raises(ValueError, match="`bad` is a list"):
            hvd.broadcast_parameters({"bad": []}, root_rank=0)
        with pytest.raises(ValueError, match="expected a dict or a list of pairs, got int"):
            hvd.broadcast_parameters(3, root_rank=0)

    two.run(run)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "Rprop", "ASGD"])
def test_optimizer_state_and_options_are_those_of_the_root_and_no_weight_moves(two: World, name: str) -> None:
    def run(name: str) -> tuple[Any, list[list[float]], bool]:
        root = 1
        weights = [torch.nn.Parameter(torch.ones(2) * (i + 1)) for i in range(3)]
        options: dict[str, Any] = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
        optimizer = getattr(torch.optim, name)(weights[:2], lr=0.5 if hvd.rank() == root else 0.25, **options)
        optimizer.add_param_group({"params": weights[2:], "lr": 0.125})
        if hvd.rank() == root:  # only the root has ever stepped
            for _ in range(3):
                for index, weight in enumerate(weights):
                    weight.grad = torch.full((2,), float(index + 1))
                optimizer.step()
        before = [weight.detach().clone() for weight in weights]
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        moved = not all(torch.equal(a, b.detach()) for a, b in zip(before, weights, strict=True))
        state = optimizer.state_dict()
        plain = {
            index: {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in entry.items()}
            for index, entry in state["state"].items()
        }
        types = [[type(value).__name__ for _, value in sorted(group.items())] for group in state["param_groups"]]
        return (plain, state["param_groups"]), types, moved

    outcomes = two.run(run, name)
    assert outcomes[0] == outcomes[1]
    (state, groups), _, moved = outcomes[0]
    assert not moved
    assert len(state) == 3 and groups[0]["lr"] == 0.5 and groups[1]["lr"] == 0.125


def test_a_step_counter_stays_in_host_memory_whatever_the_default_device(two: World) -> None:
    def run() -> tuple[str, float]:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([weight])
        if hvd.rank() == 0:
            weight.sum().backward()
            optimizer.step()
        with torch.device("meta"):  # as torch.set_default_device
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        step = optimizer.state[weight]["step"]
        return str(step.device), float(step)

    assert two.run(run) == [("cpu", 1.0)] * 2


def test_state_that_the_root_has_not_is_dropped(two: World) -> None:
    def run() -> int:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([weight])
        if hvd.rank() == 1:
            weight.grad = torch.ones(2)
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return len(optimizer.state)

    assert two.run(run) == [0, 0]


# name: (the optimizer of rank 2, and that of the others, which are given two parameters; what the text holds)
UNLIKE: dict[str, tuple[Any, Any, str]] = {
    "class": (
        lambda weights: torch.optim.SGD(weights, lr=0.5),
        lambda weights: torch.optim.Adam(weights, lr=0.25),
        r"expected a torch\.optim\.adam\.Adam, got a torch\.optim\.sgd\.SGD",
    ),
    "groups": (
        lambda weights: torch.optim.Adam([{"params": [weight]} for weight in weights], lr=0.5),
        lambda weights: torch.optim.Adam(weights, lr=0.25),
        r"expected parameter groups of \[2\] parameters, got \[1, 1\]",
    ),
    "order": (
        lambda weights: torch.optim.Adam(weights[::-1], lr=0.5),
        lambda weights: torch.optim.Adam(weights, lr=0.25),
        r"parameter 0 of group 0: expected shape \[2\], got \[3\]",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_an_optimizer_that_is_not_like_the_roots_is_named_and_left_alone(three: World, case: str) -> None:
    def run(case: str) -> tuple[str, float, int]:
        weights = [torch.nn.Parameter(torch.ones(length)) for length in (2, 3)]
        optimizer = UNLIKE[case][0 if hvd.rank() == 2 else 1](weights)
        if hvd.rank() == 1:  # the root
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0
        return str(caught.value), optimizer.param_groups[0]["lr"], len(optimizer.state)

    outcomes = three.run(run, case)
    for rank, (text, _, _) in enumerate(outcomes):
        assert re.search(UNLIKE[case][2], text), text
        assert "the optimizer of rank 2 is not like that of rank 1, the root: " in text and "hint:" in text, text
        assert f"(this is rank {rank})" in text, text
    assert [outcome[1:] for outcome in outcomes] == [(0.25, 0), (0.25, 2), (0.5, 0)]


def test_how_many_optimizers_are_not_like_the_roots(three: World) -> None:
    def run() -> str:
        kind = torch.optim.SGD if hvd.rank() == 0 else torch.optim.Adagrad
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.broadcast_optimizer_state(kind([torch.nn.Parameter(torch.ones(1))], lr=1.0), root_rank=0)
        return str(caught.value)

    for text in three.run(run):
        assert "the optimizer of rank 1 " in text and "; nor is that of 1 other rank " in text, text


def test_a_wrapped_optimizer_is_like_the_one_that_it_wraps(two: World) -> None:
    def run() -> float:
        optimizer: Any = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=float(1 + hvd.rank()))
        if hvd.rank() == 1:
            optimizer = hvd.DistributedOptimizer(optimizer)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        return float(optimizer.param_groups[0]["lr"])

    assert two.run(run) == [2.0, 2.0]


def test_strings_of_a_state_dict_are_broadcast_and_other_objects_are_named(two: World) -> None:
    def run() -> str:
        state = {
            "weight": torch.full((2,), float(hvd.rank())),
            "kind": f"of rank {hvd.rank()}",
            "raw": b"%d" % hvd.rank(),
        }
        hvd.broadcast_parameters(state, root_rank=1)
        assert state["weight"].tolist() == [1.0, 1.0] and state["raw"] == b"1"
        with pytest.raises(ValueError, match="`set` is a set: expected a tensor, a number, a string or None"):
            hvd.broadcast_parameters({"weight": torch.ones(1), "set": set()}, root_rank=0)
        return str(state["kind"])

    assert two.run(run) == ["of rank 1"] * 2


def test_a_tensor_that_cannot_be_sent_does_not_keep_the_others_waiting(two: World) -> None:
    def run() -> tuple[str, float]:
        bad = torch.float8_e5m2 if hvd.rank() == 1 else torch.float32
        state = {"a": torch.ones(3), "b": torch.zeros(3, dtype=bad), "c": torch.full((50, 40), float(hvd.rank())).t()}
        try:
            hvd.broadcast_parameters(state, root_rank=0)
        except (ValueError, hvd.HorovodInternalError) as error:
            text = str(error)
        else:
            text = "no error"
        return text, float(state["c"].max())

    for text, last in two.run(run):
        assert "float8_e5m2" in text and "`" in text
        assert last == 0.0


def test_keys_that_differ_between_ranks_are_named_at_once(two: World) -> None:
    def run() -> tuple[str, float]:
        model = torch.nn.Linear(3, 3, bias=hvd.rank() == 1)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return str(caught.value), float(hvd.allreduce(torch.ones(1), op=hvd.Sum)[0])

    for text, after in two.run(run):
        assert "rank 0 lacks `bias`, which rank 1 has" in text
        assert after == 2.0


def test_what_is_wrong_on_one_rank_keeps_nobody_waiting(three: World) -> None:
    def run() -> list[str]:
        wrong = hvd.rank() == 1
        weights = [torch.nn.Parameter(torch.ones(2))]
        sgd = torch.optim.SGD(weights, lr=1.0)
        optimizer = torch.optim.LBFGS(weights, lr=1.0) if wrong else sgd
        model = torch.nn.Linear(2, 2)
        deeper = torch.nn.Sequential(model)
        calls: list[tuple[bool, Any]] = [
            (True, lambda: hvd.broadcast_parameters({"a": {1} if wrong else torch.ones(2)}, 0)),
            (True, lambda: hvd.broadcast_parameters(3 if wrong else {"a": torch.ones(2)}, 0)),
            (True, lambda: hvd.broadcast_parameters({3 if wrong else "a": torch.ones(2)}, 0)),
            (True, lambda: hvd.broadcast_parameters([("a",)] if wrong else {"a": torch.ones(2)}, 0)),
            (True, lambda: hvd.broadcast_parameters(model if wrong else model.state_dict(), 0)),
            (True, lambda: hvd.broadcast_parameters(deeper if wrong else deeper.state_dict(), 0)),
            (True, lambda: hvd.broadcast_parameters(sgd if wrong else {"a": torch.ones(2)}, 0)),
            (True, lambda: hvd.broadcast_optimizer_state(optimizer, 0)),
            (True, lambda: hvd.broadcast_optimizer_state(model if wrong else sgd, 0)),
            (False, lambda: hvd.broadcast_parameters({"a": 1 if wrong else torch.ones(2), "b": 1}, 0)),
        ]
        texts = []
        for here, call in calls:
            with pytest.raises((TypeError, ValueError) if here and wrong else hvd.HorovodInternalError) as caught:
                call()
            texts.append(str(caught.value))
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0
        return texts

    expected = [
        "`a` is a set",
        "got int",
        "keys are names",
        "expected pairs of a name and a tensor, got ('a',)",
        "got Linear\nhint: give model.state_dict()",
        "`0` is a Linear: expected a tensor\nhint: give model.state_dict()",
        "got SGD\nhint: broadcast_optimizer_state(optimizer, root_rank) is for optimizers",
        "LBFGS",
        "expected a torch.optim.Optimizer, got Linear\nhint: broadcast_parameters(",
        "`a (no tensor)`",
    ]
    for texts in three.run(run):
        for text, part in zip(texts, expected, strict=True):
            assert part in text and "rank 1" in text, text
