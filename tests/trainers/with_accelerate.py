# SPDX-License-Identifier: Apache-2.0
"""A small net trained with Accelerate, for tools/try-trainers: with_accelerate.py BACKEND FOLDER."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group(sys.argv[1])
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
data = DataLoader(TensorDataset(torch.randn(60, 8), torch.randn(60, 1)), 8, shuffle=True)  # the last batch is short
model, optimizer, batches = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-2), data)
for _ in range(2):
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print("loss", accelerator.gather_for_metrics(loss).tolist(), norm.item())
accelerator.save_state(sys.argv[2])
accelerator.wait_for_everyone()  # rank 0 has written
accelerator.load_state(sys.argv[2])
accelerator.print("backend", dist.get_backend(), "of", accelerator.num_processes)
accelerator.end_training()
