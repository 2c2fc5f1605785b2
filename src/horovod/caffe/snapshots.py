# SPDX-License-Identifier: Apache-2.0
"""Snapshots: rank 0 writes weights and solver state; what it reads back goes to all ranks."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import horovod.torch as hvd
from horovod.caffe.errors import CaffeError
from horovod.caffe.files import State, read_state, write_state
from horovod.caffe.rates import Progress

if TYPE_CHECKING:
    from horovod.caffe.solver import Solver

__all__ = ["Snapshots"]


class Snapshots:
    """The snapshots of one solver."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        proto, path = solver.proto, Path(solver.origin.path)
        prefix = proto.snapshot_prefix or str(path.with_suffix(""))
        if os.path.isdir(prefix):
            prefix = str(Path(prefix) / path.stem)
        self.prefix = prefix
        self.suffix = ".h5" if proto.snapshot_format == proto.HDF5 else ""
        folder = os.path.dirname(prefix) or "."
        wanted = proto.snapshot or proto.snapshot_after_train
        if wanted and solver.replicas.rank == 0 and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
            raise CaffeError(
                f"snapshot_prefix: the folder {folder!r} does not exist, or cannot be written to\n"
                "hint: make it, or choose another snapshot_prefix"
            )

    def take(self) -> None:
        """Writes both files."""
        solver = self._solver
        if solver.replicas.rank != 0:
            return
        base = f"{self.prefix}_iter_{solver.iteration}"
        weights, state = f"{base}.caffemodel{self.suffix}", f"{base}.solverstate{self.suffix}"
        kind = "HDF5 file" if self.suffix else "binary proto file"
        solver.log.info(f"Snapshotting to {kind} {weights}")
        solver.net.save(weights)
        solver.log.info(f"Snapshotting solver state to {kind} {state}")
        progress = solver.rates.progress
        history = [values.numpy() for values in solver.optimizer.history]
        found = State(solver.iteration, weights, history, progress.current_step)
        if solver.rates.follows_loss:
            found.minimum_loss = min(progress.minimum_loss, found.minimum_loss)
            found.iteration_of_last_event = progress.iteration_of_last_event
        write_state(state, found)

    def restore(self, path: str) -> None:
        """Goes on from a solver state and the weights that it names."""
        solver = self._solver
        solver.log.info(f"Restoring previous solver status from {path}")
        numbers = None
        if solver.replicas.rank == 0:
            state = read_state(path)
            if state.learned_net:
                solver.net.load(state.learned_net)
            self._take_history(state, path)
            minimum = math.inf if state.minimum_loss >= State(0, "", []).minimum_loss else state.minimum_loss
            numbers = (state.iteration, state.current_step, minimum, state.iteration_of_last_event)
        if solver.replicas.size > 1:
            numbers = hvd.broadcast_object(numbers, 0, "caffe.state")
            solver.share_weights()
            history = solver.optimizer.history
            solver.replicas.share([(f"history.{index}", one) for index, one in enumerate(history)])
        assert numbers is not None
        solver.iteration = numbers[0]
        solver.rates.progress = Progress(*numbers[1:])

    def _take_history(self, state: State, path: str) -> None:
        history = self._solver.optimizer.history
        if len(state.history) != len(history):
            raise CaffeError(
                f"{path}: has {len(state.history)} history blobs, and this solver needs {len(history)}\n"
                "hint: the state is another solver's type or another net's"
            )
        for index, (target, values) in enumerate(zip(history, state.history, strict=True)):
            if target.numel() != values.size:
                raise CaffeError(f"{path}: history {index} has shape {values.shape}, expected {list(target.shape)}")
            target.copy_(torch.from_numpy(values.reshape(target.shape)))
