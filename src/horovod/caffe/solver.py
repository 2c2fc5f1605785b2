# SPDX-License-Identifier: Apache-2.0
"""The training loop. Gradients are reduced layer by layer during backward, by horovod.torch.DistributedOptimizer."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from typing import Any

import torch

import horovod.torch as hvd
from horovod.caffe.errors import CaffeError
from horovod.caffe.files import listed
from horovod.caffe.log import Log, number
from horovod.caffe.net import TRAIN, Net
from horovod.caffe.phases import NetState
from horovod.caffe.prototxt import Origin, read_text
from horovod.caffe.rates import Rates
from horovod.caffe.replicas import Replicas
from horovod.caffe.signals import SNAPSHOT, STOP, Signals
from horovod.caffe.snapshots import Snapshots
from horovod.caffe.solver_nets import net_sources
from horovod.caffe.testing import common_statistics, log_outputs, mean_outputs
from horovod.caffe.updates import CaffeOptimizer
from horovod.caffe.upgrade import upgrade_solver
from horovod.core.wording import on_one_line

__all__ = ["Solver", "read_solver"]


def read_solver(path: str) -> tuple[Any, Origin]:
    """A prototxt of a solver, in today's form. Raises CaffeError."""
    proto, origin = read_text(path, "SolverParameter")
    try:
        upgrade_solver(proto)
    except CaffeError as error:
        raise origin.error(str(error)) from error
    return proto, origin


