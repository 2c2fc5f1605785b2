# SPDX-License-Identifier: Apache-2.0
"""What the ranks tell each other beside their gradients: options that differ, equal rows, and what is not finite."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support.world import WorldPool

from horovod.core.exceptions import MismatchError
from horovod.gradients import step_check

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

SHM = {"HOROVOD_TRANSPORT": "shm"}
STEPS = 24


def said(work: Callable[[], Any]) -> list[str]:
    torch.manual_seed(1)  # the start values
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(one.message).splitlines()[0] for one in caught]


def wrapped(net: Any, kind: Any = torch.optim.SGD, **options: Any) -> Any:
    hvd.broadcast_parameters(net.state_dict(), 0)
    return hvd.DistributedOptimizer(kind(net.parameters(), **options), net.named_parameters())


CHANGES: dict[str, tuple[Any, Callable[[dict[str, Any]], None], str]] = {
    "lr": (torch.optim.SGD, lambda group: group.update(lr=0.05), "0.1 on ranks 0, 2, 0.05 on rank 1"),
    "weight_decay": (
        torch.optim.SGD,
        lambda group: group.update(weight_decay=1e-4),
        "0 on ranks 0, 2, 0.0001 on rank 1",
    ),
    "betas": (
        torch.optim.Adam,
        lambda group: group.update(betas=(0.8, 0.9)),
        "(0.9, 0.999) on ranks 0, 2, (0.8, 0.9) on rank 1",
    ),
}


@pytest.mark.parametrize("option", CHANGES)
def test_an_option_that_one_rank_changes_is_named_once_with_all_values(worlds: WorldPool, option: str) -> None:
    def run() -> list[str]:
        hvd.init()
        kind, change, _ = CHANGES[option]
        net = torch.nn.Linear(4, 1)
        optimizer = wrapped(net, kind, lr=0.1)

        def train() -> None:
            for step in range(180):
                if step == 140 and hvd.rank() == 1:
                    change(optimizer.param_groups[0])
                optimizer.zero_grad()
                net(of_rank(step)).sum().backward()
                optimizer.step()

        return said(train)

    text = f"in step 145 of the optimizer that updates `bias`, the ranks differ in `{option} of group 0`: "
    assert worlds(3, SHM).run(run) == [[text + CHANGES[option][2]], [], []]


def test_options_that_differ_are_an_error_on_all_ranks_if_asked(worlds: WorldPool) -> None:
    def run() -> tuple[str, int]:
        hvd.init()
        net = torch.nn.Linear(4, 1)
        optimizer = wrapped(net, lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
        with pytest.raises(MismatchError) as caught:
            for step in range(10):
                optimizer.zero_grad()
                net(torch.randn(2, 4)).sum().backward()
                optimizer.step()
                scheduler.step(float(step) if hvd.rank() else float(-step))
        return str(caught.value), step

    for text, step in worlds(2, {**SHM, "HOROVOD_REPLICA_CHECK": "error"}).run(run):
        assert (
            "in step 3 of" in text and "`lr of group 0`: 0.1 on rank 0, 0.01" in text and "hvd.allreduce(loss)" in text
        )
        assert step == 2


def linear() -> Any:
    return torch.nn.Linear(4, 1)


def train(net: Any, batch: Callable[[int], Any], steps: int = STEPS, lr: float = 0.05, loss: Any = None) -> None:
    optimizer = wrapped(net, lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        found = net(batch(step)).pow(2).mean() if loss is None else loss(net, batch(step))
        found.backward()
        optimizer.step()


def rows(seed: int) -> Any:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def frozen() -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    net[0].requires_grad_(False)
    return net


class Unused(torch.nn.Module):
    """One layer has no gradient; the penalty gives another one a gradient that does not depend on the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.penalized = linear(), linear(), linear()

    def forward(self, batch: Any) -> Any:
        return self.used(batch) + self.penalized.weight.pow(2).sum()


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 3, sparse=True)

    def forward(self, batch: Any) -> Any:
        return self.table(batch[:, 0].mul(10).long().clamp(-25, 24) + 25)


SAME: dict[str, Callable[[], None]] = {
    "linear": lambda: train(linear(), rows),
    "few batches": lambda: train(linear(), lambda step: rows(step % 3)),
    "frozen": lambda: train(frozen(), rows),
    "unused": lambda: train(Unused(), rows),
    "sparse": lambda: train(Words(), rows),
    "bfloat16": lambda: train(linear().bfloat16(), lambda step: rows(step).bfloat16()),
    "adam": lambda: _adam(),
}


def _adam(rows: Callable[[int], Any] = rows) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
    optimizer = wrapped(net, torch.optim.Adam)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(rows(step)), rows(step)[:, :3].argmax(1)).backward()
        optimizer.step()


