# SPDX-License-Identifier: Apache-2.0
"""A step of ranks.py: what PyTorch scripts do with Horovod, on CUDA tensors. Each idiom returns what is wrong.

On the stand-in, whose memory PyTorch's layers cannot use, the same functions run on the CPU, except `streams`.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["idioms"]

Wrong = list[str]


def differing(what: str, seen: Any, wanted: Any, tolerance: float = 0.0) -> Wrong:
    seen, wanted = seen.detach().cpu().double(), wanted.detach().cpu().double()
    if seen.shape == wanted.shape and torch.allclose(seen, wanted, rtol=tolerance, atol=tolerance):
        return []
    return [f"{what}: expected {wanted.flatten()[:3].tolist()}, got {seen.flatten()[:3].tolist()}"]


def same_on_all_ranks(hvd: Any, what: str, model: torch.nn.Module) -> Wrong:
    sums = hvd.allgather_object([float(value.double().sum()) for value in model.state_dict().values()])
    return [] if all(each == sums[0] for each in sums) else [f"{what}: the ranks' weights differ"]


def perceptron(device: str, dtype: Any = torch.float64) -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 50), torch.nn.Linear(50, 1)]
    return torch.nn.Sequential(*layers).to(device, dtype)


def batches(hvd: Any, device: str, count: int, rows: int = 16) -> Iterator[tuple[Any, Any]]:
    """Of all ranks together; a rank's own are the rows from `rank() * rows` on."""
    made = torch.Generator().manual_seed(5)
    for _ in range(count):
        yield tuple(torch.randn(rows * hvd.size(), width, generator=made).double().to(device) for width in (20, 1))


def mine(hvd: Any, tensor: Any) -> Any:
    return tensor.chunk(hvd.size())[hvd.rank()]


