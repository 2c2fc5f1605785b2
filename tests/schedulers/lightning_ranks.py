# SPDX-License-Identifier: Apache-2.0
"""A rank of test_lightning.py: lightning_ranks.py FOLDER. It prints "done RANK", and then rank 1 fails."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path
from typing import Any

import horovod.torch.lightning  # isort: skip  # before Lightning, which it must find all the same

import lightning.pytorch as pl
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod.torch as hvd

FOLDER = Path(sys.argv[1])
EPOCHS, ROWS, BATCH, CLIP, PASSES = 4, 44, 5, 0.3, 2  # of each rank: 22 rows, the last batch has 2
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "default_root_dir": str(FOLDER),
    "logger": False,
    "enable_checkpointing": False,
}


def mse(output: Any, label: Any) -> Any:
    return torch.nn.functional.mse_loss(output, label)


def trainer(**others: Any) -> Any:
    return pl.Trainer(strategy="horovod", **{**QUIET, **others})


def batches(dataset: Any) -> Any:
    return DataLoader(dataset, BATCH)


def weights(model: Any) -> Any:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def assert_equal_to(model: Any, expected: Any) -> None:
    everywhere = hvd.allgather(weights(model)[None])
    assert torch.equal(everywhere[0], everywhere[1])
    torch.testing.assert_close(everywhere[0], weights(expected))


def by_rank(data: Any, epoch: int) -> Any:
    """The batches of both ranks, in pairs, as Lightning's DistributedSampler gives them in training."""
    found = []
    for rank in range(2):
        sampler = DistributedSampler(data, 2, rank, seed=0)
        sampler.set_epoch(epoch)
        found.append(list(DataLoader(data, BATCH, sampler=sampler)))
    return list(zip(*found, strict=True))


def net(seed: int, *middle: Any) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), *middle, torch.nn.Tanh(), torch.nn.Linear(8, 1))


