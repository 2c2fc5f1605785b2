# SPDX-License-Identifier: Apache-2.0
"""Trainer(sync_batchnorm=True): hvd.SyncBatchNorm, on any device, in place of each BatchNorm during a fit."""

from __future__ import annotations

import torch

import horovod.torch as hvd

__all__ = ["SyncedBatchNorm"]

_OWN = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class SyncedBatchNorm:
    """Has the methods of Lightning's LayerSync. The layers share the parameters and buffers of those they replace."""

    def __init__(self) -> None:
        self._replaced: dict[torch.nn.Module, torch.nn.Module] = {}

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with the layers replaced."""
        if isinstance(model, _OWN):
            made = hvd.SyncBatchNorm(
                model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
            )
            made.train(model.training)
            _share(model, made)
            self._replaced[made] = model
            return made
        for name, child in model.named_children():
            setattr(model, name, self.apply(child))
        return model

    def revert(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with its own layers, which have what the others have learned."""
        if model in self._replaced:
            own = self._replaced.pop(model)
            own.train(model.training)
            _share(model, own)
            return own
        for name, child in model.named_children():
            setattr(model, name, self.revert(child))
        return model


def _share(source: torch.nn.Module, target: torch.nn.Module) -> None:
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(target, name, getattr(source, name))
