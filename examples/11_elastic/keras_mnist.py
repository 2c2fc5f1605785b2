# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on MNIST with Keras, whose workers come and go.

    horovodrun -np 2 --min-np 1 python examples/11_elastic/keras_mnist.py

What makes the script elastic is marked with "Horovod:".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

import horovod.tensorflow.keras as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402
from common.arguments import elastic  # noqa: E402

LR = 0.001


def main() -> None:
    numbers = {"epochs": (4, "epochs"), "steps": (500, "steps of all workers together in an epoch")}
    arguments = elastic("MNIST with Keras, elastic", **numbers)
    hvd.init()  # Horovod: a worker that joins is in no world yet, so nothing may be reduced or sent before train()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(42)
    digits = mnist.load_alone(arguments.data_dir)
    images, test_images = (one[..., None] / np.float32(255) for one in (digits.train_images, digits.test_images))
    dataset = tf.data.Dataset.from_tensor_slices((images, digits.train_labels)).repeat()
    dataset = dataset.shuffle(10000, seed=hvd.rank()).batch(64)

    model = keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, activation="relu", input_shape=(28, 28, 1)),
            keras.layers.MaxPool2D(2),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPool2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    # Horovod: a larger batch over all workers takes a larger learning rate; averages the gradients over the workers
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(LR * hvd.size()))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss_of, metrics=["accuracy"])

    def on_state_reset() -> None:
        """Horovod: there is another number of workers now."""
        model.optimizer.learning_rate.assign(LR * hvd.size())

    # Horovod: the model and its optimizer, and where training is
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    state.register_reset_callbacks([on_state_reset])

    @hvd.elastic.run
    def train(state: Any) -> None:
        callbacks = [
            hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        model.fit(
            dataset,
            steps_per_epoch=arguments.steps // hvd.size(),
            epochs=arguments.epochs - state.epoch,
            callbacks=callbacks,
            verbose=2 if hvd.rank() == 0 else 0,
        )

    train(state)
    mine = slice(hvd.rank(), None, hvd.size())
    right = np.sum(model.predict(test_images[mine], verbose=0).argmax(1) == digits.test_labels[mine])
    accuracy = float(hvd.allreduce(np.array(right, np.float32), name="right", op=hvd.Sum)) / len(digits.test_labels)
    if hvd.rank() == 0:
        print(f"workers: {hvd.size()}, test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
