# SPDX-License-Identifier: Apache-2.0
"""The code that differs by the backend of Keras 3: a module for each, with the same functions.

    gradient_list(options, name)   how a list of gradients is reduced (gradients/lists.py)
    accumulation(options)          sums the gradients of several passes: called with a pass' gradients and with what
                                   applies the sums; restart() forgets them
    can_compile()                  whether XLA can hold the reductions

tensorflow.py has more: what Keras' callbacks and tf-keras need in graphs.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

from horovod.core.exceptions import InvalidRequestError
from horovod.gradients.lists import GradientList

__all__ = ["DenseGradients", "current", "graph_backend", "is_eager", "named", "of_tensorflow"]

_SUPPORTED = ("tensorflow", "torch", "jax")


def current() -> Any:
    """The module of the running backend. Raises ValueError for one that is not supported."""
    return named(keras.backend.backend())


def named(backend: str) -> Any:
    """The module of a backend: TensorFlow's is also that of tf-keras, whatever backend Keras 3 has."""
    if backend not in _SUPPORTED:
        raise InvalidRequestError(f"Keras backend {backend} is not supported: expected one of {', '.join(_SUPPORTED)}")
    return importlib.import_module(f"horovod.keras.backends.{backend}")


def of_tensorflow() -> Any:
    """The module for TensorFlow, if that is the running backend; None otherwise."""
    return current() if keras.backend.backend() == "tensorflow" else None


def is_eager() -> bool:
    """True if variables have values now: TensorFlow outside of functions, or PyTorch. JAX trains in functions."""
    backend = keras.backend.backend()
    return backend == "torch" or (backend == "tensorflow" and bool(current().is_eager()))


def graph_backend() -> Any:
    """tf-keras' backend if it trains in a graph of TensorFlow 1, whose variables have values in its session only.

    None otherwise.
    """
    in_tensorflow = of_tensorflow()
    return None if in_tensorflow is None else in_tensorflow.graph_backend()


class DenseGradients(GradientList):
    """For backends whose gradients are dense, or are made so."""

    def key_of(self, variable: Any) -> Any:
        return id(variable)

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        raise NotImplementedError  # there are none
