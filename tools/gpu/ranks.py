# SPDX-License-Identifier: Apache-2.0
"""tools/gpu/ranks.py start WHAT: steps of tools/gpu/check that need ranks. Starts them by horovodrun, two or as many as
there are GPUs, up to four; each runs `ranks.py WHAT`. Rank 0 writes the result.

    operations  every operation on CUDA tensors, with its values
    idioms      what PyTorch scripts do with Horovod (idioms.py)
    killed      a rank is killed while the others' GPUs wait for it: what they are told, and when
    failed      likewise, if a kernel of a rank's script fails and takes its GPU with it
    cost        what a call takes of the host's time
    speed       allreduce beside torch.distributed's by NCCL, in turns on the same buffers
    training    steps of a model with DistributedOptimizer and with DistributedDataParallel, in turns
    elastic     a worker of an elastic job is lost, and another one takes its place (elastic.py)
    jax, keras, tensorflow  operations in functions that these compile for CUDA, with their values (frameworks.py)
    torch-distributed       operations, DDP and FSDP2 on the backend "hvd", with their values (torch_distributed.py)
    torch-ddp               steps of a model in DDP on "hvd" and on PyTorch's NCCL, in turns
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frameworks
import torch_distributed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from values import wrong_values_of_torch  # noqa: E402

STAND_IN = bool(os.environ.get("HVD_CHECK_STAND_IN"))
LOST_LIMIT_S = 0.5 + 3.0 + 2.0  # noticed, ended, and time for this script itself
OF_LOST = {"killed": "RankLostError", "failed": "DeviceLostError"}  # what the others are told


class OnCuda:
    """CUDA tensors of PyTorch."""

    def __init__(self, local_rank: int) -> None:
        import torch

        self.torch = torch
        torch.cuda.set_device(local_rank % torch.cuda.device_count())

    def place(self, tensor: Any) -> Any:
        return tensor.cuda()

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def fail(self) -> None:
        """A kernel that reads beyond a tensor: from then on the process cannot use CUDA."""
        self.torch.zeros(1, device="cuda")[self.torch.ones(1, dtype=self.torch.int64, device="cuda")]


class OnStandIn:
    """Tensors of tests/support/gpu/standin.py."""

    def __init__(self, local_rank: int) -> None:
        from support.gpu import standin

        self.standin = standin
        standin.with_gpus()

    def place(self, tensor: Any) -> Any:
        return self.standin.to_gpu(tensor)

    def wait(self) -> None:
        self.standin.library().standin_drain(self.standin.gpu().default_stream)

    def fail(self) -> None:
        self.standin.library().standin_fail(b"cuEventQuery", 0, 719, 1 << 30)


def tell(result: Any) -> None:
    Path(os.environ["HVD_CHECK_RESULT"]).write_text(json.dumps(result))
    print(json.dumps(result), flush=True)


# Steps, in a rank


def operations(hvd: Any, gpu: Any) -> Any:
    import torch

    wrong = wrong_values_of_torch(hvd, gpu.place)
    # docs/gpu.md says what NCCL makes of these.
    nan, zero = torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, -0.0])
    special = {
        "Max of NaN and 1": hvd.allreduce(gpu.place(nan.roll(hvd.rank())), op=hvd.Max, name="nan").cpu()[0].item(),
        "Max of 0 and -0": hvd.allreduce(gpu.place(zero.roll(hvd.rank())), op=hvd.Max, name="zero").cpu()[0].item(),
    }
    counted = hvd.statistics()
    result = {name: counted[name] for name in ("batches_by_nccl", "batches_in_levels", "batches_staged")}
    return {
        "ranks": hvd.size(),
        "wrong": hvd.allgather_object(wrong),
        **{k: str(v) for k, v in special.items()},
        **result,
    }


def idioms(hvd: Any, gpu: Any) -> Any:
    import idioms as of_scripts

    return of_scripts.idioms(hvd, STAND_IN)


def lost(hvd: Any, gpu: Any, lose: Callable[[], Any]) -> Any:
    """The last rank is lost between two of its calls, while the others go on: what they are told."""
    import torch

    tensor, is_last = gpu.place(torch.ones(1 << 20)), hvd.rank() == hvd.size() - 1
    hvd.allreduce_(tensor, name="gradient")
    began = hvd.broadcast_object(time.time(), root_rank=0) + 1.0
    if is_last:
        while time.time() < began:
            hvd.allreduce_(tensor, name="gradient")
        lose()
    try:
        while True:
            hvd.allreduce_(tensor, name="gradient")
            if not is_last:
                gpu.wait()
    except hvd.HorovodInternalError as error:
        result = {"told": str(error), "kind": type(error).__name__, "after_s": round(time.time() - began, 2)}
    if is_last:
        raise SystemExit(f"the lost rank itself: {result}")
    return result


def killed(hvd: Any, gpu: Any) -> Any:
    return lost(hvd, gpu, lambda: os.kill(os.getpid(), signal.SIGKILL))


def failed(hvd: Any, gpu: Any) -> Any:
    return lost(hvd, gpu, gpu.fail)


def cost(hvd: Any, gpu: Any) -> Any:
    """Microseconds of the host for an allreduce of 4 bytes with a steady name: until it is launched, and the submission
    alone."""
    import torch

    tensor, calls = gpu.place(torch.ones(1)), 50 if STAND_IN else 1000
    for _ in range(20):
        hvd.allreduce_(tensor, name="steady")
    gpu.wait()
    began = time.perf_counter()
    for _ in range(calls):
        hvd.allreduce_(tensor, name="steady")
    launched = time.perf_counter() - began
    gpu.wait()
    submitted = 0.0
    for _ in range(calls):
        began = time.perf_counter()
        handle = hvd.allreduce_async_(tensor, name="steady")
        submitted += time.perf_counter() - began
        hvd.synchronize(handle)
    return {"launched_us": round(launched / calls * 1e6, 1), "submitted_us": round(submitted / calls * 1e6, 1)}


def rival(hvd: Any) -> Any:
    """torch.distributed by NCCL among the same ranks; a text that says why not."""
    import torch

    if STAND_IN:
        return "torch.distributed cannot use the stand-in"
    where = hvd.broadcast_object(tempfile.mktemp(), root_rank=0)  # noqa: S306
    try:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{where}", rank=hvd.rank(), world_size=hvd.size()
        )
        torch.distributed.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        return f"torch.distributed: {error}"
    return torch.distributed


def in_turns(hvd: Any, gpu: Any, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Medians of the seconds of both, and of the rounds' ratios; above 1 we are faster."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 2):
        for run, kept in zip((ours, theirs), times, strict=True):
            hvd.barrier()
            gpu.wait()
            began = time.perf_counter()
            run()
            gpu.wait()
            kept.append(time.perf_counter() - began)
    mine, others = times[0][2:], times[1][2:]
    ratios = [b / a for a, b in zip(mine, others, strict=True)]
    medians = {"ours_s": statistics.median(mine), "theirs_s": statistics.median(others)}
    return {**medians, "ratio": round(statistics.median(ratios), 3), "rounds": rounds}


def speed(hvd: Any, gpu: Any) -> Any:
    import torch

    others = rival(hvd)
    if isinstance(others, str):
        return {"not run": others}
    result: dict[str, Any] = {"ranks": hvd.size(), "nccl_of_torch": list(torch.cuda.nccl.version())}
    began = time.monotonic()
    for size, dtype in itertools.product((4, 4 << 10, 1 << 20, 64 << 20, 256 << 20, 1 << 30), ("float32", "bfloat16")):
        tensor = torch.zeros(
            size // torch.finfo(getattr(torch, dtype)).bits * 8, dtype=getattr(torch, dtype), device="cuda"
        )
        calls = 20 if size < 64 << 20 else 5

        def ours(tensor: Any = tensor, calls: int = calls) -> None:
            for _ in range(calls):
                hvd.allreduce_(tensor, op=hvd.Sum, name=f"{tensor.dtype} {tensor.numel()}")

        def theirs(tensor: Any = tensor, calls: int = calls) -> None:
            for _ in range(calls):
                others.all_reduce(tensor)

        told = in_turns(hvd, gpu, ours, theirs, 9)
        result[f"{size} B {dtype}"] = {**told, "us_a_call": round(told["ours_s"] / calls * 1e6, 1)}
        if hvd.broadcast_object(time.monotonic() - began > 300, root_rank=0):
            break
    return result


def resnet50() -> tuple[Any, Any, str]:
    """The model, a batch, and their name. Without torchvision a plain one of as many parameters."""
    import torch

    torch.manual_seed(1)
    try:
        import torchvision

        return torchvision.models.resnet50(), torch.randn(32, 3, 224, 224), "ResNet-50, 32 images of 224 x 224"
    except ImportError:
        layers = [torch.nn.Conv2d(3, 64, 3, padding=1)]
        layers += [torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(80)]
        tail = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 300_000)]
        return torch.nn.Sequential(*layers, *tail), torch.randn(16, 3, 32, 32), "80 convolutions, 16 images of 32 x 32"


def behind_backward(step: Callable[[], Any]) -> Any:
    """The share of the time of NCCL's kernels in which another kernel of this rank runs."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem"):
            spans[event.name.startswith("nccl")].append((event.time_range.start, event.time_range.end))
    ends, others = 0.0, []
    for start, end in sorted(spans[False]):
        if end > ends:
            others.append((max(start, ends), end))
            ends = end
    total = sum(end - start for start, end in spans[True])
    both = sum(max(0.0, min(e, end) - max(s, start)) for start, end in spans[True] for s, e in others)
    kernels = {"nccl_kernels": len(spans[True]), "nccl_us": round(total)}
    return {**kernels, "behind": round(both / total, 3) if total else None}


