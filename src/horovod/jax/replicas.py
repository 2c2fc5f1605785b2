# SPDX-License-Identifier: Apache-2.0
"""check_replicas, and what an optimizer compares: the leaves of pytrees, as parts with checksums."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.gradients import replica_check
from horovod.gradients.replica_check import Part, nested, of_array
from horovod.jax.shim import is_eager

__all__ = ["check_replicas", "key_of", "of_tree", "options_of"]


def check_replicas(model: Any, optimizer: Any = None, *, process_set: ProcessSet = global_process_set) -> None:
    """Compares all bits of the ranks' parameters, and of the optimizer's state. Blocks; all ranks call it.

    model, optimizer: pytrees, such as the parameters and the state of optax. Their leaves may be arrays of any dtype
    and shape, keys of jax.random, numbers and strings. Raises HorovodInternalError on all ranks if some differ: it
    names the first leaf, and the ranks that are unlike the others. Raises ValueError inside of compiled functions.
    """

    def describe() -> Iterator[Part]:
        if not is_eager():
            raise InvalidRequestError(
                "check_replicas cannot be part of a compiled function\nhint: call it between two steps"
            )
        yield from of_tree(model)
        if optimizer is not None:
            yield from of_tree(optimizer, "state")

    replica_check.check_replicas(describe, process_set)


def of_tree(tree: Any, prefix: str = "", *, whole: bool = True) -> Iterator[Part]:
    """The leaves of a pytree, by their paths with `prefix` in front."""

    def of_leaf(name: str, leaf: Any) -> Part | None:
        if not isinstance(leaf, jax.Array):
            return None
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return of_array(name, np.asarray(leaf), whole=whole)

    for path, leaf in tree_util.tree_flatten_with_path(tree)[0]:
        yield from nested(prefix + key_of(path), leaf, of_leaf)


def options_of(state: Any) -> Iterator[tuple[str, Any]]:
    """The options in a state of optax: those of inject_hyperparams, learning rates and scales. Each is a scalar."""
    for path, leaf in tree_util.tree_flatten_with_path(state)[0]:
        keys = [str(getattr(key, "name", getattr(key, "key", ""))) for key in path]
        is_option = "hyperparams" in keys or keys[-1:] in (["learning_rate"], ["scale"])
        if is_option and getattr(leaf, "shape", None) == () and jnp.issubdtype(leaf.dtype, jnp.floating):
            name = keys[-1] or key_of(path)
            yield name, leaf if isinstance(leaf, jax.core.Tracer) else float(leaf)


def key_of(path: Any) -> str:
    """A leaf's place in the pytree as people write it, the same on all ranks, on one line."""
    return re.sub(r" at 0x[0-9a-f]+|\s+", " ", tree_util.keystr(path)) or "the only one"
