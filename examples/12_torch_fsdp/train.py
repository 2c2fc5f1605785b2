# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST with PyTorch's FSDP2 on CPUs: each rank keeps a part of the parameters and of the optimizer's state.

    horovodrun -np 2 python examples/12_torch_fsdp/train.py --checkpoint lenet
    horovodrun -np 3 python examples/12_torch_fsdp/train.py --checkpoint lenet --resume

PyTorch's own tools run on Horovod by one word, which is marked with "Horovod:". A checkpoint can be loaded by another
number of ranks. torchrun starts the script as well.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402


def lenet5() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
        nn.Sequential(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LeNet-5 on MNIST, sharded over the ranks with FSDP2")
    parser.add_argument("--data-dir", help="folder with the four MNIST files; by default the cache")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, help="number of training images; by default all")
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpoint", help="folder in which all ranks save after every epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


def tensors(images: Any, labels: Any, count: int | None = None) -> TensorDataset:
    return TensorDataset(torch.tensor(images[:count]).unsqueeze(1) / 255, torch.tensor(labels[:count]).long())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> torch.Tensor:
    """Trains for one epoch; returns the mean loss over all ranks."""
    total = torch.zeros(2)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += torch.stack([loss.detach(), torch.ones(())])
    dist.all_reduce(total)
    return total[0] / total[1]


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of a test set that the ranks have dealt among them."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = torch.stack([(model(images[mine]).argmax(1) == labels[mine]).sum(), torch.tensor(len(labels[mine]))])
    dist.all_reduce(right)
    return float(right[0] / right[1])


def main() -> None:
    options = parse_arguments()
    dist.init_process_group("hvd")  # Horovod: where the script said "gloo"
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    model = lenet5()
    for layer in (*model, model):
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.Adam(model.parameters(), options.lr)

    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer, "epoch": 0}
    if options.resume:
        checkpoint.load(state, checkpoint_id=options.checkpoint)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
        if rank == 0:
            print(f"{size} ranks go on after epoch {state['epoch']}", flush=True)

    digits = mnist.load(options.data_dir)
    images = tensors(digits.train_images, digits.train_labels, options.images)
    sampler = DistributedSampler(images, seed=42, drop_last=True)
    batches = DataLoader(images, options.batch_size, sampler=sampler)
    tests = tensors(digits.test_images, digits.test_labels).tensors
    first = state["epoch"]
    for epoch in range(first, first + options.epochs):
        sampler.set_epoch(epoch)
        loss = train(model, optimizer, batches)
        share = accuracy(model, *tests)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {share:.4f}", flush=True)
        if options.checkpoint:
            of_model, of_optimizer = get_state_dict(model, optimizer)
            state = {"model": of_model, "optimizer": of_optimizer, "epoch": epoch + 1}
            checkpoint.save(state, checkpoint_id=options.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
