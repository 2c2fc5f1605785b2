# SPDX-License-Identifier: Apache-2.0
"""A training script for tools/try-verdicts: in one part of its step, one rank is slower than the others.

    slow_job.py SECONDS PART RANK DELAY_S [MARK]

PART: loader, forward, backward, optimizer, or none. Each part takes some milliseconds on every rank, most of it without
the processor, so that many ranks fit on few cores.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import horovod.torch as hvd

WIDTH = 64
USUAL_S = {"loader": 0.006, "forward": 0.01, "backward": 0.014, "optimizer": 0.002}

seconds, part, slow_rank, delay_s = (
    float(sys.argv[1]),
    sys.argv[2],
    int(sys.argv[3]),
    float(sys.argv[4]),
)  # MARK: for ps


def spend(in_part: str) -> None:
    late = delay_s if in_part == part and hvd.rank() == slow_rank else 0.0
    time.sleep(USUAL_S[in_part] + late)


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 8 == 0:
            spend("loader")
        return torch.full((WIDTH,), float(index % 7))


class Slowly(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        spend("backward")
        return gradient


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        spend("forward")
        return Slowly.apply(self.layers(value))


class Sgd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        spend("optimizer")
        return super().step(closure)


hvd.init()
torch.manual_seed(0)
torch.set_num_threads(1)
net = Net()
ballast = torch.ones(1 << 20) if part == "link" else None  # what a link has to carry
optimizer = hvd.DistributedOptimizer(Sgd(net.parameters(), lr=1e-4), named_parameters=net.named_parameters())
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
until = time.monotonic() + seconds
for step, batch in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=8)):
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()
    if ballast is not None:
        hvd.allreduce(ballast, name="ballast")
    if step % 10 == 9 and hvd.allreduce(torch.tensor(float(time.monotonic() > until)), name="over") > 0:
        break