def test_ranks_that_train_on_the_same_rows_are_told_once(worlds: WorldPool) -> None:
    def run() -> dict[str, list[str]]:
        hvd.init()
        return {name: said(work) for name, work in SAME.items()}

    first, second = worlds(2, SHM).run(run)
    for name, texts in first.items():
        assert len(texts) == 1, (name, texts)
        assert texts[0].startswith("in each of the first 20 steps of the optimizer that updates `"), name
        assert texts[0].endswith("they seem to train on the same rows, and so to do the same work"), name
    assert not any(second.values())


def of_rank(step: int) -> Any:
    return rows(1000 * hvd.rank() + step)


def _on_some(step: int) -> Any:
    """Equal rows but on the last rank."""
    return rows(step if hvd.rank() < hvd.size() - 1 else 1000 + step)


def _joining() -> None:
    """One rank is alone from step 2 on; then all have other rows."""
    with hvd.uneven_data():
        net = linear()
        optimizer = wrapped(net, lr=0.05)
        for step in range(STEPS if hvd.rank() == 0 else 2):
            optimizer.zero_grad()
            net(of_rank(step) if step < 2 else rows(step)).pow(2).mean().backward()
            optimizer.step()


def _accumulating() -> None:
    net = linear()
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.05), backward_passes_per_step=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            net(of_rank(2 * step + part)).pow(2).mean().backward()
        optimizer.step()


def _scaled() -> None:
    """As GradScaler begins: one batch whose scaled gradients overflow until the scale is small enough."""
    net = linear()
    optimizer = wrapped(net, lr=0.05)
    scale = 2.0**130
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((net(rows(0)).pow(2).mean() + 1).double() * scale).float().backward()
        scale /= 4
        if all(parameter.grad.isfinite().all() for parameter in net.parameters()):
            optimizer.step()


def _adversaries() -> None:
    generator, judge = linear(), torch.nn.Linear(1, 1)
    optimizers = [wrapped(generator, lr=0.05), wrapped(judge, lr=0.01)]
    for step in range(STEPS):
        for optimizer, sign in zip(optimizers, (1, -1), strict=True):
            for one in optimizers:
                one.zero_grad()
            (sign * judge(generator(of_rank(step))).mean()).backward()
            optimizer.step()


def _warming() -> None:
    """Equal options, but for their type and the way in which they are computed."""
    net = linear()
    is_odd = hvd.rank() % 2
    lr, betas = (0.1 * 3, (0.9, 0.1 * 3)) if is_odd else (0.3, (0.9, 0.3))
    optimizer = wrapped(net, torch.optim.Adam, lr=lr, betas=betas, weight_decay=0.0 if is_odd else 0)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = lr * (step + 1) / STEPS if is_odd else lr / STEPS * (step + 1)
        optimizer.param_groups[0]["rounded"] = 1.0000005 + 1e-12 * (1 if is_odd else -1)
        optimizer.zero_grad()
        net(of_rank(step)).pow(2).mean().backward()
        optimizer.step()


QUIET: dict[str, Callable[[], None]] = {
    "other rows, frozen": lambda: train(frozen(), of_rank),
    "accumulated": _accumulating,
    "scaled": _scaled,
    "two optimizers": _adversaries,
    "equal options": _warming,
    "other rows": lambda: train(linear(), of_rank),
    "other rows, sparse": lambda: train(Words(), of_rank),
    "other rows, unused": lambda: train(Unused(), of_rank),
    "one rank has others": lambda: train(linear(), _on_some),
    "one batch": lambda: train(linear(), lambda step: rows(0)),
    "one batch, fast": lambda: train(linear(), lambda step: rows(0), lr=0.2),
    "one batch, too fast": lambda: train(linear(), lambda step: rows(0), lr=0.4),
    "one batch, adam": lambda: _adam(lambda step: rows(0)),
    "zero gradients": lambda: train(linear(), rows, loss=lambda net, batch: (net(batch) * 0).sum()),
    "constant gradients": lambda: train(linear(), lambda step: torch.ones(2, 4), loss=lambda net, x: net(x).sum()),
    "not finite": lambda: train(linear(), rows, loss=lambda net, batch: (net(batch) / 0).sum()),
    "few steps": lambda: train(linear(), rows, steps=11),
    "joining": _joining,
}


@pytest.mark.parametrize("size", [1, 3])
def test_nothing_is_said_of_rows_that_differ_or_show_nothing(worlds: WorldPool, size: int) -> None:
    def run() -> dict[str, list[str]]:
        hvd.init()
        return {name: said(work) for name, work in QUIET.items()}

    for found in worlds(size, SHM).run(run):
        assert found == dict.fromkeys(QUIET, [])


