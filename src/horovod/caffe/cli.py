# SPDX-License-Identifier: Apache-2.0
"""The command `caffe`: train, test, time, device_query."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

import torch

from horovod.caffe.errors import CaffeError, nearest
from horovod.caffe.files import listed
from horovod.caffe.flags import Flags, guarded
from horovod.caffe.log import Log, number
from horovod.caffe.net import TEST, TRAIN, Net, read_net
from horovod.caffe.phases import NetState
from horovod.caffe.replicas import Replicas
from horovod.caffe.schema import message
from horovod.caffe.signals import STOP, Signals, effect
from horovod.caffe.solver import Solver, read_solver
from horovod.caffe.testing import own_share
from horovod.caffe.timing import time_net

__all__ = ["main"]

USAGE = """caffe <command> <flags>

commands:
  train           train or finetune a model
  test            score a model
  time            benchmark a model's layers
  device_query    show the devices that are there
"""


def _parser() -> Flags:
    parser = Flags(USAGE)
    parser.add_argument("commands", nargs="*", help=argparse.SUPPRESS)
    parser.flag("solver", "", "the prototxt of the solver (train)")
    parser.flag("model", "", "the prototxt of the net (test, time)")
    parser.flag("weights", "", "weights to start from, separated by commas; not with --snapshot")
    parser.flag("snapshot", "", "the solver state to go on from")
    parser.flag("gpu", "", "accepted; this version computes on the CPU")
    parser.flag("iterations", 50, "how many batches (test, time)")
    parser.flag("phase", "", "TRAIN or TEST (time)")
    parser.flag("level", 0, "the level of the net's state")
    parser.flag("stage", "", "the stages of the net's state, separated by commas")
    parser.flag("sigint_effect", "stop", "what SIGINT does: stop, snapshot or none")
    parser.flag("sighup_effect", "snapshot", "what SIGHUP does: stop, snapshot or none")
    parser.flag("forward_only", False, "without backward passes (time)")
    parser.flag("engine", "", "accepted: PyTorch computes")
    parser.flag("double", False, "compute in double precision, to compare runs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return guarded(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = _parser()
    flags = parser.read(arguments)
    if len(flags.commands) != 1:
        parser.print_help()
        return 0
    command = flags.commands[0]
    if command not in _COMMANDS:
        raise CaffeError(f"Unknown action: {command}; expected {', '.join(_COMMANDS)}{nearest(command, _COMMANDS)}")
    torch.set_default_dtype(torch.float64 if flags.double else torch.float32)
    return _COMMANDS[command](flags)


def _stages(flags: argparse.Namespace) -> list[str]:
    return [stage for stage in flags.stage.split(",") if stage]


def _warn_of_gpu(flags: argparse.Namespace, log: Log) -> None:
    if flags.gpu:
        log.warning(f"--gpu={flags.gpu}: this version computes on the CPU")


def train(flags: argparse.Namespace) -> int:
    """Trains as the solver says."""
    if not flags.solver:
        raise CaffeError("Need a solver definition to train.")
    if flags.snapshot and flags.weights:
        raise CaffeError("Give a snapshot to resume training or weights to finetune but not both.")
    effects = effect(flags.sigint_effect), effect(flags.sighup_effect)
    proto, origin = read_solver(flags.solver)
    proto.train_state.level = flags.level
    proto.train_state.stage.extend(_stages(flags))
    replicas = Replicas.of_this_job()
    log = Log(replicas.rank == 0)
    _warn_of_gpu(flags, log)
    if flags.gpu:
        proto.solver_mode = proto.CPU  # said already, in the words of the command line
    if flags.weights or flags.snapshot:
        proto.ClearField("weights")
        proto.weights.extend(listed(flags.weights))
    with Signals(*effects, replicas) as signals:
        solver = Solver(proto, origin, replicas=replicas, log=log)
        try:
            log.info(f"{replicas.size} rank(s) train together")
            log.info("Starting Optimization")
            solver.solve(flags.snapshot or None, signals)
        finally:
            solver.close()
    return 0


def test(flags: argparse.Namespace) -> int:
    """Prints the outputs of each batch, and their means."""
    if not flags.model:
        raise CaffeError("Need a model definition to score.")
    if not flags.weights:
        raise CaffeError("Need model weights to score.")
    replicas = Replicas.of_this_job()
    log = Log(replicas.rank == 0)
    _warn_of_gpu(flags, log)
    log.info("Use CPU.")
    net = _net(flags, TEST, replicas)
    try:
        for path in listed(flags.weights):
            net.load(path)
        log.info(f"Running for {flags.iterations} iterations.")
        with Signals(STOP, STOP, replicas) as signals:
            _score(net, flags.iterations, replicas, log, signals)
    finally:
        net.close()
    return 0


def _net(flags: argparse.Namespace, phase: int, replicas: Replicas) -> Net:
    proto, origin = read_net(flags.model)
    wanted = message("NetState")(level=flags.level, stage=_stages(flags))
    return Net(proto, NetState.of(proto.state, wanted, phase=phase), origin=origin, replicas=replicas)


def _score(net: Net, iterations: int, replicas: Replicas, log: Log, signals: Signals) -> None:
    count = sum(map(net.count, net.outputs))
    total = torch.zeros(count + 2, dtype=torch.float64)  # the loss and the number of batches stand behind the outputs
    own = own_share(iterations, replicas)
    for index in range(-(-iterations // replicas.size)):
        if index < own:
            with torch.no_grad():
                net.forward()
            values = torch.cat([net.blobs[name].double().reshape(-1) for name in net.outputs])
            for name, value in zip(_value_names(net), values.tolist(), strict=True):
                log.info(f"Batch {index}, {name} = {number(value)}")
            total += torch.cat([values, values.new_tensor([float(net.loss()), 1.0])])
        if signals.agreed() == STOP:
            break
    total = replicas.total(total, "caffe.test")
    means = (total[:-1] / total[-1]).tolist()
    log.info(f"Loss: {number(means[-1])}")
    for name, value in zip(_value_names(net), means, strict=False):
        weight = net.loss_weight(name)
        note = f" (* {number(weight)} = {number(weight * value)} loss)" if weight else ""
        log.info(f"{name} = {number(value)}{note}")


def _value_names(net: Net) -> list[str]:
    return [name for name in net.outputs for _ in range(net.count(name))]


def time_command(flags: argparse.Namespace) -> int:
    """Prints how long each layer takes."""
    if not flags.model:
        raise CaffeError("Need a model definition to time.")
    phases = {"": TRAIN, "TRAIN": TRAIN, "TEST": TEST}
    if flags.phase not in phases:
        raise CaffeError(f'phase must be "TRAIN" or "TEST", got {flags.phase!r}')
    if flags.iterations < 1:
        raise CaffeError("iterations must be at least 1")
    log = Log()
    _warn_of_gpu(flags, log)
    log.info("Use CPU.")
    net = _net(flags, phases[flags.phase], Replicas())
    try:
        for path in listed(flags.weights):
            net.load(path)
        time_net(net, flags.iterations, log, backward=not flags.forward_only)
    finally:
        net.close()
    return 0


def device_query(flags: argparse.Namespace) -> int:
    """Prints what computes."""
    log = Log()
    _warn_of_gpu(flags, log)
    log.info(f"Device: CPU with {len(os.sched_getaffinity(0))} core(s) for this process")
    log.info(f"Threads: {torch.get_num_threads()}")
    log.info(f"Engine: PyTorch {torch.__version__}")
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": train,
    "test": test,
    "time": time_command,
    "device_query": device_query,
}


if __name__ == "__main__":
    raise SystemExit(main())
