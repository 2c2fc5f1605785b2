# SPDX-License-Identifier: Apache-2.0
"""Gradients in a list, for JAX and for Keras on JAX (steps 1 and 2 of a gradient's way).

All gradients of a step are one call of the native handler, or one for each group. The calls have no effect (see
compiled.py): their results are used, and a program with effects starts slowly.

The ranks' gradients meet by the keys of their pytree, if they have some: in a compiled function under the function's
name, so that ranks with different trees meet and disagree at once (compiled.py). Outside of one, under a checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.core import native
from horovod.gradients.lists import GradientList
from horovod.gradients.options import ReductionOptions
from horovod.gradients.step_check import sampled
from horovod.jax.ops import reduced_for_use
from horovod.jax.shim import is_eager
from horovod.jax.traces import tell

__all__ = ["JaxGradients"]


class JaxGradients(GradientList):
    """See gradients/lists.py. `keys`: those of the gradients, none of which is None then; () if there are none."""

    def __init__(
        self,
        options: ReductionOptions,
        name: str = "gradients",
        even_alone: bool = False,
        keys: Sequence[str] = (),
        is_applied: bool = True,
    ) -> None:
        super().__init__(options, name, even_alone, is_applied)
        self.keys = tuple(keys)

    def key_of(self, variable: Any) -> Any:
        return id(variable)

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def to_dense(self, gradient: Any) -> Any:
        return gradient.todense() if hasattr(gradient, "todense") else gradient

    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        raise NotImplementedError  # there are none

    def when_ready(self, gradient: Any, act: Callable[[int], None]) -> Any:
        size = gradient.size * gradient.dtype.itemsize
        if is_eager():
            jax.block_until_ready(gradient)
            act(size)
        else:
            jax.debug.callback(lambda _: act(size), gradient.reshape(-1)[:1])
        return gradient

    def is_eager(self) -> bool:
        return is_eager()

    def sample(self, gradient: Any) -> Any:
        return np.asarray(sampled(gradient.reshape(-1)))

    def is_finite(self, gradient: Any) -> bool:
        return bool(jnp.isfinite(gradient).all())

    def name_of(self, index: int, variables: Sequence[Any] | None) -> str:
        return self.keys[index] if self.keys else super().name_of(index, variables)

    def watching_library(self) -> Any:
        return native.library()

    def options_tensor(self, values: Sequence[Any]) -> Any:
        return jnp.stack([jnp.asarray(value, jnp.float32).reshape(()) for value in values])

    def device(self) -> str:
        return "cpu" if jax.default_backend() == "cpu" else "gpu"

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        groups = grouped if self.options.groups else [list(range(len(tensors)))]
        received = list(tensors)
        for group in groups:
            label = name if len(groups) == 1 or name.endswith("/") else f"{name}.{group[0]}"
            keys = [*self.keys, "options"]
            keys = [keys[position] for position in group] if self.keys else []
            watch = None if self.watch is None else (self.watch.number, tuple(group))
            reduced = reduced_for_use([tensors[position] for position in group], label, self.options.how, keys, watch)
            for position, result in zip(group, reduced, strict=True):
                received[position] = result
        return received

    def _name_of(self, gradients: Sequence[Any]) -> str:
        if self.keys and not is_eager():
            return f"{self.name}/"  # compiled.py adds the function and the place
        return self.list_name(gradients)

    def list_name(self, gradients: Sequence[Any]) -> str:
        of_keys = f"{zlib.crc32(chr(10).join(self.keys).encode()):08x}" if self.keys else ""
        return f"{super().list_name(gradients)}{of_keys}"

    def tell(self, grouped: list[list[int]], name: str, error: Exception) -> None:
        tell("grouped_allreduce", name, error, self.options.process_set)
