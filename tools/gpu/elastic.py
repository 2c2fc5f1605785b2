# SPDX-License-Identifier: Apache-2.0
"""A step of tools/gpu/check (ranks.py starts it): in an elastic job whose gradients NCCL reduces, a worker is lost. It
is killed, or with HVD_CHECK_LOSS=gpu a kernel of its script fails. The other worker goes on alone, until a new worker
joins. After n steps each weight must be -n. `batches_by_nccl` counts those of the last world.

On the stand-in, whose memory PyTorch's layers cannot use, it runs on the CPU.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import horovod.torch as hvd

LOST_AT, LAST = 20, 60  # steps
LIMIT_S = 60.0
DEVICE = "cpu" if os.environ.get("HVD_CHECK_STAND_IN") else "cuda"


def be_lost() -> None:
    if os.environ.get("HVD_CHECK_LOSS") == "gpu":
        torch.zeros(1, device=DEVICE)[torch.ones(1, dtype=torch.int64, device=DEVICE)]
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    hvd.init()
    worker, began = int(os.environ["HOROVOD_ELASTIC_WORKER"]), time.monotonic()
    model = torch.nn.Linear(1_000_000, 1, bias=False).to(DEVICE)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    wrong: list[Any] = []
    sizes: list[int] = []
    commits: list[float] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        sizes.append(hvd.size())
        while state.step < LAST or hvd.size() < 2:
            if worker == 1 and state.step == LOST_AT:
                be_lost()
            if time.monotonic() - began > LIMIT_S:
                raise RuntimeError("no worker came in the lost one's place")
            optimizer.zero_grad()
            # Their average is 1.
            mine = hvd.size() if hvd.rank() == hvd.size() - 1 else 0
            model(torch.full((1, 1_000_000), float(mine), device=DEVICE)).backward()
            optimizer.step()
            state.step += 1
            time.sleep(0.02)
            state.commit()
            commits.append(time.monotonic())

    train(state)
    if not bool((model.weight == -state.step).all()):
        wrong.append(f"after {state.step} steps: {model.weight.flatten()[:3].tolist()}")
    told = hvd.allgather_object((worker, sizes, wrong))
    if worker == 0:
        gaps = [b - a for a, b in zip(commits, commits[1:], strict=False)]
        counted = hvd.statistics()["batches_by_nccl"]
        result = {"steps": state.step, "sizes": sizes, "longest_pause_s": round(max(gaps), 3)}
        result |= {
            "workers": [each[0] for each in told],
            "wrong": [each[2] for each in told],
            "batches_by_nccl": counted,
        }
        Path(os.environ["HVD_CHECK_RESULT"]).write_text(json.dumps(result))
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