def as_one_process(hvd: Any, device: str) -> Wrong:
    """Steps on shares of a batch give the weights that one process gets of the whole batch."""
    wrong: Wrong = []
    for options in ({}, {"gradient_predivide_factor": 2.0}, {"num_groups": 2}, {"backward_passes_per_step": 2}):
        ours, alone = perceptron(device), perceptron(device)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.05, momentum=0.9), ours.named_parameters(), **options
        )
        plain = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
        hvd.broadcast_parameters(ours.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        passes = options.get("backward_passes_per_step", 1)
        for number, (x, y) in enumerate(batches(hvd, device, 12)):
            (torch.nn.functional.mse_loss(ours(mine(hvd, x)), mine(hvd, y)) / passes).backward()
            (torch.nn.functional.mse_loss(alone(x), y) / passes).backward()
            if number % passes == passes - 1:
                for each in (optimizer, plain):
                    each.step()
                    each.zero_grad()
        for name, value in ours.named_parameters():
            wrong += differing(f"{options} {name}", value, alone.get_parameter(name), 1e-9)
        wrong += same_on_all_ranks(hvd, str(options), ours)
    return wrong


def mixed_precision(hvd: Any, device: str) -> Wrong:
    """GradScaler with gradients clipped between synchronize() and step(), and halves on the wire."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), hvd.SyncBatchNorm(16), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 10)
    ).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), 1e-3), model.named_parameters(), compression=hvd.Compression.fp16
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scaler = torch.amp.GradScaler(device)
    images, labels = torch.randn(32, 3, 16, 16, device=device), torch.randint(10, (32,), device=device)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16 if device == "cpu" else torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
    wrong = same_on_all_ranks(hvd, "mixed precision", model)
    return wrong if losses[-1] < 0.5 * losses[0] else [*wrong, f"the loss does not fall: {losses}"]


def batch_norm(hvd: Any, device: str) -> Wrong:
    torch.manual_seed(3)
    whole = torch.randn(8 * hvd.size(), 6, 5, dtype=torch.float64)
    x, all_of_it = (part.clone().to(device).requires_grad_() for part in (mine(hvd, whole), whole))
    ours, plain = (kind(6).to(device, torch.float64) for kind in (hvd.SyncBatchNorm, torch.nn.BatchNorm1d))
    seen, wanted = ours(x), plain(all_of_it)
    seen.pow(3).sum().backward()
    wanted.pow(3).sum().backward()
    return [
        *differing("batch norm", seen, mine(hvd, wanted), 1e-9),
        *differing("batch norm's gradient", x.grad, mine(hvd, all_of_it.grad), 1e-9),
        *differing("running variance", ours.running_var, plain.running_var, 1e-9),
    ]


def streams(hvd: Any, device: str) -> Wrong:
    """Computed on one stream, reduced from there, and used on another one; memory that is freed at once."""
    if device == "cpu":
        return []
    wrong, first, second = [], torch.cuda.Stream(), torch.cuda.Stream()
    for number in range(30):
        with torch.cuda.stream(first):
            torch.cuda._sleep(2_000_000)  # of the GPU's clock: about a millisecond
            handle = hvd.allreduce_async(torch.full((100_000,), float(number), device=device), op=hvd.Sum)
        noise = [torch.full((100_000,), -1.0, device=device) for _ in range(3)]
        with torch.cuda.stream(second):
            total = hvd.synchronize(handle) + 1
            kept = total.clone()
        del total, noise
        torch.cuda.current_stream().wait_stream(second)
        wrong += differing(f"streams, round {number}", kept, torch.full((100_000,), number * hvd.size() + 1.0))
    return wrong


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((20,), float(index), dtype=torch.float64), torch.tensor([float(index)]).double()


def loaders(hvd: Any, device: str) -> Wrong:
    """Workers are forked after the first operation on the GPU."""
    sampler = torch.utils.data.distributed.DistributedSampler(
        Numbers(), num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=8, sampler=sampler, num_workers=2, pin_memory=device != "cpu"
    )
    total = torch.zeros((), dtype=torch.float64, device=device)
    for _, labels in itertools.chain(loader, loader):
        total += hvd.allreduce(labels.to(device, non_blocking=True), op=hvd.Sum, name="labels").sum()
    return differing("sum of labels", total, torch.tensor(2.0 * sum(range(64))))


def odd_tensors(hvd: Any, device: str) -> Wrong:
    """No dimension, no element, no order in memory, other types, groups, process sets, and derivatives."""
    rank, size = hvd.rank(), hvd.size()
    wrong = differing(
        "scalar", hvd.allreduce(torch.tensor(rank, device=device), op=hvd.Sum), torch.tensor(sum(range(size)))
    )
    wrong += differing("nothing", hvd.allreduce(torch.zeros(0, 3, device=device), op=hvd.Sum), torch.zeros(0, 3))
    square = torch.arange(600.0, device=device).reshape(20, 30)
    wrong += differing("transposed", hvd.allreduce(square.t(), op=hvd.Sum), square.t() * size)
    wrong += differing("strided", hvd.allreduce(square[:, ::2], op=hvd.Average), square[:, ::2])
    flags = torch.tensor([rank == 0, True, False], device=device)
    wrong += differing("flags", hvd.allreduce(flags, op=hvd.Max), torch.tensor([True, True, False]))
    group = [
        torch.full((n,), rank + 1, dtype=dtype, device=device)
        for n, dtype in ((3, torch.float32), (70_000, torch.float16), (5, torch.int64))
    ]
    for seen, given in zip(hvd.grouped_allreduce(group, op=hvd.Sum), group, strict=True):
        wrong += differing(f"group {given.dtype}", seen, torch.full_like(given, size * (size + 1) // 2))
    pieces = torch.tensor([rank + to for to in range(size)], device=device)
    got, received = hvd.alltoall(torch.full((int(pieces.sum()),), rank, device=device), splits=pieces)
    wrong += differing("alltoall", received, torch.tensor([rank + r for r in range(size)]))
    wrong += differing("alltoall", got, torch.cat([torch.full((rank + r,), r) for r in range(size)]))
    x = torch.full((5,), rank + 1.0, device=device, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum) ** 2).sum().backward()
    wrong += differing("derivative", x.grad, torch.full((5,), size * (size + 1.0) * size))
    last = hvd.add_process_set([size - 1])
    if rank == size - 1:
        wrong += differing("process set", hvd.allreduce(square, op=hvd.Sum, process_set=last), square)
    hvd.remove_process_set(last)
    wrong += differing("Adasum", hvd.allreduce(square, op=hvd.Adasum), square, 1e-6)
    third = hvd.allreduce(torch.full((100_000,), 3.0, device=device).bfloat16(), op=hvd.Sum, prescale_factor=1 / 3)
    return [*wrong, *differing("a third of bfloat16", third, torch.full((100_000,), float(size)), 0.01)]


def sparse(hvd: Any, device: str) -> Wrong:
    torch.manual_seed(2)
    table = torch.nn.Embedding(50, 4, sparse=True).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
    before = table.weight.detach().clone()
    table(torch.tensor([hvd.rank(), 7], device=device)).sum().backward()
    optimizer.step()
    for row in (*range(hvd.size()), 7):
        before[row] -= 1.0 if row == 7 else 1.0 / hvd.size()
    return differing("embedding", table.weight, before, 1e-6)


def joining(hvd: Any, device: str) -> Wrong:
    wrong = []
    for number in range(3 + hvd.rank()):
        total = hvd.allreduce(torch.ones(1000, device=device), op=hvd.Sum, name="uneven")
        ranks = sum(number < 3 + r for r in range(hvd.size()))
        wrong += differing(f"uneven, {number}", total, torch.full((1000,), float(ranks)))
    last = hvd.join()
    return wrong if last == hvd.size() - 1 else [*wrong, f"the last to join is {last}"]


def kept_state(hvd: Any, device: str) -> Wrong:
    """An elastic state, committed and restored."""
    model = perceptron(device)
    optimizer = torch.optim.Adam(model.parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)
    state.sync()
    state.commit()
    saved = [value.detach().clone() for value in model.parameters()]
    for value in model.parameters():
        hvd.allreduce_(value.data, op=hvd.Sum)
    state.restore()
    return [text for v, w in zip(model.parameters(), saved, strict=True) for text in differing("restored", v, w)]


ALL: tuple[Callable[[Any, str], Wrong], ...] = (
    as_one_process,
    mixed_precision,
    batch_norm,
    streams,
    loaders,
    odd_tensors,
    sparse,
    joining,
    kept_state,
)


def idioms(hvd: Any, on_cpu: bool) -> Any:
    """An idiom that raises an error on one rank does so on the others, or they are told."""
    wrong: Wrong = []
    for idiom in ALL:
        try:
            wrong += [f"{idiom.__name__}: {text}" for text in idiom(hvd, "cpu" if on_cpu else "cuda")]
        except hvd.HorovodInternalError:
            raise
        except Exception:
            wrong.append(f"{idiom.__name__}: {traceback.format_exc()}")
    counted: dict[str, Any] = hvd.statistics()
    told = {"ranks": hvd.size(), "wrong": hvd.allgather_object(wrong)}
    return {**told, **{name: counted[name] for name in ("batches_by_nccl", "batches_staged")}}
