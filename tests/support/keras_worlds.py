# SPDX-License-Identifier: Apache-2.0
"""Ranks with Keras on one of its backends, and what they train on."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.frameworks import TENSORFLOW_ENV, init_of
from support.world import World, WorldPool

BACKENDS = ["tensorflow", "torch", "jax"]


class Either(NamedTuple):
    """A world with Keras 3 or, if `legacy`, with tf-keras."""

    world: World
    legacy: bool


def started(
    worlds: WorldPool, backend: str = "tensorflow", legacy: bool = False, size: int = 2, **variables: str
) -> World:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"not run: {backend} is not installed")
    if legacy and importlib.util.find_spec("tf_keras") is None:
        pytest.skip("not run: tf_keras is not installed")
    env = {**TENSORFLOW_ENV, "KERAS_BACKEND": backend, "TF_USE_LEGACY_KERAS": "1" if legacy else "0"}
    return worlds(size, {**env, **variables}, init_of("keras"))


def library(kind: str = "") -> tuple[Any, Any, Any]:
    """In a rank: Keras, its optimizers, and Horovod's package for it. `kind`: those of tf-keras, "new" or "legacy"."""
    if not kind:
        import keras

        import horovod.keras

        return keras, keras.optimizers, horovod.keras
    import tensorflow as tf

    import horovod.tensorflow.keras

    keras = tf.keras
    return keras, keras.optimizers.legacy if kind == "legacy" else keras.optimizers, horovod.tensorflow.keras


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    inputs = np.random.default_rng(3).standard_normal((64, 6)).astype(np.float32)
    return inputs, (inputs @ np.arange(6, dtype=np.float32))[:, None]
