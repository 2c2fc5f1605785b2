# SPDX-License-Identifier: Apache-2.0
"""Faults under PyTorch's own tools on the backend hvd: the error names rank and operation, and all others end soon."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.extent import SLACK_S, later
from support.patience import Patience, wait_until
from support.world import Outcome, World, WorldPool

from horovod.core import context as contexts

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import torch.distributed as dist
from torch.distributed import DistBackendError

from horovod.torch import HorovodInternalError

ENV = {"HOROVOD_TRANSPORT": "shm", "HOROVOD_FROZEN_TIMEOUT_SECONDS": "2"}
ENDED_WITHIN_S = 3.0 + SLACK_S
# By tool, the operation that a step begins with.
FIRST = {"calls": "allreduce", "ddp": "allreduce", "fsdp": "allgather", "zero": "broadcast"}
STEPS_BEFORE = 64  # so that no name of an unnamed operation is new


def step_with(tool: str, width: int) -> Callable[[], None]:
    """A step of training with the tool, or one call. `width`: of the model's output, or of the tensor."""
    if tool == "calls":
        tensor = torch.ones(width)
        return lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX)
    model = plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, width))
    optimizer: Any
    if tool == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(plain, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    if tool == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(plain)
    if tool == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(plain.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
    else:
        optimizer = torch.optim.Adam(plain.parameters(), 1e-2)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

    return step


def train(tool: str, fault: Callable[[], None], differs: bool = False) -> None:
    """Some steps, then a fault on rank 1 in the middle of more. `differs`: rank 1 has another model."""
    torch.set_num_threads(1)
    dist.init_process_group("hvd")
    try:
        step = step_with(tool, 6 if differs and dist.get_rank() == 1 else 4)
        for _ in range(STEPS_BEFORE):
            step()
        dist.barrier()
        fault()
        for _ in range(2):
            step()
    finally:
        dist.destroy_process_group()


def text_of(outcome: Outcome, tool: str) -> str:
    """The error's text. It is Horovod's and torch's, or from the backward of DistributedDataParallel a RuntimeError."""
    error = outcome.error
    assert isinstance(error, RuntimeError), outcome
    assert tool == "ddp" or (isinstance(error, HorovodInternalError) and isinstance(error, DistBackendError)), error
    return str(error)


@pytest.mark.parametrize("tool", [later("calls"), "ddp", "fsdp", later("zero")])
@pytest.mark.parametrize("number", [signal.SIGKILL, later(signal.SIGSTOP)])
def test_a_rank_that_is_killed_or_stopped_is_named(tool: str, number: int) -> None:
    def fault() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), number)

    with World(3, ENV) as world:
        began = time.monotonic()
        call = world.start(train, tool, fault)
        for survivor in (0, 2):
            assert Patience().ask(world.connections[survivor].poll), world.stacks()
        assert time.monotonic() - began < ENDED_WITHIN_S
        world.kill(1)
        first, lost, second = call.outcomes()
    # "has ended": its threads have not all gone, on a busy machine.
    ended = "(died|has ended) without leaving the job"
    what = ended if number == signal.SIGKILL else "was stopped by a signal and has not run for"
    for survivor in (first, second):
        text = text_of(survivor, tool)
        assert re.search(rf"unnamed {FIRST[tool]}( failed)?: rank 1 \(process \d+\) {what}", text), text[:1000]
    assert lost.died == "killed by SIGKILL"


@pytest.mark.parametrize("tool", FIRST)
def test_the_ranks_that_a_timeout_waits_for_are_named(worlds: WorldPool, tool: str) -> None:
    def fault() -> None:
        dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=0.2))
        context = contexts.current()
        while dist.get_rank() == 1 and context.library.hvd_settle(context.pointer, 0, None) == 0:
            time.sleep(0.01)  # it calls nothing until the others have given up

    for outcome in worlds(2, ENV).run_each(train, tool, fault):
        pattern = (
            rf"unnamed {FIRST[tool]}( failed)?: rank 0 has waited 0.2 s, the timeout of torch.distributed, for "
            rf"{FIRST[tool]} in the process group '0' of "
        )
        pattern += r"ranks \[0, 1\]: missing rank 1, which did not call it\n"
        assert re.search(pattern, str(outcome.error)), outcome


@pytest.mark.parametrize("tool", [*map(later, ("calls", "ddp", "zero")), "fsdp"])
def test_a_rank_that_does_not_call_is_reported_and_may_still_come(worlds: WorldPool, tool: str, tmp_path: Path) -> None:
    def fault() -> None:
        while dist.get_rank() == 1 and not (tmp_path / "go").exists():
            time.sleep(0.01)

    world = worlds(2, {**ENV, "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5"})
    before = len(world.output(0))
    call = world.start(train, tool, fault)
    report = (
        rf"stall: rank 0 waited \d+\.\d s for unnamed {FIRST[tool]}.*: missing rank 1, which did not call (it|them)"
    )
    wait_until(lambda: re.search(report, world.output(0)[before:]), world.stacks)
    (tmp_path / "go").touch()
    call.results()


@pytest.mark.parametrize("tool", FIRST)
def test_a_model_that_differs_is_told_with_its_rank(worlds: WorldPool, tool: str) -> None:
    first, second = worlds(2, ENV).run_each(train, tool, lambda: None, True)
    if tool == "ddp":  # which looks itself, and compares with rank 0
        assert "[1]: params[2] in this process with sizes [6, 8] appears not to match" in str(second.error), second
        assert re.search(r"unnamed broadcast( failed)?: rank 1 .*left", text_of(first, tool)), first
        return
    texts = [text_of(outcome, tool) for outcome in (first, second)]
    expected = rf"the ranks disagree about unnamed {FIRST[tool]}; rank 1: expected shape \[.*\], got \[.*\]"
    told = [text for text in texts if re.search(expected, text)]
    # ZeRO starts several broadcasts: one rank may have the error, and leave, before the other has started them all.
    left = [text for text in texts if re.search(rf"unnamed {FIRST[tool]}( failed)?: rank . .*left", text)]
    assert told and len(told) + len(left if tool == "zero" else []) == 2, texts


def test_parts_of_a_gather_that_differ_are_an_error_on_all_ranks(worlds: WorldPool) -> None:
    """Also on a rank whose output happens to be as large as all parts together."""

    def run(in_list: bool) -> None:
        dist.init_process_group("hvd")
        try:
            part = torch.ones(1 + dist.get_rank())
            outputs = [torch.zeros(len(part)) for _ in range(3)]
            if in_list:
                dist.all_gather(outputs, part)
            else:
                dist.all_gather_into_tensor(torch.cat(outputs), part)
        finally:
            dist.destroy_process_group()

    for in_list in (True, False):
        for outcome in worlds(3, ENV).run_each(run, in_list):
            assert "the ranks disagree about unnamed allgather; rank 1: expected" in text_of(outcome, "calls"), outcome


def test_parts_that_are_not_as_a_list_says_are_an_error(worlds: WorldPool) -> None:
    """The list of rank 2 is as large as all parts together."""

    def run() -> None:
        dist.init_process_group("hvd")
        try:
            outputs = [torch.zeros(size) for size in ([2, 1, 3] if dist.get_rank() == 2 else [1, 2, 3])]
            dist.all_gather(outputs, torch.ones(1 + dist.get_rank()))
        finally:
            dist.destroy_process_group()

    first, second, third = worlds(3, ENV).run_each(run)
    assert first.ok and second.ok
    assert "expected [2, 1, 3] elements, got [1, 2, 3]" in str(third.error), third
