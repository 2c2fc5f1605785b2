# SPDX-License-Identifier: Apache-2.0
"""A small net trained with Lightning, for tools/try-trainers: with_lightning.py BACKEND FOLDER [first].

`first`: the group is there before the Trainer, as horovodrun needs it; by itself, Lightning makes it.
"""

import sys

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        losses = self.all_gather(loss.detach()).tolist()
        if self.global_rank == 0:
            print("loss", losses)
        return loss

    def validation_step(self, batch, _):
        self.log("of_validation", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 8), torch.randn(60, 1))
if "first" in sys.argv:
    dist.init_process_group(sys.argv[1])
strategy = DDPStrategy(process_group_backend=sys.argv[1])
quiet = {"logger": False, "enable_progress_bar": False}
trainer = Trainer(accelerator="cpu", strategy=strategy, devices=2, max_epochs=2, default_root_dir=sys.argv[2], **quiet)
trainer.fit(Net(), DataLoader(data, 8, shuffle=True), DataLoader(data, 8))
if trainer.global_rank == 0:
    print("loss", trainer.callback_metrics["of_validation"].item())
    print("backend", dist.get_backend(), "of", trainer.world_size)
dist.destroy_process_group()
