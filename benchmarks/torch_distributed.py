#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with the backend hvd beside Gloo and beside horovod.torch, in the same processes on the CPU:

    cnn, mlp, transformer   a training step: DistributedDataParallel on hvd and on Gloo (both with
                            gradient_as_bucket_view=True), and hvd.DistributedOptimizer
    fsdp-mlp, fsdp          a step of the MLP or the transformer, sharded block by block by fully_shard, on hvd and on
                            Gloo
    call                    dist.all_reduce of 4 B beside hvd.allreduce_
    async                   an asynchronous all_reduce of 4 B with 50 us of computation before its wait, beside the same
                            with the computation after it

    horovodrun -np 2 python benchmarks/torch_distributed.py --json benchmarks/records/torch-distributed-np2.json

The CNN has 8.2 million parameters and gets 4 images of 32 x 32, the MLP 7.9 million and 32 rows, the transformer 5.1
million and 2 sequences of 64 tokens: small batches, so that a step has much to reduce. All train by SGD with momentum.

The default group is on hvd, a second group on Gloo. In each round, every side makes a few calls, one side after the
other. A side's time in a round is the median of its calls on the slowest rank. The table has the ratios of two sides'
times in the same round. Five calls of each side before the first round are not timed.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from in_turns import measure
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from horovod.bench.record import Session

CLASSES, TOKENS, WIDTH = 10, 3800, 256
IN_A_BLOCK = 200  # small calls that are timed together
COMPUTATION_S = 50e-6
Sides = dict[str, Callable[[], Any]]


class Ratio(NamedTuple):
    """Of the times of two sides, with its goal."""

    over: str
    under: str
    goal: float
    at_least: bool  # True: the lower quartile must reach the goal; False: the median must not exceed it


