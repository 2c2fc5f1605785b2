# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own with TensorFlow 2, and validation that the ranks share, data-parallel.

    horovodrun -np 2 python examples/06_tensorflow_validation/train.py

What makes the script distributed is marked with "Horovod:".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402
from common.arguments import parser  # noqa: E402


def dataset(images: np.ndarray, labels: np.ndarray) -> Any:
    return tf.data.Dataset.from_tensor_slices((images[..., np.newaxis] / np.float32(255), labels))


def main() -> None:
    numbers = {"epochs": (3, "epochs"), "batch_size": (64, "images per rank and step"), "images": (60000, "of MNIST")}
    arguments = parser("A training loop of one's own", "./checkpoints", **numbers).parse_args()

    hvd.init()  # Horovod: find the other ranks
    # Horovod: pin GPU to be used to process local rank (one GPU per process); there may be none
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks share the host's cores

    digits = mnist.load(arguments.data_dir)
    # Horovod: each rank has its share of the images. Every step needs all ranks: shares of one size, whole batches
    count = arguments.images // hvd.size() * hvd.size()
    train_dataset = dataset(digits.train_images[:count], digits.train_labels[:count])
    train_loader = train_dataset.shard(hvd.size(), hvd.rank()).shuffle(10000)
    train_loader = train_loader.batch(arguments.batch_size, drop_remainder=True).prefetch(2)
    # Horovod: define distributed sharding for validation
    val_dataset = dataset(digits.test_images, digits.test_labels)
    val_dataset = val_dataset.shard(hvd.size(), hvd.rank())
    val_loader = val_dataset.batch(1000).prefetch(buffer_size=5)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    loss = tf.losses.SparseCategoricalCrossentropy()  # Define loss function
    opt = tf.optimizers.Adam(0.001 * hvd.size())  # Horovod: scaled by the number of ranks
    val_loss = tf.keras.metrics.Mean()  # Define Keras metrics
    val_accuracy = tf.keras.metrics.Mean()

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # Horovod: gradients are averaged over the ranks
        gradients = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss_value

    @tf.function  # Define validation step function
    def eval_step(images: Any, labels: Any) -> None:
        logits_ = model(images, training=False)  # evaluate model - switch into validation mode
        loss_value = loss(labels, logits_)  # compute loss
        correct = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits_, 1), tf.cast(labels, tf.int64)), tf.float32))
        val_loss.update_state(loss_value, sample_weight=tf.shape(images)[0])  # cumulate weighted mean per rank
        val_accuracy.update_state(correct, sample_weight=tf.shape(images)[0])

    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)
    for epoch in range(arguments.epochs):
        for step, (images, labels) in enumerate(train_loader):
            train_step(images, labels)
            if epoch == 0 and step == 0:
                # Horovod: all ranks go on with what rank 0 has; now all variables exist
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(opt.variables, root_rank=0)
        val_loss.reset_state()  # initialize val_loss value
        val_accuracy.reset_state()
        for val_images, val_labels in val_loader:
            eval_step(val_images, val_labels)  # Call eval_step function
        # Horovod: average weighted means and give the value to each rank
        val_loss_dist = hvd.allreduce(val_loss.result())
        val_accuracy_dist = hvd.allreduce(val_accuracy.result())
        if hvd.rank() == 0:  # Horovod: one rank talks and writes for all
            text = f"validation loss {val_loss_dist:.4f}, accuracy {val_accuracy_dist:.4f}"
            print(f"epoch {epoch + 1}: {text}", flush=True)
            checkpoint.save(str(arguments.checkpoint_dir / "model"))


if __name__ == "__main__":
    main()
