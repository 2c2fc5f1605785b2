# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST with PyTorch, data-parallel.

    horovodrun -np 2 python examples/01_torch_mnist/train.py

What makes the script distributed is marked with "Horovod:". It also runs alone: python train.py.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402

EPOCHS = 3
LEAST_STEPS = 300  # with few images, or many ranks, an epoch is only a few steps


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LeNet-5 on MNIST, data-parallel with Horovod")
    parser.add_argument("--data-dir", help="folder with the four MNIST files; by default the cache")
    parser.add_argument("--epochs", type=int, help=f"default {EPOCHS}, or more for {LEAST_STEPS} steps")
    parser.add_argument("--images", type=int, help="number of training images; by default all")
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank; scaled by their number")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint", type=Path, help="file that rank 0 writes after every epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


def dataset(images: Any, labels: Any) -> TensorDataset:
    pixels = torch.from_numpy(images.copy()).unsqueeze(1).float().div_(255).sub_(0.1307).div_(0.3081)
    return TensorDataset(pixels, torch.from_numpy(labels.copy()).long())


def metric_average(value: float, name: str) -> float:
    """Horovod: the average of a number over all ranks."""
    return float(hvd.allreduce(torch.tensor(value), name=name))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], sampler: Any, epoch: int, epochs: int
) -> None:
    model.train()
    sampler.set_epoch(epoch)  # Horovod: another shuffle in every epoch, the same on all ranks
    started = shown = time.monotonic()
    total_loss = 0.0
    for step, (images, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        # Horovod: one rank talks for all
        if hvd.rank() == 0 and (time.monotonic() - shown > 2 or step == len(loader)):
            shown = time.monotonic()
            elapsed = shown - started
            done = min(step * loader.batch_size, len(sampler))  # the sampler gives this rank its share of the images
            rate = done * hvd.size() / elapsed
            left = elapsed / step * (len(loader) - step) + elapsed / step * len(loader) * (epochs - 1 - epoch)
            print(
                f"epoch {epoch + 1}/{epochs} {done}/{len(sampler)} per rank  "
                f"loss {total_loss / step:.4f}  {rate:.0f} images/s  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
    average = metric_average(total_loss / len(loader), "train_loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: training loss {average:.4f}", flush=True)


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader[Any]) -> tuple[float, float, int]:
    """Loss and accuracy over the test images of all ranks, and their number."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)  # loss, correct answers, images
    for images, labels in loader:
        output = model(images)
        sums[0] += F.cross_entropy(output, labels, reduction="sum")
        sums[1] += (output.argmax(1) == labels).sum()
        sums[2] += len(labels)
    # Horovod: shares may differ by one image, so sums are added instead of averages averaged
    sums = hvd.allreduce(sums, name="test", op=hvd.Sum)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2]), int(sums[2])


def main() -> None:
    arguments = parse_arguments()
    hvd.init()  # Horovod: find the other ranks
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # one CPU thread per rank

    digits = mnist.load(arguments.data_dir)
    train_set = dataset(digits.train_images[: arguments.images], digits.train_labels[: arguments.images])
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, {len(train_set)} training images, {digits.source}", flush=True)
    test_set = dataset(digits.test_images, digits.test_labels)
    # Horovod: every rank trains on its own share. The test's shares are cut by hand, as DistributedSampler would repeat
    # images to make them equal.
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=arguments.seed)
    train_loader = DataLoader(train_set, batch_size=arguments.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=1000, sampler=range(hvd.rank(), len(test_set), hvd.size()))

    model = LeNet5()
    # Horovod: a larger batch over all ranks takes a larger learning rate
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr * hvd.size(), momentum=arguments.momentum)
    first_epoch = 0
    if arguments.resume and hvd.rank() == 0:
        saved = torch.load(arguments.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"]
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    # Horovod: gradients are averaged over the ranks, and all ranks start with what rank 0 has
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    epochs = arguments.epochs or max(EPOCHS, math.ceil(LEAST_STEPS / len(train_loader)))
    for epoch in range(first_epoch, epochs):
        train(model, optimizer, train_loader, sampler, epoch, epochs)
        loss, accuracy, count = test(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: test loss {loss:.4f}, accuracy {accuracy:.4f} on {count} images", flush=True)
            if arguments.checkpoint:  # Horovod: only one rank writes
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                torch.save(state, arguments.checkpoint)
    _, accuracy, count = test(model, test_loader)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f} ({count} images)", flush=True)


if __name__ == "__main__":
    main()
