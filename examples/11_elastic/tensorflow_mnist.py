# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on MNIST with a training loop of TensorFlow 2, whose workers come and go.

    horovodrun -np 2 --min-np 1 python examples/11_elastic/tensorflow_mnist.py

What makes the script elastic is marked with "Horovod:".
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
from common.arguments import elastic  # noqa: E402

LR = 0.001
BATCH = 64


def main() -> None:
    numbers = {"batches": (2000, "steps of all workers together"), "commit": (10, "steps between two commits")}
    arguments = elastic("MNIST with TensorFlow, elastic", **numbers)
    hvd.init()  # Horovod: a worker that joins is in no world yet, so nothing may be reduced or sent before train()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(42)
    digits = mnist.load_alone(arguments.data_dir)
    images, test_images = (one[..., None] / np.float32(255) for one in (digits.train_images, digits.test_images))
    dataset = tf.data.Dataset.from_tensor_slices((images, digits.train_labels.astype(np.int64)))
    dataset = dataset.repeat().shuffle(10000, seed=hvd.rank()).batch(BATCH)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPool2D(2),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPool2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(LR * hvd.size())
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        # Horovod: averages the gradients over the workers there are now
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def on_state_reset() -> None:
        """Horovod: there is another number of workers now."""
        optimizer.learning_rate.assign(LR * hvd.size())

    @hvd.elastic.run
    def train(state: Any) -> None:
        for images, labels in dataset:
            if state.images >= arguments.batches * BATCH:
                return
            loss = step(images, labels)
            state.batch += 1
            state.images += BATCH * hvd.size()
            if state.batch % 50 == 0 and hvd.rank() == 0:
                print(f"step {state.batch}: loss {float(loss):.4f}, workers: {hvd.size()}", flush=True)
            # Horovod: what is committed is not lost; the other steps only ask if the hosts have changed
            state.commit() if state.batch % arguments.commit == 0 else state.check_host_updates()

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, images=0)
    state.register_reset_callbacks([on_state_reset])
    train(state)
    mine = slice(hvd.rank(), None, hvd.size())
    right = np.sum(model.predict(test_images[mine], verbose=0).argmax(1) == digits.test_labels[mine])
    accuracy = float(hvd.allreduce(tf.constant(right, tf.float32), op=hvd.Sum)) / len(digits.test_labels)
    if hvd.rank() == 0:
        print(f"workers: {hvd.size()}, test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