class Transformer(nn.Module):
    """Blocks of attention between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Any) -> Any:
        state = self.embedding(tokens)
        for block in self.blocks:
            state = block(state)
        return self.head(state).flatten(0, 1)


def cnn() -> nn.Module:
    widths = [3, 64, 128, 256, 512, 512, 512]
    layers: list[nn.Module] = []
    for index, (into, out) in enumerate(zip(widths, widths[1:], strict=False)):
        layers += [nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if index < 4 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 930), nn.ReLU(), nn.Linear(930, CLASSES))


def mlp() -> nn.Module:
    widths = [784, 2048, 2048, 1024]
    layers = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in zip(widths, widths[1:], strict=False)]
    return nn.Sequential(*layers, nn.Linear(1024, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "mlp": mlp, "transformer": Transformer}


def batch_of(model: str) -> tuple[Any, Any]:
    torch.manual_seed(1 + dist.get_rank())
    if model == "transformer":
        return torch.randint(TOKENS, (2, 64)), torch.randint(TOKENS, (128,))
    inputs = torch.randn(4, 3, 32, 32) if model == "cnn" else torch.randn(32, 784)
    return inputs, torch.randint(CLASSES, (len(inputs),))


def step_of(model: Callable[[Any], Any], optimizer: Any, batch: tuple[Any, Any]) -> Callable[[], Any]:
    def step() -> Any:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)


def training(name: str, gloo: Any) -> Sides:
    torch.manual_seed(0)
    start, batch = MODELS[name](), batch_of(name)
    sides = {}
    for side, group in (("hvd", None), ("gloo", gloo)):
        model = DistributedDataParallel(copy.deepcopy(start), process_group=group, gradient_as_bucket_view=True)
        sides[side] = step_of(model, sgd(model), batch)
    model = copy.deepcopy(start)
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    return {**sides, "optimizer": step_of(model, optimizer, batch)}


def sharded(name: str, gloo: Any) -> Sides:
    torch.manual_seed(0)
    start, batch = MODELS[name](), batch_of(name)
    sides = {}
    for side, group in (("hvd", dist.group.WORLD), ("gloo", gloo)):
        model, mesh = copy.deepcopy(start), DeviceMesh.from_group(group, "cpu")
        for block in model.blocks if name == "transformer" else model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        sides[side] = step_of(model, sgd(model), batch)
    return sides


def in_blocks(call: Callable[[], Any]) -> Callable[[], Any]:
    def block() -> None:
        for _ in range(IN_A_BLOCK):
            call()

    return block


def calls() -> Sides:
    tensor = torch.zeros(1)
    return {
        "dist": in_blocks(lambda: dist.all_reduce(tensor)),
        "hvd": in_blocks(lambda: hvd.allreduce_(tensor, op=hvd.Sum)),
    }


def asynchronous() -> Sides:
    tensor, matrix, result = torch.zeros(1), torch.randn(64, 64), torch.empty(64, 64)
    multiply = lambda: torch.mm(matrix, matrix, out=result)  # noqa: E731
    in_blocks(multiply)()
    begin = time.perf_counter()
    in_blocks(multiply)()
    products = hvd.broadcast_object(max(1, round(COMPUTATION_S * IN_A_BLOCK / (time.perf_counter() - begin))))

    def before() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        for _ in range(products):
            multiply()
        work.wait()

    def after() -> None:
        dist.all_reduce(tensor, async_op=True).wait()
        for _ in range(products):
            multiply()

    return {"before": in_blocks(before), "after": in_blocks(after)}


BESIDE_GLOO = Ratio("gloo", "hvd", 1.15, True)
BESIDE_OPTIMIZER = Ratio("hvd", "optimizer", 1.05, False)
SHARDED = Ratio("gloo", "hvd", 1.2, True)
# By case: calls in a round, its sides, its ratios.
CASES: dict[str, tuple[int, Callable[[Any], Sides], list[Ratio]]] = {
    **{name: (3, lambda gloo, name=name: training(name, gloo), [BESIDE_GLOO, BESIDE_OPTIMIZER]) for name in MODELS},
    "fsdp-mlp": (3, lambda gloo: sharded("mlp", gloo), [SHARDED]),
    "fsdp": (3, lambda gloo: sharded("transformer", gloo), [SHARDED]),
    "call": (5, lambda gloo: calls(), [Ratio("dist", "hvd", 1.3, False)]),
    "async": (5, lambda gloo: asynchronous(), [Ratio("before", "after", 1.3, False)]),
}


def warm_up(sides: Sides) -> None:
    """Raises AssertionError if the sides do not train alike."""
    losses: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(5):
        for name, side in sides.items():
            loss = side()
            losses[name] += [] if loss is None else [loss.item()]
    first, *others = losses.values()
    for other in others:
        torch.testing.assert_close(torch.tensor(other), torch.tensor(first), rtol=1e-3, atol=1e-4)


def described(case: str, ratio: Ratio, seconds: dict[str, list[float]]) -> str:
    values = [over / under for over, under in zip(seconds[ratio.over], seconds[ratio.under], strict=True)]
    median, low = statistics.median(values), statistics.quantiles(values, n=4)[0]
    is_met = low >= ratio.goal if ratio.at_least else median <= ratio.goal
    goal = f"{'quartile >=' if ratio.at_least else 'median <='} {ratio.goal:.2f}: {'met' if is_met else 'missed'}"
    figures = " ".join(f"{value:>8.3f}" for value in (median, low, min(values), max(values)))
    return f"{case:>12} {ratio.over + ' / ' + ratio.under:>16} {len(values):>5} {figures}   {goal}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41, help="pairs of each case (default 41)")
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("hvd")
    session = Session(arguments.json, ("python", "benchmarks/torch_distributed.py"))
    gloo = dist.new_group(backend="gloo")
    session.begin("")
    columns = " ".join(f"{name:>8}" for name in ("median", "quartile", "min", "max"))
    session.print(f"{'case':>12} {'ratio':>16} {'pairs':>5} {columns}   goal")
    for case in arguments.cases.split(","):
        in_round, make, ratios = CASES[case]
        sides = make(gloo)
        warm_up(sides)
        seconds = measure(sides, arguments.rounds, in_round)
        session.rows.append({"case": case, "torch": torch.__version__, "seconds": seconds})
        for ratio in ratios:
            session.print(described(case, ratio, seconds))
        times = ", ".join(f"{side} {statistics.median(of_side) * 1e3:.2f} ms" for side, of_side in seconds.items())
        session.print(f"{'':>12} {times}")
    code = session.end()
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
