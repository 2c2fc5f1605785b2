# SPDX-License-Identifier: Apache-2.0
"""Images per second of a convolutional network with PyTorch on random data, while workers come and go.

horovodrun -np 2 --min-np 1 python examples/11_elastic/torch_synthetic.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import horovod.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description="Images per second on random data, elastic")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--num-iters", type=int, default=10, help="how often it is measured")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in each")
    parser.add_argument("--num-batches-per-commit", type=int, default=1, help="steps between two commits")
    arguments = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 1000),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    images, labels = torch.randn(arguments.batch_size, 3, 64, 64), torch.randint(1000, (arguments.batch_size,))

    def step(state: Any) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        state.batch += 1
        # Horovod: commits cost copies; between them it only asks if the hosts have changed
        state.commit() if state.batch % arguments.num_batches_per_commit == 0 else state.check_host_updates()

    @hvd.elastic.run
    def measure(state: Any) -> list[float]:
        while state.iter < arguments.num_iters:
            begin, first = time.monotonic(), state.batch
            while state.batch < arguments.num_batches_per_iter:
                step(state)
            rate = arguments.batch_size * (state.batch - first) / (time.monotonic() - begin)
            state.rates = [*state.rates, rate * hvd.size()]
            if hvd.rank() == 0:
                print(f"iteration {state.iter}: {rate:.1f} images/s per worker, workers: {hvd.size()}", flush=True)
            state.iter, state.batch = state.iter + 1, 0
        return list(state.rates)

    rates = measure(hvd.elastic.TorchState(model=model, optimizer=optimizer, iter=0, batch=0, rates=[]))
    if hvd.rank() == 0:
        print(f"{statistics.mean(rates):.1f} images/s on all workers, iterations: {len(rates)}", flush=True)


if __name__ == "__main__":
    main()
