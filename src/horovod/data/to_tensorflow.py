# SPDX-License-Identifier: Apache-2.0
"""Batches as a tf.data.Dataset."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["to_tensorflow"]


def to_tensorflow(batches: Iterable[Any], map_batch: Callable[[Any], Any] | None = None, prefetch: int = 0) -> Any:
    """A tf.data.Dataset of batches: dicts, or what `map_batch` makes of them, as tuples for `fit`.

    The first iteration takes the types and shapes from the first batch, whose first dimension may vary. One iteration
    of the data set is one of `batches`. `prefetch` batches are loaded ahead; 0 lets TensorFlow decide.
    """
    import tensorflow as tf

    def iterate() -> Iterator[Any]:
        return map(map_batch, batches) if map_batch else iter(batches)

    begun = iterate()
    first = next(begun)
    signature = tf.nest.map_structure(
        lambda values: tf.TensorSpec((None, *values.shape[1:]), tf.as_dtype(values.dtype)), first
    )
    # The first batch is not read again: it begins the first iteration.
    iterations = itertools.chain([lambda: itertools.chain([first], begun)], itertools.repeat(iterate))
    data = tf.data.Dataset.from_generator(lambda: next(iterations)(), output_signature=signature)
    return data.prefetch(prefetch or tf.data.AUTOTUNE)
