# SPDX-License-Identifier: Apache-2.0
"""Every optimizer of torch, in each of its implementations, wrapped: training in ranks equals one process that trains
on all ranks' rows together. float64, so that 1e-10 tells a mistake from rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.extent import later
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

STEPS = 6
ROWS = 4  # of each rank in each pass

# By optimizer: its options beside the implementation, and whether it has the ones called foreach and fused.
OPTIMIZERS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "Adadelta": ({"lr": 0.5}, True, False),
    "Adafactor": ({"lr": 0.05}, True, False),
    "Adagrad": ({"lr": 0.05}, True, True),
    "Adam": ({"lr": 0.02, "amsgrad": True, "weight_decay": 0.1}, True, True),
    "AdamW": ({"lr": 0.02}, True, True),
    "Adamax": ({"lr": 0.02}, True, False),
    "ASGD": ({"lr": 0.05}, True, False),
    "LBFGS": ({"lr": 0.5, "max_iter": 3, "line_search_fn": "strong_wolfe"}, False, False),
    "Muon": ({"lr": 0.05}, False, False),
    "NAdam": ({"lr": 0.02}, True, False),
    "RAdam": ({"lr": 0.02}, True, False),
    "RMSprop": ({"lr": 0.01, "momentum": 0.5, "centered": True}, True, False),
    "Rprop": ({"lr": 0.01}, True, False),
    "SGD": ({"lr": 0.05, "momentum": 0.9, "nesterov": True}, True, True),
    "SparseAdam": ({"lr": 0.02}, False, False),
}


def model_for(name: str) -> Any:
    torch.manual_seed(3)
    if name == "SparseAdam":
        return torch.nn.Embedding(9, 3, sparse=True).double()
    bias = name != "Muon"  # which is for matrices alone
    return torch.nn.Sequential(
        torch.nn.Linear(3, 5, bias=bias), torch.nn.Tanh(), torch.nn.Linear(5, 2, bias=bias)
    ).double()


def rows(name: str, step: int, ranks: list[int]) -> Any:
    """The rows that these ranks have in that step, one rank after the other."""
    parts = []
    for rank in ranks:
        random = torch.Generator().manual_seed(1000 * step + rank)
        if name == "SparseAdam":
            parts.append(torch.randint(0, 9, (ROWS,), generator=random))
        else:
            parts.append(torch.randn(ROWS, 3, dtype=torch.float64, generator=random))
    return torch.cat(parts)


def trained(
    name: str,
    options: dict[str, Any],
    ranks: list[int],
    wrap: Callable[[Any, Any], Any] = lambda optimizer, model: optimizer,
    average: Callable[[Any], Any] = lambda loss: loss,
    clip: float | None = None,
    passes: int = 1,
    scheduled: Callable[[Any], Any] | None = None,
    scaled: bool = False,
) -> list[Any]:
    """The parameters after STEPS steps on the rows of `ranks`."""
    model = model_for(name)
    optimizer = wrap(getattr(torch.optim, name)(model.parameters(), **options), model)
    scheduler = scheduled(optimizer) if scheduled else None
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) if scaled else None

    def evaluate(step: int) -> Any:
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        total = 0.0
        for number in range(passes):
            loss = model(rows(name, step * passes + number, ranks)).square().mean() / passes
            (scaler.scale(loss) if scaler else loss).backward()
            total = total + loss.detach()
        if scaler:
            scaler.unscale_(optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        return average(total)

    for step in range(STEPS):
        if name == "LBFGS":
            optimizer.step(lambda step=step: evaluate(step))
        else:
            evaluate(step)
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        if scheduler:
            scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


def implementations() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, (options, has_foreach, has_fused) in OPTIMIZERS.items():
        if not hasattr(torch.optim, name):
            continue
        kinds: list[dict[str, Any]] = [{"foreach": True}, {"foreach": False}] if has_foreach else [{}]
        kinds += [{"fused": True}] if has_fused else []
        found += [(name, {**options, **kind}) for kind in kinds]
    return found


def off(hvd: Any, name: str, options: dict[str, Any], wrapping: dict[str, Any], **how: Any) -> list[str]:
    """Trains both ways; says where the parameters are apart, and whether training did anything."""

    def wrap(optimizer: Any, model: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **wrapping)

    everyone = list(range(hvd.size()))
    seen = trained(name, options, [hvd.rank()], wrap, lambda loss: hvd.allreduce(loss, name="loss"), **how)
    expected = trained(name, options, everyone, **how)
    start = [parameter.detach() for parameter in model_for(name).parameters()]
    wrong = []
    for index, (a, b, c) in enumerate(zip(seen, expected, start, strict=True)):
        distance = float((a - b).abs().max())
        if not distance < 1e-10 or torch.equal(b, c):
            wrong.append(f"{name} {options} {wrapping} {how}: parameter {index} is {distance} off")
    return wrong


def one_cycle(optimizer: Any) -> Any:
    cycles = bool({"momentum", "betas"} & set(optimizer.defaults))
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1, cycle_momentum=cycles)


def test_every_optimizer_of_torch_is_in_the_matrix() -> None:
    classes = {
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
    }
    assert classes <= set(OPTIMIZERS), classes - set(OPTIMIZERS)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), later(4, "tcp")])
def test_every_implementation_of_every_optimizer_equals_one_process(
    worlds: WorldPool, size: int, transport: str
) -> None:
    def run() -> tuple[int, list[str]]:
        hvd.init()
        torch.set_num_threads(1)
        cases = implementations()
        return len(cases), [text for name, options in cases for text in off(hvd, name, options, {})]

    for count, wrong in worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run):
        assert wrong == []
        assert count > 25


@pytest.mark.parametrize("size", [2, later(4)])
def test_options_of_training_equal_one_process(worlds: WorldPool, size: int) -> None:
    """Clipping, accumulation, predivision, groups, schedulers and a gradient scaler, for five optimizers."""

    def run() -> tuple[int, list[str]]:
        hvd.init()
        torch.set_num_threads(1)
        names = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"]
        hows: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({}, {"clip": 0.05}),
            ({"backward_passes_per_step": 3}, {"passes": 3}),
            ({"backward_passes_per_step": 2, "gradient_predivide_factor": 4.0}, {"passes": 2, "clip": 0.05}),
            ({"groups": 2}, {}),
            ({}, {"scaled": True, "clip": 0.1}),
            ({}, {"scheduled": lambda one: torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.5)}),
            ({}, {"scheduled": one_cycle}),
        ]
        cases = list(itertools.product(names, hows))
        wrong = []
        for name, (wrapping, how) in cases:
            wrong += off(hvd, name, OPTIMIZERS[name][0], wrapping, **how)
        return len(cases), wrong

    for count, wrong in worlds(size, {"HOROVOD_TRANSPORT": "shm"}).run(run):
        assert wrong == []
        assert count == 35


def test_mixed_precision_trains_as_one_process_does_to_its_precision(two: World) -> None:
    """autocast to bfloat16, with and without gradients that travel as bfloat16, against float32 without either."""

    def run() -> list[str]:
        def losses(ranks: list[int], cast: bool, options: dict[str, Any] | None) -> list[float]:
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
            if options is not None:
                optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
            seen = []
            for step in range(20):
                x = rows("", step, ranks).float()
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
                    loss = (model(x) - x.sum(1, keepdim=True)).float().square().mean()
                loss.backward()
                optimizer.step()
                whole = rows("", 99, [0, 1, 2, 3]).float()
                with torch.no_grad():
                    seen.append(float((model(whole) - whole.sum(1, keepdim=True)).square().mean()))
            return seen

        expected = losses(list(range(hvd.size())), False, None)
        wrong = []
        for options in ({}, {"compression": hvd.Compression.bf16}):
            seen = losses([hvd.rank()], True, options)
            worst = max(abs(a - b) / b for a, b in zip(seen, expected, strict=True))
            if worst > 1e-2 or seen[-1] > seen[0] / 2:
                wrong.append(f"{options}: {worst} off, loss from {seen[0]} to {seen[-1]}")
        return wrong

    assert two.run(run) == [[], []]


def test_a_step_with_an_overflow_is_left_out_on_all_ranks(two: World) -> None:
    """GradScaler sees the reduced gradient: an overflow on one rank makes every rank skip the step, and it leaves
    nothing behind."""

    def run(passes: int) -> list[list[float]]:
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), backward_passes_per_step=passes)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                factor = float("nan") if step == 1 and hvd.rank() == 1 else float(hvd.rank() + 1)
                scaler.scale((parameter * factor).sum() / passes).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append([*parameter.tolist(), scaler.get_scale()])
        return seen

    for passes in (1, 2):
        for seen in two.run(run, passes):
            assert seen == [[-0.5, -0.5, 4.0], [-0.5, -0.5, 2.0], [-2.0, -2.0, 2.0]]
