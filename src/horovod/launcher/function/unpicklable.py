# SPDX-License-Identifier: Apache-2.0
"""Which part of a value cannot be pickled, in words: the variable of a function, or the attribute of an object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["culprit"]

_DEPTH = 6  # of parts of parts that are named


def culprit(values: Mapping[str, Any], dump: Callable[[Any], bytes]) -> str:
    """The way to the part of one of these values that `dump` fails on; empty if all can be pickled alone."""
    way: list[str] = []
    parts: Iterator[tuple[str, Any]] = iter(values.items())
    while len(way) < _DEPTH:
        found = next(((name, part) for name, part in parts if _fails(part, dump)), None)
        if found is None:
            break
        way.append(found[0])
        parts = _parts(found[1])
    return ", ".join(way)


def _fails(part: Any, dump: Callable[[Any], bytes]) -> bool:
    try:
        dump(part)
    except Exception:  # pickling runs the object's own code
        return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if inspect.ismethod(value):
        yield f"the object of the method {value.__name__}", value.__self__
    elif inspect.isfunction(value):
        variables, own = inspect.getclosurevars(value), value.__name__
        yield from (
            (f"the variable {name} of the function around {own}", one) for name, one in variables.nonlocals.items()
        )
        yield from ((f"the global variable {name}, which {own} uses", one) for name, one in variables.globals.items())
        for name, parameter in inspect.signature(value).parameters.items():
            yield f"the default of {own}'s parameter {name}", parameter.default
    elif isinstance(value, functools.partial):
        yield from (("the function of the partial", value.func), *_parts(value.args), *_parts(value.keywords))
    elif isinstance(value, Mapping):
        yield from ((f"the value of {key!r}", one) for key, one in value.items())
    elif isinstance(value, (list, tuple, set)):
        yield from ((f"item {index}", one) for index, one in enumerate(value))
    elif isinstance(getattr(value, "__dict__", None), dict) and not inspect.isclass(value):
        yield from ((f"the attribute {name} of {type(value).__name__}", one) for name, one in vars(value).items())
