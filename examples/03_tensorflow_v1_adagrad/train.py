# SPDX-License-Identifier: Apache-2.0
"""A dense network on MNIST with Adagrad in a graph of TensorFlow 1: the four steps that make it data-parallel.

    horovodrun -np 2 python examples/03_tensorflow_v1_adagrad/train.py

The shortest whole script of its kind; examples/02_tensorflow_v1_mnist has more around it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402
from common.arguments import parser  # noqa: E402


def batches(digits: mnist.Digits) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(hvd.rank())  # each rank draws its own pictures
    while True:
        chosen = generator.integers(len(digits.train_images), size=64)
        yield digits.train_images[chosen].reshape(-1, 784) / np.float32(255), digits.train_labels[chosen]


def main() -> None:
    arguments = parser("Adagrad in a graph of TensorFlow 1", "./train_logs", steps=(1000, "steps")).parse_args()
    tf.disable_v2_behavior()

    # 1/4. Initialize Horovod
    hvd.init()

    # 2/4. GPU assignment
    # Pin GPU to be used to process local rank (one GPU per process); without GPUs this does nothing
    config = tf.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Build model
    digits = mnist.load(arguments.data_dir)
    rows = tf.data.Dataset.from_generator(
        lambda: batches(digits), output_types=(tf.float32, tf.int64), output_shapes=([None, 784], [None])
    )
    image, label = tf.data.make_one_shot_iterator(rows).get_next()
    hidden = tf.nn.relu(image @ tf.get_variable("w1", [784, 128]) + tf.get_variable("b1", [128]))
    logits = hidden @ tf.get_variable("w2", [128, 10]) + tf.get_variable("b2", [10])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
    global_step = tf.train.get_or_create_global_step()

    # 3/4. Averaging
    # The optimizer is wrapped: gradients are averaged over the ranks before they are applied
    opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    train_op = opt.minimize(loss, global_step=global_step)

    # 4/4. Broadcasting
    # Rank 0's variables go to all other processes during initialization. Without a MonitoredTrainingSession:
    # session.run(hvd.broadcast_global_variables(0))
    hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=arguments.steps)]

    # One rank writes checkpoints; all of them would overwrite each other's
    checkpoint_dir = str(arguments.checkpoint_dir) if hvd.rank() == 0 else None
    # The MonitoredTrainingSession takes care of session initialization, restoring from a checkpoint, saving to a
    # checkpoint, and closing when done or an error occurs.
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
        while not mon_sess.should_stop():
            # Perform synchronous training
            _, last_loss, step = mon_sess.run([train_op, loss, global_step])
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, step {step}, loss {last_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