class Plain(pl.LightningModule):
    """A regression; its layers begin with other weights on each rank."""

    def __init__(self, *middle: Any, seed: int | None = None) -> None:
        super().__init__()
        self.layers = net(hvd.rank() if seed is None else seed, *middle)
        self.error = torchmetrics.MeanAbsoluteError()
        self.seen = torchmetrics.CatMetric()

    def training_step(self, batch: Any, index: int) -> Any:
        loss = mse(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        output = self.layers(batch[0])
        self.error(output, batch[1])
        if self.global_rank == 0 or index < 4:
            self.seen.update(batch[1].flatten())
        self.log("error", self.error)
        self.log("mean", batch[1].mean(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.labels = self.seen.compute()
        self.seen.reset()

    test_step, on_test_epoch_end = validation_step, on_validation_epoch_end

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.layers(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.layers.parameters(), 0.2, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def plain_reference(data: Any) -> Any:
    """The same in one process with whole batches."""
    layers = net(0)
    optimizer = torch.optim.SGD(layers.parameters(), 0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(EPOCHS):
        whole = by_rank(data, epoch)
        for index, pair in enumerate(whole, 1):
            x, y = (torch.cat(both) for both in zip(*pair, strict=True))
            (mse(layers(x), y) / PASSES).backward()
            if index % PASSES == 0 or index == len(whole):
                torch.nn.utils.clip_grad_norm_(layers.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    return layers


def fits_saves_goes_on_and_predicts(data: Any) -> None:
    expected = plain_reference(data)
    rates = LearningRateMonitor()
    best = ModelCheckpoint(FOLDER / "checkpoints", monitor="error", save_last=True)
    given = {
        "logger": CSVLogger(FOLDER),
        "log_every_n_steps": 1,
        "enable_checkpointing": True,
        "gradient_clip_val": CLIP,
        "accumulate_grad_batches": PASSES,
        "use_distributed_sampler": True,
    }
    first = trainer(max_epochs=2, callbacks=[rates, best, EarlyStopping("error")], **given)
    assert (first.global_rank, first.world_size, first.is_global_zero) == (hvd.rank(), 2, hvd.rank() == 0)
    assert (first.local_rank, first.node_rank, first.num_nodes) == (hvd.rank(), 0, 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*optimizer.step.*")
        model = Plain()
        first.fit(model, batches(data), batches(data))
    assert list(rates.lrs) == ["lr-SGD"]
    second = trainer(max_epochs=EPOCHS, **given)  # of the same model, while the first one is there
    torch.nn.init.zeros_(model.layers[0].weight)
    second.fit(model, batches(data), batches(data), ckpt_path=best.last_model_path)
    assert second.global_step == EPOCHS * 3 and second.current_epoch == EPOCHS
    assert_equal_to(model.layers, expected)

    with torch.no_grad():
        output = expected(data.tensors[0])
    found = second.test(model, batches(data), verbose=False)[0]
    torch.testing.assert_close(found["error"], float((output - data.tensors[1]).abs().mean()))
    second.validate(model, batches(data), verbose=False)
    seen = [row for row in range(ROWS) if row not in (41, 43)]
    assert torch.equal(model.labels.sort().values, data.tensors[1][seen].flatten().sort().values)
    mine = torch.cat(second.predict(model, batches(data)))
    torch.testing.assert_close(mine, output[hvd.rank() :: 2])

    assert model.all_gather(torch.tensor([hvd.rank()])).tolist() == [[0], [1]]
    strategy = second.strategy
    assert strategy.broadcast({"of": hvd.rank()}, 1) == {"of": 1} and strategy.reduce("text") == "text"
    ours = [strategy.reduce(torch.tensor(3.0 + hvd.rank()), reduce_op=op).item() for op in ("mean", "sum", "max", None)]
    assert ours == [3.5, 7.0, 4.0, 7.0]
    decisions = [strategy.reduce_boolean_decision(hvd.rank() == 0, all=every) for every in (True, False)]
    assert decisions == [False, True]
    x = torch.tensor([1.0 + hvd.rank()], requires_grad=True)
    (strategy.all_gather(x, sync_grads=True).sum() * (1.0 + hvd.rank())).backward()
    assert x.grad.tolist() == [3.0]
    assert not strategy.all_gather(x).requires_grad


class Two(pl.LightningModule):
    """Two optimizers, passes that only accumulate, and a layer that only one rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = net(hvd.rank()), net(hvd.rank() + 7)
        self.rare = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(self.rare.weight)

    def training_step(self, batch: Any, index: int) -> None:
        first, second = self.optimizers()
        with first.toggle_model():
            first.zero_grad()
            self.manual_backward(loss_of_first(self, batch, hvd.rank()))
            first.step()
        with second.toggle_model(sync_grad=index % 2 == 1):
            self.manual_backward(mse(self.second(batch[0]), self.first(batch[0])))
        if index % 2 == 1:
            second.step()
            second.zero_grad()

    def configure_optimizers(self) -> Any:
        return two_optimizers(self)


def loss_of_first(model: Any, batch: Any, rank: int) -> Any:
    output = model.first(batch[0])
    return mse(model.rare(output) if rank == 0 else output, batch[1])


def two_optimizers(model: Any) -> Any:
    parameters = [*model.first.parameters(), *model.rare.parameters()]
    return torch.optim.SGD(parameters, 0.1, momentum=0.9), torch.optim.Adam(model.second.parameters(), 0.01)


def several_optimizers(data: Any) -> None:
    model = Two()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    expected = torch.nn.Module()
    for name, module in model.named_children():
        expected.add_module(name, copy.deepcopy(module))
    trainer(max_epochs=1).fit(model, DataLoader(data, BATCH))
    first, second = two_optimizers(expected)
    for index, pair in enumerate(by_rank(data, 0)):
        first.zero_grad()
        (sum(loss_of_first(expected, batch, rank) for rank, batch in enumerate(pair)) / 2).backward()
        first.step()
        (sum(mse(expected.second(x), expected.first(x).detach()) for x, _ in pair) / 2).backward()
        if index % 2 == 1:
            second.step()
            second.zero_grad()
    assert_equal_to(model, expected)


def mixed_precision_and_layers_over_all_ranks(data: Any) -> None:
    model = Plain(torch.nn.BatchNorm1d(8))
    trainer(max_epochs=1, precision="bf16-mixed", sync_batchnorm=True).fit(model, DataLoader(data, BATCH))
    norm = model.layers[1]
    assert type(norm) is torch.nn.BatchNorm1d and int(norm.num_batches_tracked) == 5
    means = hvd.allgather(torch.cat([norm.running_mean, weights(model)])[None])
    assert torch.equal(means[0], means[1]) and norm.running_mean.abs().max() > 0


def what_cannot_be_is_said() -> None:
    for wrong, text in (
        ({"devices": 3}, "the Trainer has 3 devices, and this host 2 ranks"),
        ({"num_nodes": 2}, "the Trainer has num_nodes=2, and the job 1 host"),
        ({"accelerator": "horovod"}, 'hint: write Trainer(strategy="horovod")'),
    ):
        try:
            trainer(**wrong)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(wrong)


def one_device_is_that_of_each_rank() -> None:
    assert trainer(devices=1, num_nodes=1).world_size == 2


class Fails(Plain):
    def training_step(self, batch: Any, index: int) -> Any:
        if index == 1 and self.global_rank == 1:
            raise ValueError("a row of rank 1 is wrong")
        return super().training_step(batch, index)


if __name__ == "__main__":
    hvd.init()
    torch.manual_seed(1)
    rows = TensorDataset(torch.randn(ROWS, 4), torch.randn(ROWS, 1))
    assert horovod.torch.lightning.HorovodStrategy.__mro__[2].__module__.startswith("lightning.pytorch")
    fits_saves_goes_on_and_predicts(rows)
    several_optimizers(rows)
    mixed_precision_and_layers_over_all_ranks(rows)
    what_cannot_be_is_said()
    one_device_is_that_of_each_rank()
    assert not torch.distributed.is_initialized()
    print("done", hvd.rank(), flush=True)
    saved = ModelCheckpoint(FOLDER / f"of-rank-{hvd.rank()}", save_on_exception=True, save_top_k=-1, every_n_epochs=1)
    trainer(max_epochs=2, callbacks=[saved], enable_checkpointing=True).fit(Fails(), DataLoader(rows, BATCH))
