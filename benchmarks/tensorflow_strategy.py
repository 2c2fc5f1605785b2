#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A compiled training step of TensorFlow with 60 gradients, on the CPU, beside TensorFlow's own data parallelism:

    alone      the step without any communication
    horovod    its gradients through hvd.DistributedGradientTape
    strategy   tf.distribute.MultiWorkerMirroredStrategy, whose replicas reduce the list of gradients in one call

    horovodrun -np 2 python benchmarks/tensorflow_strategy.py --json benchmarks/records/tensorflow-strategy-np2.json

The sides take turns; a round's time is the median of its calls, the slowest rank's. The last column is the median over
the rounds of the time through horovod's.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from in_turns import measure, parser_of

import horovod.tensorflow as hvd
from horovod.bench.record import Session

RATE = 0.01


def make_step(weights: list[Any], x: Any, tape_of: Callable[[Any], Any]) -> Callable[[], Any]:
    def step() -> Any:
        with tape_of(tf.GradientTape()) as tape:
            state = x
            for weight in weights:
                state = tf.tanh(state @ weight)
            loss = tf.reduce_mean(state**2)
        gradients = tape.gradient(loss, weights)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.strategy.num_replicas_in_sync > 1:
            gradients = replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(RATE * gradient)
        return loss

    return step


def join_strategy() -> Any:
    """MultiWorkerMirroredStrategy over the ranks: each has a server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ports = hvd.allgather_object(probe.getsockname()[1])
    workers = [f"127.0.0.1:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": hvd.rank()}}
    )
    return tf.distribute.MultiWorkerMirroredStrategy()


def main() -> int:
    arguments = parser_of(__doc__, calls=10, tensors=60, width=128).parse_args()
    session = Session(arguments.json, ("python", "benchmarks/tensorflow_strategy.py"))
    hvd.init()
    strategy = join_strategy()

    random = np.random.default_rng(1)
    shape = (arguments.tensors, arguments.width, arguments.width)
    start = (random.standard_normal(shape) / arguments.width**0.5).astype(np.float32)
    batch = tf.constant(np.random.default_rng(hvd.rank()).standard_normal((32, arguments.width)), tf.float32)
    weights = {name: [tf.Variable(one) for one in start] for name in ("alone", "horovod")}
    with strategy.scope():
        weights["strategy"] = [tf.Variable(one) for one in start]
    in_strategy = make_step(weights["strategy"], batch, lambda tape: tape)
    steps = {
        "alone": tf.function(make_step(weights["alone"], batch, lambda tape: tape)),
        "horovod": tf.function(make_step(weights["horovod"], batch, hvd.DistributedGradientTape)),
        "strategy": tf.function(lambda: strategy.run(in_strategy)),
    }
    sides = {name: lambda step=step: step().numpy() for name, step in steps.items()}
    for name in ("horovod", "strategy"):
        sides[name]()
    for ours, theirs in zip(weights["horovod"], weights["strategy"], strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
    session.begin("not a side of this measurement")
    seconds = measure(sides, arguments.rounds, arguments.calls)
    session.rows.append(
        {"tensors": len(start), "bytes": start.nbytes, "tensorflow": tf.__version__, "seconds": seconds}
    )
    session.print(f"{'side':>10} {'ms a step':>10} {'through horovod':>16}")
    for name, times in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(seconds["horovod"], times, strict=True))
        session.print(f"{name:>10} {statistics.median(times) * 1e3:>10.2f} {ratio:>16.2f}")
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
