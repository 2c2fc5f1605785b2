# SPDX-License-Identifier: Apache-2.0
"""Snapshots: rank 0 writes weights and solver state; what it reads back goes to all ranks."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import horovod.torch as hvd
from horovod.caffe.errors import CaffeError
from horovod.caffe.files import State, read_state, write_state
from horovod.caffe.log import Log
from horovod.caffe.net import Net
from horovod.caffe.rates import Progress, Rates
from horovod.caffe.replicas import Replicas
from horovod.caffe.updates import CaffeOptimizer
from horovod.core.wording import on_one_line

__all__ = ["Snapshots"]


class Snapshots:
    """Where a solver's snapshots are. `path`: the solver's file."""

    def __init__(self, proto: Any, path: str, replicas: Replicas, log: Log) -> None:
        self._replicas, self._log = replicas, log
        self._keeps_minimum = proto.lr_policy == "plateau"
        prefix = proto.snapshot_prefix or str(Path(path).with_suffix(""))
        if os.path.isdir(prefix):
            prefix = str(Path(prefix) / Path(path).stem)
        self.prefix = prefix
        self.suffix = ".h5" if proto.snapshot_format == proto.HDF5 else ""
        folder = os.path.dirname(prefix) or "."
        wanted = proto.snapshot or proto.snapshot_after_train
        if wanted and replicas.rank == 0 and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
            raise CaffeError(
                f"snapshot_prefix: the folder {folder!r} does not exist, or cannot be written to\n"
                "hint: make it, or choose another snapshot_prefix"
            )

    def take(self, iteration: int, net: Net, optimizer: CaffeOptimizer, rates: Rates) -> None:
        """Writes both files, on rank 0."""
        if self._replicas.rank != 0:
            return
        base = f"{self.prefix}_iter_{iteration}"
        weights, state = f"{base}.caffemodel{self.suffix}", f"{base}.solverstate{self.suffix}"
        kind = "HDF5 file" if self.suffix else "binary proto file"
        self._log.info(f"Snapshotting to {kind} {weights}")
        net.save(weights)
        self._log.info(f"Snapshotting solver state to {kind} {state}")
        history = [values.float().numpy() for values in optimizer.history]
        found = State(iteration, weights, history, rates.progress.current_step)
        if self._keeps_minimum:
            found.minimum_loss = min(rates.progress.minimum_loss, found.minimum_loss)
            found.iteration_of_last_event = rates.progress.iteration_of_last_event
        write_state(state, found)

    def restore(self, path: str, net: Net, optimizer: CaffeOptimizer, rates: Rates) -> int:
        """Goes on from a solver state and the weights that it names; returns the iteration. All ranks call it."""
        self._log.info(f"Restoring previous solver status from {on_one_line(path)}")
        numbers = None
        if self._replicas.rank == 0:
            state = read_state(path)
            if state.learned_net:
                net.load(state.learned_net)
            _take_history(state, optimizer.history, path)
            minimum = math.inf if state.minimum_loss >= State(0, "", []).minimum_loss else state.minimum_loss
            numbers = (state.iteration, state.current_step, minimum, state.iteration_of_last_event)
        if self._replicas.size > 1:
            numbers = hvd.broadcast_object(numbers, 0, "caffe.state")
            net.share_weights()
            self._replicas.share([(f"history.{index}", one) for index, one in enumerate(optimizer.history)])
        assert numbers is not None
        rates.progress = Progress(*numbers[1:])
        return int(numbers[0])


def _take_history(state: State, history: list[Tensor], path: str) -> None:
    if len(state.history) != len(history):
        raise CaffeError(
            f"{on_one_line(path)}: has {len(state.history)} history blobs, and this solver needs {len(history)}\n"
            "hint: the state is another solver's type or another net's"
        )
    for index, (target, values) in enumerate(zip(history, state.history, strict=True)):
        if target.numel() != values.size:
            raise CaffeError(
                f"{on_one_line(path)}: history {index} has shape {values.shape}, expected {list(target.shape)}"
            )
        target.copy_(torch.from_numpy(values.reshape(target.shape)))
