# SPDX-License-Identifier: Apache-2.0
"""Steps of ranks.py: PyTorch's own tools on the backend "hvd", with models and tensors on the GPU.

On the stand-in, which PyTorch cannot use, the same functions run on the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

__all__ = ["STEPS"]


def started(on_cpu: bool) -> tuple[Any, str]:
    import torch
    import torch.distributed as dist

    import horovod.torch as hvd
    from horovod_torch_backend import register

    hvd.init()
    if not on_cpu:
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    register()  # PyTorch does so by itself if Horovod is installed, not only unpacked
    dist.init_process_group("hvd")
    return hvd, "cpu" if on_cpu else "cuda"


def model_and_data(device: str) -> tuple[Any, list[Any]]:
    """The same on all ranks: a model, and a batch for each of them."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)]
    model = torch.nn.Sequential(*layers).to(device)
    return model, list(torch.randn(dist.get_world_size(), 32, 64, device=device))


def train(model: Any, batches: list[Any], steps: int = 3) -> None:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        for batch in batches:
            (model(batch).square().mean() / len(batches)).backward()
        optimizer.step()


def wrong_operations(device: str) -> list[Any]:
    import torch
    import torch.distributed as dist

    rank, size, wrong = dist.get_rank(), dist.get_world_size(), []

    def expect(what: str, seen: Any, wanted: list[float]) -> None:
        if seen.tolist() != wanted or seen.device.type != device:
            wrong.append((what, str(seen), wanted))

    def full(value: float, count: int = 2) -> Any:
        return torch.full((count,), float(value), device=device)

    total, everyone = size * (size + 1) / 2, list(range(size))
    for number in range(3):
        x = full(rank + 1)
        waited = dist.all_reduce(x, async_op=True)
        waited.wait()
        expect("all_reduce", x, [total, total])
        expect("a result used at once", x * 2, [2 * total, 2 * total])
        x = full(rank + number)
        dist.broadcast(x, size - 1)
        expect("broadcast", x, [size - 1 + number] * 2)
        gathered = full(0, size)
        dist.all_gather_into_tensor(gathered, full(rank, 1))
        expect("all_gather_into_tensor", gathered, everyone)
        part = full(0, 1)
        dist.reduce_scatter_tensor(part, torch.arange(size, device=device).float())
        expect("reduce_scatter_tensor", part, [rank * size])
        swapped = full(0, size)
        dist.all_to_all_single(swapped, full(rank, size))
        expect("all_to_all_single", swapped, everyone)
        came = full(0)
        left, right = (rank - 1) % size, (rank + 1) % size
        ops = [dist.P2POp(dist.isend, full(rank), right), dist.P2POp(dist.irecv, came, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        expect("send and receive", came, [left, left])
        dist.barrier()
    return wrong


def by_torch_distributed(on_cpu: bool) -> Any:
    """Operations; DDP and FSDP2, whose weights after three steps must be those of one process with the whole batch."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    hvd, device = started(on_cpu)
    wrong = wrong_operations(device)
    alone, batches = model_and_data(device)
    mine = batches[hvd.rank()]
    ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    sharded = copy.deepcopy(alone)
    for layer in (sharded[0], sharded[2], sharded):
        mesh = torch.distributed.init_device_mesh(device, (hvd.size(),))
        fully_shard(layer, mesh=mesh)
    train(alone, batches)
    for what, model in (("DDP", ddp), ("FSDP2", sharded)):
        train(model, [mine])
        for ours, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            whole = ours.full_tensor() if isinstance(ours, DTensor) else ours
            off = float((whole - wanted).detach().abs().max())
            wrong += [(what, off)] if off > 1e-5 else []
    counted = hvd.statistics()
    result = {"ranks": hvd.size(), "version": torch.__version__, "wrong": hvd.allgather_object(wrong)}
    torch.distributed.destroy_process_group()
    return {**result, **{name: counted[name] for name in ("batches_by_nccl", "batches_staged")}}


def ddp_beside_nccl(on_cpu: bool) -> Any:
    """Steps of ResNet-50 in DDP on "hvd" and on PyTorch's own NCCL, in turns; above 1 we are faster."""
    import torch
    from ranks import OnCuda, in_turns, resnet50

    if on_cpu:
        return {"not run": "PyTorch cannot use the stand-in"}
    hvd, _ = started(on_cpu)
    try:
        nccl = torch.distributed.new_group(backend="nccl")
        torch.distributed.all_reduce(torch.ones(1, device="cuda"), group=nccl)
    except Exception as error:
        return {"not run": f"torch.distributed: {error}"}
    net, batch, name = resnet50()
    batch = batch.cuda()

    def stepper(group: Any) -> Callable[[], None]:
        model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net).cuda(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def step(steps: int = 5) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()

        return step

    told = in_turns(hvd, OnCuda(hvd.local_rank()), stepper(None), stepper(nccl), 9)
    return {"model": f"{name}, DDP", "ranks": hvd.size(), **told}


STEPS: dict[str, Callable[[bool], Any]] = {
    "torch-distributed": by_torch_distributed,
    "torch-ddp": ddp_beside_nccl,
}