def training(hvd: Any, gpu: Any) -> Any:
    import torch

    others = rival(hvd)
    if isinstance(others, str):
        return {"not run": others}
    ours, batch, name = resnet50()
    ours, theirs, batch = ours.cuda(), resnet50()[0].cuda(), batch.cuda()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=1e-6), ours.named_parameters())
    theirs = torch.nn.parallel.DistributedDataParallel(theirs)
    plain = torch.optim.SGD(theirs.parameters(), lr=1e-6)

    def step(net: Any, stepper: Any, steps: int = 5) -> None:
        for _ in range(steps):
            stepper.zero_grad()
            net(batch).square().mean().backward()
            stepper.step()

    told = in_turns(hvd, gpu, lambda: step(ours, optimizer), lambda: step(theirs, plain), 9)
    shares = {}
    for whose, net, stepper in (("ours", ours, optimizer), ("theirs", theirs, plain)):
        hvd.barrier()
        shares[whose] = behind_backward(functools.partial(step, net, stepper, 2))
    return {"model": name, "ranks": hvd.size(), **told, "behind_backward": shares}


# Starting them


def start(what: str) -> int:
    size = int(os.environ.get("HVD_CHECK_RANKS", 2))
    if not STAND_IN and "HVD_CHECK_RANKS" not in os.environ:
        import torch

        size = min(max(2, torch.cuda.device_count()), 4)
    horovodrun = [sys.executable, "-c", "import sys; from horovod.launcher.cli import main; sys.exit(main())"]
    flags, script = [], [str(Path(__file__).resolve()), what]
    if what == "elastic":
        flags, script = ["--min-np", "1"], [str(Path(__file__).resolve().with_name("elastic.py"))]
    process = subprocess.Popen([*horovodrun, "-np", str(size), *flags, sys.executable, *script])
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    code = process.wait()
    path = Path(os.environ["HVD_CHECK_RESULT"])
    result = json.loads(path.read_text()) if path.exists() else {}
    if what in OF_LOST:  # the job must fail
        is_named = result.get("kind") == OF_LOST[what] and f"rank {size - 1}" in result.get("told", "")
        return 0 if code != 0 and is_named and result["after_s"] < LOST_LIMIT_S else 1
    return 1 if code != 0 or any(result.get("wrong", [])) else 0


def main(what: str, *more: str) -> int:
    if what == "start":
        return start(*more)
    that_start_themselves = {**frameworks.STEPS, **torch_distributed.STEPS}
    if what in that_start_themselves:
        result = that_start_themselves[what](STAND_IN)
        if int(os.environ["HOROVOD_RANK"]) == 0:
            tell(result)
        return 0
    import horovod.torch as hvd

    hvd.init()
    gpu = (OnStandIn if STAND_IN else OnCuda)(hvd.local_rank())
    steps = {
        "operations": operations,
        "idioms": idioms,
        "killed": killed,
        "failed": failed,
        "cost": cost,
        "speed": speed,
        "training": training,
    }
    result = steps[what](hvd, gpu)
    if hvd.rank() == 0:
        tell(result)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
