# SPDX-License-Identifier: Apache-2.0
"""Which plain Keras optimizer trains a tape's variables: one that was built for them (step 2 of a gradient's way).

A tape is not told. So the checks of its gradients learn of the learning rate from a change to Keras' own classes.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["note_optimizers", "optimizer_of"]

_Key = Callable[[Any], Any]

_MODULES = ("keras", "tf_keras")
_optimizers: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()  # by variable


def note_optimizers(key_of: _Key) -> None:
    """Notes the variables of the optimizers that are built from now on. `key_of`: the identity of a variable."""
    for module in _MODULES:
        if module in sys.modules:
            _note(sys.modules[module].optimizers.Optimizer, key_of)


@functools.cache
def _note(kind: Any, key_of: _Key) -> None:
    build = kind.build

    @functools.wraps(build)
    def build_and_note(self: Any, variables: Any, *args: Any, **kwargs: Any) -> Any:
        for variable in variables:
            _optimizers[key_of(variable)] = self
        return build(self, variables, *args, **kwargs)

    kind.build = build_and_note


def optimizer_of(variables: Sequence[Any], key_of: _Key, is_traced: bool) -> Any:
    """The optimizer that was built last for the first variable that has one; None if it is not known.

    is_traced: this call is made once. So if none is built yet, it is the only one that waits to be.
    """
    found = (_optimizers.get(key_of(variable)) for variable in variables)
    known = next((optimizer for optimizer in found if optimizer is not None), None)
    if known is not None or not is_traced:
        return known
    kinds = tuple(sys.modules[name].optimizers.Optimizer for name in _MODULES if name in sys.modules)
    living = [one for one in gc.get_objects() if issubclass(type(one), kinds) and not getattr(one, "built", True)]
    return living[0] if len(living) == 1 else None
