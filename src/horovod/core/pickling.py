# SPDX-License-Identifier: Apache-2.0
"""Users' objects as bytes, by cloudpickle, which takes lambdas, local functions and classes of a script by value.

cloudpickle drops the file of a function's code since 3.1.3. Then tracebacks show no line of the script, and
TensorFlow's AutoGraph, which reads the source of a function, leaves loops as they are. So the file is kept here.
"""

from __future__ import annotations

import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

__all__ = ["Pickler", "dumps", "loads"]

loads = pickle.loads


def dumps(value: Any) -> bytes:
    """The bytes from which `loads` makes the value. Raises any error that the value's own code raises."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Callable[..., types.CodeType], tuple[Any, ...]]:
    make, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return _code_of_file, (code.co_filename, make, arguments)


def _code_of_file(file: str, make: Callable[..., types.CodeType], arguments: tuple[Any, ...]) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """The pickler of `dumps`, for torch.save, which takes this module."""

    dispatch_table = ChainMap({types.CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table)
