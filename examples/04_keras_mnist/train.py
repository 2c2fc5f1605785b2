# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on MNIST with Keras, data-parallel.

    horovodrun -np 2 python examples/04_keras_mnist/train.py

What makes the script distributed is marked with "Horovod:".
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras

import horovod.tensorflow.keras as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import mnist  # noqa: E402
from common.arguments import parser  # noqa: E402


def main() -> None:
    numbers = {"epochs": (24, "epochs"), "steps": (500, "steps of all ranks together in an epoch")}
    arguments = parser("A Keras CNN on MNIST", ".", **numbers).parse_args()

    # Horovod: initialize Horovod
    hvd.init()

    # Horovod: pin GPU to be used to process local rank (one GPU per process); there may be none
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks share the host's cores

    digits = mnist.load(arguments.data_dir)
    x_train, x_test = digits.train_images / np.float32(255.0), digits.test_images / np.float32(255.0)
    x_train, x_test = np.expand_dims(x_train, axis=3), np.expand_dims(x_test, axis=3)
    y_train, y_test = digits.train_labels, digits.test_labels
    # Horovod: each rank shuffles in its own way
    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).repeat().shuffle(10000, seed=hvd.rank()).batch(32)

    model = keras.models.Sequential(
        [
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", input_shape=(28, 28, 1)),
            keras.layers.MaxPool2D(2),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPool2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )

    # Horovod: a larger batch over all ranks takes a larger learning rate
    opt = tf.optimizers.Adam(0.001 * hvd.size())

    # Horovod: add Horovod DistributedOptimizer
    opt = hvd.DistributedOptimizer(opt)

    # Horovod: old scripts specify `experimental_run_tf_function=False`; it is accepted, and changes nothing
    model.compile(
        loss=tf.losses.SparseCategoricalCrossentropy(),
        optimizer=opt,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )

    callbacks = [
        # Horovod: broadcast initial variable states from rank 0 to all other processes. This is necessary to ensure
        # consistent initialization of all workers when training is started with random weights or restored from a
        # checkpoint.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    ]

    # Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(f"{arguments.checkpoint_dir}/checkpoint-{{epoch}}.h5"))

    model.fit(
        dataset,
        steps_per_epoch=arguments.steps // hvd.size(),
        callbacks=callbacks,
        epochs=arguments.epochs,
        verbose=1 if hvd.rank() == 0 else 0,
    )

    # Horovod: each rank tests its share of the pictures, and all learn the average
    mine = slice(hvd.rank(), None, hvd.size())
    loss, accuracy = hvd.allreduce(np.array(model.evaluate(x_test[mine], y_test[mine], verbose=0)), name="test")
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, test loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
