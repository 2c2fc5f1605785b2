# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network that tells cats from dogs on pictures of 64 x 64, with Keras, data-parallel. The
pictures are generated, in the form in which tensorflow_datasets would give those of its cats_vs_dogs.

    horovodrun -np 3 python examples/05_keras_cats_and_dogs/train.py

What makes the script distributed is marked with "Horovod:".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.layers import Conv2D, Dense, Flatten, MaxPooling2D
from tensorflow.keras.models import Sequential

import horovod.tensorflow.keras as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import pictures  # noqa: E402
from common.arguments import parser  # noqa: E402


def create_model(opt: Any) -> Any:
    model = Sequential(
        [
            Conv2D(32, (3, 3), input_shape=(64, 64, 3), activation="relu"),
            MaxPooling2D(pool_size=(2, 2)),
            Conv2D(32, (3, 3), activation="relu"),
            MaxPooling2D(pool_size=(2, 2)),
            Flatten(),
            Dense(units=128, activation="relu"),
            Dense(units=1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer=opt, loss="binary_crossentropy", metrics=["accuracy"])
    return model


def load(count: int, seed: int) -> Any:
    kinds = (tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(lambda: pictures.generated(count, seed), output_signature=kinds)


def resize(image: Any, label: Any) -> Any:
    image = tf.image.resize(image, [64, 64]) / 255.0
    return image, label


def main() -> None:
    numbers = {"epochs": (50, "epochs"), "steps": (50, "steps of a rank in an epoch"), "count": (4000, "pictures")}
    arguments = parser("Cats and dogs with Keras", ".", **numbers).parse_args()

    hvd.init()  # Horovod: find the other ranks
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks share the host's cores

    # Horovod: the learning rate goes with the number of ranks, and gradients are averaged over them
    opt = tf.optimizers.Adam(0.001 * hvd.size())
    opt = hvd.DistributedOptimizer(opt)

    # Horovod: each rank has pictures of its own
    dataset = load(arguments.count, seed=hvd.rank())

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # Horovod: all ranks start with what rank 0 has
    ]

    if hvd.rank() == 0:  # Horovod: only one rank writes
        callbacks.append(keras.callbacks.ModelCheckpoint(f"{arguments.checkpoint_dir}/checkpoint-{{epoch}}.h5"))

    batch_size = 32
    multi_worker_dataset = dataset.repeat().map(resize).shuffle(min(1024, arguments.count)).batch(batch_size)
    model = create_model(opt)

    history = model.fit(
        multi_worker_dataset,
        callbacks=callbacks,
        steps_per_epoch=arguments.steps,
        epochs=arguments.epochs,
        verbose=1 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, training accuracy {history.history['accuracy'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
