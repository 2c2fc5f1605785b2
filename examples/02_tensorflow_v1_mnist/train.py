# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST in a graph of TensorFlow 1: a session loop with hooks, data-parallel.

    horovodrun -np 2 python examples/02_tensorflow_v1_mnist/train.py

What makes the script distributed is marked with "Horovod:". docs/migration.md says which lines of a script for
TensorFlow 1 had to change, and why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402
from common.arguments import parser  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a job script sets it


def layer(inputs: Any, name: str, shape: list[int]) -> Any:
    """A convolution with pooling where `shape` has four numbers, else a dense layer."""
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", shape, initializer=tf.truncated_normal_initializer(stddev=0.1))
        biases = tf.get_variable("biases", shape[-1:], initializer=tf.constant_initializer(0.1))
        if len(shape) == 2:
            return tf.matmul(inputs, weights) + biases
        convolved = tf.nn.relu(tf.nn.conv2d(inputs, weights, strides=1, padding="SAME") + biases)
        return tf.nn.max_pool(convolved, ksize=2, strides=2, padding="SAME")


def lenet(images: Any) -> Any:
    features = layer(layer(images, "conv1", [5, 5, 1, 6]), "conv2", [5, 5, 6, 16])
    hidden = tf.nn.relu(layer(tf.reshape(features, [-1, 7 * 7 * 16]), "dense1", [7 * 7 * 16, 120]))
    return layer(tf.nn.relu(layer(hidden, "dense2", [120, 84])), "dense3", [84, 10])


def batches(images: np.ndarray, labels: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(hvd.rank())  # Horovod: each rank draws its own pictures
    while True:
        chosen = generator.integers(len(images), size=size)
        yield images[chosen], labels[chosen]


class Test(tf.train.SessionRunHook):
    """Says at the end how many of the test images are recognized."""

    def __init__(self, accuracy: Any, global_step: Any, feed: dict[Any, np.ndarray]) -> None:
        self.results = [accuracy, global_step]
        self.feed = feed

    def end(self, session: Any) -> None:
        accuracy, step = session.run(self.results, self.feed)
        print(f"ranks: {hvd.size()}, step {step}, test accuracy {accuracy:.4f}", flush=True)


def main() -> None:
    numbers = {"steps": (20000, "steps of all ranks together"), "batch_size": (100, "images per rank and step")}
    arguments = parser("LeNet-5 in a graph of TensorFlow 1", "./checkpoints", **numbers).parse_args()
    tf.disable_v2_behavior()
    hvd.init()  # Horovod: find the other ranks

    digits = mnist.load(arguments.data_dir)
    x_train = digits.train_images[..., np.newaxis].astype(np.float32) / 255
    x_test = digits.test_images[..., np.newaxis].astype(np.float32) / 255
    y_train, y_test = digits.train_labels.astype(np.int64), digits.test_labels.astype(np.int64)

    image = tf.placeholder(tf.float32, [None, 28, 28, 1])
    label = tf.placeholder(tf.int64, [None])
    predicted = lenet(image)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=predicted))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(predicted, 1), label), tf.float32))

    # Horovod: a larger batch over all ranks takes a larger learning rate
    opt = tf.train.AdamOptimizer(0.001 * hvd.size())
    # Horovod: gradients are averaged over the ranks
    opt = hvd.DistributedOptimizer(opt)
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)

    last_step = arguments.steps // hvd.size()  # Horovod: the ranks share the steps
    hooks = [
        # Horovod: all ranks start with what rank 0 has, be it random or from a checkpoint
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=last_step),
    ]
    if hvd.rank() == 0:  # Horovod: one rank talks for all
        tf.logging.set_verbosity(tf.logging.INFO)
        hooks.append(tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=100))
        hooks.append(Test(accuracy, global_step, {image: x_test, label: y_test}))

    config = tf.ConfigProto()
    config.intra_op_parallelism_threads = int(os.environ["OMP_NUM_THREADS"])
    config.inter_op_parallelism_threads = 2
    # Horovod: each rank takes the GPU of its place on the host; where there is none, this does nothing
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Horovod: only one rank writes
    checkpoint_dir = str(arguments.checkpoint_dir) if hvd.rank() == 0 else None
    feed = batches(x_train, y_train, arguments.batch_size)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as mon_sess:
        while not mon_sess.should_stop():
            images, labels = next(feed)
            mon_sess.run(train_op, feed_dict={image: images, label: labels})


if __name__ == "__main__":
    main()
