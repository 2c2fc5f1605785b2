# SPDX-License-Identifier: Apache-2.0
"""Keras on JAX: a part of the compiled step reduces all gradients (steps 1 and 2 of a gradient's way)."""

from __future__ import annotations

from typing import NoReturn

from horovod.core.exceptions import InvalidRequestError
from horovod.gradients.options import ReductionOptions
from horovod.jax.gradient_list import JaxGradients

__all__ = ["accumulation", "can_compile", "gradient_list"]

gradient_list = JaxGradients


def accumulation(options: ReductionOptions) -> NoReturn:
    """Raises ValueError: a compiled step of JAX keeps no state of ours."""
    passes = options.backward_passes_per_step
    raise InvalidRequestError(
        f"backward_passes_per_step={passes} is not supported with Keras backend jax\n"
        f"hint: Keras' own gradient_accumulation_steps={passes}, given to the optimizer, does the same"
    )


def can_compile() -> bool:
    """True: XLA calls the native handler."""
    return True
