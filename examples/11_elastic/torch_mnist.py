# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on MNIST with PyTorch, whose workers come and go.

    horovodrun -np 2 --min-np 1 python examples/11_elastic/torch_mnist.py

What makes the script elastic is marked with "Horovod:".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402
from common.arguments import elastic  # noqa: E402

LR = 0.01


def dataset(images: Any, labels: Any) -> TensorDataset:
    pixels = torch.from_numpy(images.copy()).unsqueeze(1).float().div_(255).sub_(0.1307).div_(0.3081)
    return TensorDataset(pixels, torch.from_numpy(labels.copy()).long())


def main() -> None:
    numbers = {"epochs": (3, "epochs"), "batch_size": (64, "images per worker and step"), "commit": (10, "steps each")}
    arguments = elastic("MNIST with PyTorch, elastic", **numbers)
    hvd.init()  # Horovod: a worker that joins is in no world yet, so nothing may be reduced or sent before train()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    digits = mnist.load_alone(arguments.data_dir)
    train_set = dataset(digits.train_images, digits.train_labels)
    test_set = dataset(digits.test_images, digits.test_labels)

    model = nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=LR * hvd.size(), momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Horovod: knows which images of the epoch are done, and shares out the others
    sampler = hvd.elastic.ElasticSampler(train_set)
    loader = DataLoader(train_set, batch_size=arguments.batch_size, sampler=sampler)

    def on_state_reset() -> None:
        """Horovod: there is another number of workers now."""
        for group in optimizer.param_groups:
            group["lr"] = LR * hvd.size()

    @hvd.elastic.run
    def train(state: Any) -> None:
        for state.epoch in range(state.epoch, arguments.epochs):  # noqa: B020
            model.train()
            for state.batch, (images, labels) in enumerate(loader, state.batch):  # noqa: B020
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                sampler.record_batch(state.batch, len(images))
                # Horovod: what is committed is not lost; the other batches only ask if the hosts have changed
                state.commit() if state.batch % arguments.commit == 0 else state.check_host_updates()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}: loss {loss.item():.4f}, workers: {hvd.size()}", flush=True)
            sampler.set_epoch(state.epoch + 1)
            state.batch = 0

    @torch.no_grad()
    def correct() -> float:
        model.eval()
        mine = DataLoader(test_set, batch_size=1000, sampler=range(hvd.rank(), len(test_set), hvd.size()))
        right = sum((model(images).argmax(1) == labels).sum() for images, labels in mine)
        return float(hvd.allreduce(torch.as_tensor(right), name="correct", op=hvd.Sum)) / len(test_set)

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)
    state.register_reset_callbacks([on_state_reset])
    train(state)
    accuracy = correct()
    if hvd.rank() == 0:
        print(f"workers: {hvd.size()}, test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
