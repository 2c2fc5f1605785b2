# SPDX-License-Identifier: Apache-2.0
"""The error for what cannot be pickled. It names the part in words: an argument, and the variable or attribute in it.

All functions that send Python objects to ranks raise this error: horovod.run, those of Spark and Ray, estimators.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["named"]

_DEPTH = 6  # of parts of parts that are named


@contextlib.contextmanager
def named(
    caller: str, parts: Mapping[str, Any], dump: Callable[[Any], bytes], what: str = "the call", hint: str = ""
) -> Iterator[None]:
    """Turns any error inside, where values are pickled, into a TypeError that names the one that cannot be pickled.

    `parts`: the values by name. `dump`: pickles one alone. `what`: the name of all, if each can be pickled alone.
    """
    try:
        yield
    except Exception as error:  # pickling runs the object's own code
        way, reason = _culprit(parts, dump, error)
        found = f" (in {', '.join(way[1:])})" if way[1:] else ""
        raise TypeError(f"{caller}: {way[0] if way else what} cannot be pickled: {reason}{found}{hint}") from error


def _culprit(values: Mapping[str, Any], dump: Callable[[Any], bytes], reason: Exception) -> tuple[list[str], Exception]:
    """The way to the part of one of these values that `dump` fails on, and its error; `reason` if none fails alone."""
    way: list[str] = []
    parts: Iterator[tuple[str, Any]] = iter(values.items())
    while len(way) < _DEPTH:
        found = next(((name, part, error) for name, part in parts if (error := _failure(part, dump))), None)
        if found is None:
            break
        way.append(found[0])
        parts, reason = _parts(found[1]), found[2]
    return way, reason


def _failure(part: Any, dump: Callable[[Any], bytes]) -> Exception | None:
    try:
        dump(part)
    except Exception as error:  # as above
        return error
    return None


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
        kind, attributes = type(value).__name__, dict(vars(value))
        if isinstance(attributes.get("_modules"), dict):  # of PyTorch, whose attributes they are for the user
            attributes |= attributes.pop("_modules")
        yield from ((f"the attribute {name} of {kind}", one) for name, one in attributes.items())