def test_same_rows_are_told_again_after_a_new_start_only_if_they_were_not_before(worlds: WorldPool) -> None:
    def run() -> list[int]:
        hvd.init()
        torch.manual_seed(1)
        net = linear()
        optimizer = wrapped(net, lr=0.05)

        def some(batch: Callable[[int], Any]) -> None:
            for step in range(STEPS):
                optimizer.zero_grad()
                net(batch(step)).pow(2).mean().backward()
                optimizer.step()

        counts = []
        for batch in (of_rank, rows, rows):
            counts.append(len(said(lambda batch=batch: some(batch))))
            hvd.shutdown()
            hvd.init()
        return counts

    assert worlds(2, SHM).run(run) == [[0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("switch", ["HOROVOD_SAME_ROWS_CHECK", "HOROVOD_REPLICA_CHECK_STEPS"])
def test_each_check_is_switched_off_by_itself(worlds: WorldPool, switch: str) -> None:
    def run() -> list[str]:
        hvd.init()
        torch.manual_seed(1)
        net = linear()
        optimizer = wrapped(net, lr=0.05)

        def work() -> None:
            for step in range(STEPS):
                optimizer.param_groups[0]["weight_decay"] = 1e-9 * hvd.rank() * (step > 8)
                optimizer.zero_grad()
                net(rows(step)).pow(2).mean().backward()
                optimizer.step()

        return said(work)

    texts, _ = worlds(2, {**SHM, switch: "0"}).run(run)
    assert ["same rows" in text for text in texts] == [switch != "HOROVOD_SAME_ROWS_CHECK"]


def test_the_first_gradient_that_is_not_finite_is_named(worlds: WorldPool) -> None:
    def run(error: bool) -> list[str]:
        hvd.init()
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Embedding(9, 2, sparse=True))
        optimizer = wrapped(net, lr=0.1)

        def work() -> None:
            for step in range(6):
                optimizer.zero_grad()
                loss = net[1](net[0](of_rank(step))).sum() + net[2](torch.tensor([1, 2])).sum()
                if step == 3 and hvd.rank() == 1:
                    loss = loss + net[1].weight.sum() * float("inf") + net[2](torch.tensor([5])).sum() * float("nan")
                loss.backward()
                optimizer.step()

        if not error:
            return said(work)
        with pytest.raises(MismatchError) as caught:
            work()
        assert not any(parameter.isnan().any() for parameter in net.parameters())
        return str(caught.value).splitlines()[:1]

    text = "in step 4 of the optimizer that updates `0.bias`, on rank 1 the gradient of `{}` is not finite"
    text += ", and 1 more of this rank"
    names = ("1.weight", "2.weight")
    seen = worlds(3, {**SHM, "HOROVOD_FINITE_CHECK": "warn"}).run(run, False)
    assert seen[0] in [[text.format(name)] for name in names] and seen[1:] == [[], []]
    for texts in worlds(3, {**SHM, "HOROVOD_FINITE_CHECK": "error"}).run(run, True):
        assert texts in [[text.format(name)] for name in names]


def test_a_rank_that_counts_steps_apart_turns_the_check_off_and_trains_on(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        step_check.ANSWER_TIMEOUT_S = 0.1
        net = linear()
        hvd.broadcast_parameters(net.state_dict(), 0)

        def work() -> None:
            optimizer = None
            for step in range(30):
                if step == 0 or (step == 20 and hvd.rank() == 1):  # whose check begins again
                    optimizer = None
                    gc.collect()
                    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.05))
                optimizer.zero_grad()
                net(of_rank(step)).pow(2).mean().backward()
                optimizer.step()

        texts = said(work)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == 2
        return texts

    assert worlds(2, {**SHM, "HOROVOD_REPLICA_CHECK_STEPS": "0"}).run(run) == [[], []]


def test_a_rank_that_joins_is_not_asked_for_its_options(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        net = linear()
        optimizer = wrapped(net, lr=0.1)

        def some(steps: int) -> None:
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = 0.05 if hvd.rank() == 1 and step == 5 else 0.1
                optimizer.zero_grad()
                net(of_rank(step)).pow(2).mean().backward()
                optimizer.step()

        def work() -> None:
            with hvd.uneven_data():
                some(12 if hvd.rank() == 0 else 6)
            hvd.broadcast_parameters(net.state_dict(), 0)
            some(12)

        return said(work)

    differ = "in step 6 of the optimizer that updates `bias`, the ranks differ in `lr of group 0`: 0.1 on rank 0, 0.05 "
    assert worlds(2, SHM).run(run) == [[f"{differ}on rank 1"], []]