class Solver:
    """Trains a net as a SolverParameter says, together with the other ranks of the job.

    `solver`: the message, or the path of a prototxt. All ranks make and use it alike. Raises CaffeError.
    """

    def __init__(
        self, solver: Any, origin: Origin | None = None, *, replicas: Replicas | None = None, log: Log | None = None
    ) -> None:
        if isinstance(solver, str):
            solver, origin = read_solver(solver)
        self.proto, self.origin = solver, origin or Origin("solver")
        self.replicas = replicas or Replicas.of_this_job()
        self.log = log or Log(self.replicas.rank == 0)
        try:
            self._make()
        except CaffeError as error:
            raise error if error.located else self.origin.error(str(error)) from error
        self._load_weights()

    def _load_weights(self) -> None:
        """Those of the solver's `weights`. Rank 0 reads; the others get its values."""
        for path in itertools.chain(*map(listed, self.proto.weights)) if self.replicas.rank == 0 else ():
            self.log.info(f"Finetuning from {on_one_line(path)}")
            for name in self.net.load(path):
                self.log.info(f"Ignoring source layer {name}")
        self.net.share_weights()

    def _make(self) -> None:
        proto = self.proto
        for name in ("max_iter", "base_lr"):
            if not proto.HasField(name) and not (name == "base_lr" and proto.stagelr):
                raise CaffeError(f"{name} is missing")
        for name in ("iter_size", "average_loss"):
            if getattr(proto, name) < 1:
                raise CaffeError(f"{name} must be at least 1, got {getattr(proto, name)}")
        self.iteration = 0
        self.rates = Rates(proto)
        train, tests = net_sources(proto)
        self.snapshots = Snapshots(proto, self.origin.path, self.replicas, self.log)
        if proto.solver_mode == proto.GPU:
            self.log.warning("solver_mode is GPU: this version computes on the CPU")
        self._seed()
        self.net = self._net(train, NetState.of(train.proto.state, proto.train_state, phase=TRAIN), None)
        states = [NetState.of(one.proto.state, *one.states, phase=1) for one in tests]
        self.test_nets = [self._net(one, state, self.net) for one, state in zip(tests, states, strict=True)]
        self.optimizer = CaffeOptimizer(self.net.parameters, proto)
        named = [(one.name, one.tensor) for one in self.net.parameters if one.tensor.requires_grad]
        self.reducing = hvd.DistributedOptimizer(
            self.optimizer, named, backward_passes_per_step=proto.iter_size, op=hvd.Sum
        )
        self.losses: deque[float] = deque(maxlen=proto.average_loss)

    def _seed(self) -> None:
        """The weights' start values are equal on all ranks; what is dropped in training is not."""
        wanted = self.proto.random_seed if self.proto.random_seed >= 0 else random.getrandbits(31)
        self.seed = int(hvd.broadcast_object(wanted, 0, "caffe.seed")) if self.replicas.size > 1 else int(wanted)
        torch.manual_seed(self.seed + self.replicas.rank)

    def _net(self, source: Any, state: NetState, share: Net | None) -> Net:
        return Net(source.proto, state, origin=source.origin, replicas=self.replicas, seed=self.seed, share=share)

    def solve(self, resume_from: str | None = None, signals: Signals | None = None) -> bool:
        """Trains up to max_iter. Returns whether it got there: a signal may have stopped it."""
        self.log.info(f"Solving {self.net.proto.name}")
        self.log.info(f"Learning Rate Policy: {self.proto.lr_policy}")
        if resume_from:
            self.iteration = self.snapshots.restore(resume_from, self.net, self.optimizer, self.rates)
        stopped = self.step(self.proto.max_iter - self.iteration, signals)
        due = self.proto.snapshot and self.iteration % self.proto.snapshot == 0
        if self.proto.snapshot_after_train and not due:
            self.snapshots.take(self.iteration, self.net, self.optimizer, self.rates)
        if stopped:
            self.log.info("Optimization stopped early.")
            return False
        if self.proto.display and self.iteration % self.proto.display == 0:
            with torch.no_grad():
                self.net.forward()
            self.losses.append(float(self.net.objective()))
            self.log.info(f"Iteration {self.iteration}, loss = {number(self.smoothed_loss())}")
        if self.proto.test_interval and self.iteration % self.proto.test_interval == 0:
            self.test()
        self.log.info("Optimization Done.")
        return True

    def step(self, iterations: int, signals: Signals | None = None) -> bool:
        """Trains that many iterations. Returns whether a signal has stopped it."""
        self.losses.clear()
        proto, end = self.proto, self.iteration + iterations
        clock, last = time.monotonic(), self.iteration
        while self.iteration < end:
            self.reducing.zero_grad()
            if self._test_is_due() and (self.iteration > 0 or proto.test_initialization):
                self.test()
            self.losses.append(self._passes())
            display = bool(proto.display) and self.iteration % proto.display == 0
            loss = self.smoothed_loss() if display or self.rates.follows_loss else 0.0
            if display:
                now = time.monotonic()
                speed = (self.iteration - last) / (now - clock or 1)
                timing = f"({number(speed)} iter/s, {number(now - clock)}s/{proto.display} iters)"
                self.log.info(f"Iteration {self.iteration} {timing}, loss = {number(loss)}")
                clock, last = now, self.iteration
                self._log_outputs()
            self._update(loss, display)
            self.iteration += 1
            wanted = signals.agreed() if signals else 0
            if wanted == SNAPSHOT or (proto.snapshot and self.iteration % proto.snapshot == 0):
                self.snapshots.take(self.iteration, self.net, self.optimizer, self.rates)
            if wanted == STOP:
                return True
        return False

    def test(self) -> None:
        """Tests all test nets with the weights as they are. All ranks call it."""
        with common_statistics(self.net, self.replicas):
            for index, net in enumerate(self.test_nets):
                self.log.info(f"Iteration {self.iteration}, Testing net (#{index})")
                means, loss = mean_outputs(net, self.proto.test_iter[index], self.replicas)
                if self.proto.test_compute_loss:
                    self.log.info(f"Test loss: {number(loss)}")
                log_outputs(self.log, net, means, "Test")

    def close(self) -> None:
        """Ends the data layers' threads."""
        for net in (self.net, *self.test_nets):
            net.close()

    def _test_is_due(self) -> bool:
        return bool(self.proto.test_interval) and self.iteration % self.proto.test_interval == 0

    def _passes(self) -> float:
        """iter_size forward and backward passes; this rank's share of their mean loss."""
        total = 0.0
        for _ in range(self.proto.iter_size):
            self.net.forward()
            objective = self.net.objective()
            objective.backward()
            total += float(objective.detach())
        return float(total / self.proto.iter_size)

    def smoothed_loss(self) -> float:
        """The mean of the last average_loss losses, over all ranks. All ranks call it."""
        mean = torch.tensor([sum(self.losses) / len(self.losses)], dtype=torch.float64)
        return float(self.replicas.total(mean, "caffe.loss")[0])

    def _update(self, loss: float, display: bool) -> None:
        optimizer = self.reducing
        optimizer.rate = rate = self.rates.rate(self.iteration, loss)
        factor = self.rates.momentum_factor(self.iteration) if self.proto.type == "SGD" else 1.0
        optimizer.momentum, optimizer.iteration = self.proto.momentum * factor, self.iteration
        if display:
            self.log.info(f"Iteration {self.iteration}, lr = {number(rate)}")
        optimizer.step()

    def _log_outputs(self) -> None:
        net = self.net
        values = [net.blobs[name].detach().double().reshape(-1) * net.times(name) for name in net.outputs]
        if values:
            log_outputs(self.log, net, self.replicas.mean(torch.cat(values), "caffe.outputs"), "Train")
