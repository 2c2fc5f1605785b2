# SPDX-License-Identifier: Apache-2.0
"""A small GPT-2 trained with transformers' Trainer, for tools/try-trainers: with_transformers.py BACKEND FOLDER."""

import sys

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Losses(TrainerCallback):
    def on_log(self, arguments, state, control, logs, **_):
        if state.is_world_process_zero:
            print("loss", [logs[name] for name in ("loss", "grad_norm", "eval_loss", "train_loss") if name in logs])


dist.init_process_group(sys.argv[1])
steps = {"max_steps": 6, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 3}
quiet = {"report_to": [], "disable_tqdm": True}
arguments = TrainingArguments(sys.argv[2], use_cpu=True, per_device_train_batch_size=4, seed=0, **steps, **quiet)
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
torch.manual_seed(0)
data = [{"input_ids": line, "labels": line} for line in torch.randint(32, (64, 16))]
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data[:15], callbacks=[Losses()])
trainer.train()
if trainer.is_world_process_zero():
    print("backend", dist.get_backend(), "of", arguments.world_size)
dist.destroy_process_group()
