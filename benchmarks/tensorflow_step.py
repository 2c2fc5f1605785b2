#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What reducing 160 gradients adds to a training step of TensorFlow, in a tf.function with one thread:

    plain         the step without any communication
    horovod       its gradients through horovod.tensorflow's nodes, as the tape and the optimizers do it
    py_function   its gradients through tf.py_function, one each, which call horovod.core

    python benchmarks/tensorflow_step.py --json benchmarks/records/tensorflow-step-np1.json
    horovodrun -np 2 python benchmarks/tensorflow_step.py --json benchmarks/records/tensorflow-step-np2.json

One rank reduces, too. The sides take turns; a round's time is the median of its calls, the slowest rank's; what a
tensor costs is the median over the rounds of the difference to `plain`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from in_turns import measure

import horovod.tensorflow
from horovod import core
from horovod.bench.record import Session
from horovod.gradients.options import ReductionOptions
from horovod.tensorflow.gradient_list import TensorFlowGradients

TENSORS = 160
WIDTH = 32

Reduce = Callable[[Sequence[Any]], Sequence[Any]]


def make_step(weights: Sequence[tf.Variable], reduce: Reduce) -> Callable[[tf.Tensor], Any]:
    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(x @ weight * 0.1)
            loss = tf.reduce_sum(x)
        return tf.add_n([tf.reduce_sum(gradient) for gradient in reduce(tape.gradient(loss, weights))])

    return step


def through_py_function(gradients: Sequence[Any]) -> list[Any]:
    def one(index: int, gradient: Any) -> Any:
        def call(tensor: Any) -> Any:
            return core.allreduce(tensor.numpy(), name=f"py_function.{index}")

        reduced = tf.py_function(call, [gradient], gradient.dtype)
        reduced.set_shape(gradient.shape)
        return reduced

    return [one(index, gradient) for index, gradient in enumerate(gradients)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds (15)")
    parser.add_argument("--calls", type=int, default=20, help="steps of a side in a round (20)")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    arguments = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    session = Session(arguments.json, ("python", "benchmarks/tensorflow_step.py"))
    horovod.tensorflow.init()
    weights = [tf.Variable(np.eye(WIDTH, dtype=np.float32) * (1 + index / TENSORS)) for index in range(TENSORS)]
    x = tf.ones([4, WIDTH])
    steps = {
        "plain": make_step(weights, lambda gradients: gradients),
        "horovod": make_step(weights, TensorFlowGradients(ReductionOptions(), even_alone=True)),
        "py_function": make_step(weights, through_py_function),
    }
    results = {name: float(step(x)) for name, step in steps.items()}
    if len(set(results.values())) != 1:  # equal on all ranks, so is their average
        raise AssertionError(f"the sides have different gradients: {results}")
    session.begin("not a side of this measurement")
    sides = {name: lambda step=step: step(x).numpy() for name, step in steps.items()}
    seconds = measure(sides, arguments.rounds, arguments.calls)
    session.rows.append(
        {"tensors": TENSORS, "bytes": TENSORS * WIDTH * WIDTH * 4, "tensorflow": tf.__version__, "seconds": seconds}
    )
    session.print(f"{'side':>14} {'us a step':>10} {'us a tensor':>12}")
    for name, times in seconds.items():
        added = statistics.median(b - a for a, b in zip(seconds["plain"], times, strict=True)) / TENSORS
        session.print(f"{name:>14} {statistics.median(times) * 1e6:>10.0f} {added * 1e6:>12.2f}")
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
