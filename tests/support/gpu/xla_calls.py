# SPDX-License-Identifier: Apache-2.0
"""XLA as a program for CUDA calls a handler: the structs of its foreign function interface, filled in by hand.

call([(x, y)], stream, kind=1, name="x")     # None, or the text of the error

A machine without a GPU cannot have such a call from XLA itself. The layout is that of XLA's header, not of our own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

__all__ = ["call"]

_API_WORDS, _ERROR_CREATE, _STREAM_GET = 24, 48 // 8, 80 // 8
_SCALAR, _STRING = 3, 4
_INT64, _FLOAT64, _UINT8 = 5, 12, 6
_DTYPES = {"torch.float32": 11, "torch.float64": 12, "torch.int64": 5}


class _Buffer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("dtype", c_int32),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _List(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int32)),
        ("items", POINTER(c_void_p)),
    ]


class _Attributes(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int32)),
        ("names", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
    ]


class _Span(Structure):
    _fields_ = [("data", c_char_p), ("length", c_size_t)]


class _Scalar(Structure):
    _fields_ = [("dtype", c_int32), ("value", c_void_p)]


class _Frame(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int32),
        ("operands", _List),
        ("results", _List),
        ("attributes", _Attributes),
        ("future", c_void_p),
    ]


class _ErrorCreate(Structure):
    _fields_ = [("size", c_size_t), ("extensions", c_void_p), ("message", c_char_p), ("code", c_int32)]


class _StreamGet(Structure):
    _fields_ = [("size", c_size_t), ("extensions", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


def call(tensors: Sequence[tuple[Any, Any]], stream: int, **attributes: Any) -> str | None:
    """Calls the handler with pairs of an input and an output, which are tensors of standin.py; the error's text."""
    from horovod.core import native

    errors: list[str] = []
    kept: list[Any] = []

    @ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorCreate))
    def error_create(asked: Any) -> int:
        errors.append(asked.contents.message.decode())
        return 1

    @ctypes.CFUNCTYPE(c_void_p, POINTER(_StreamGet))
    def stream_get(asked: Any) -> None:
        assert asked.contents.context == 77
        asked.contents.stream = stream

    api = (c_void_p * _API_WORDS)()
    api[0] = ctypes.sizeof(api)
    api[_ERROR_CREATE] = ctypes.cast(error_create, c_void_p)
    api[_STREAM_GET] = ctypes.cast(stream_get, c_void_p)
    place = (ctypes.c_uint8 * 1)()  # the result behind the others
    outputs = [_buffer(output, kept) for _, output in tensors]
    outputs.append(_Buffer(ctypes.sizeof(_Buffer), None, _UINT8, ctypes.addressof(place), 1, (c_int64 * 1)(1)))
    frame = _Frame(
        ctypes.sizeof(_Frame),
        None,
        ctypes.addressof(api),
        77,
        3,
        _list([_buffer(given, kept) for given, _ in tensors], kept),
        _list(outputs, kept),
        _attributes({"order_operands": 0, "process_set": 0, **attributes}, kept),
        None,
    )
    handler = native.library().hvd_jax_collective_on_gpu
    handler.restype, handler.argtypes = c_void_p, [c_void_p]
    failed = handler(ctypes.addressof(frame))
    assert bool(failed) == bool(errors) and frame.future is None
    return errors[0] if errors else None


def _buffer(tensor: Any, kept: list[Any]) -> _Buffer:
    shape = (c_int64 * max(tensor.dim(), 1))(*tensor.shape)
    kept.append(shape)
    return _Buffer(ctypes.sizeof(_Buffer), None, _DTYPES[str(tensor.dtype)], tensor.data_ptr(), tensor.dim(), shape)


def _addresses(items: Sequence[Any], kept: list[Any]) -> Any:
    kept.extend(items)
    return (c_void_p * max(len(items), 1))(*map(ctypes.addressof, items))


def _list(buffers: list[_Buffer], kept: list[Any]) -> _List:
    types = (c_int32 * len(buffers))()
    return _List(ctypes.sizeof(_List), None, len(buffers), types, _addresses(buffers, kept))


def _attributes(given: dict[str, Any], kept: list[Any]) -> _Attributes:
    names, values, types = [], [], []
    for name, value in given.items():
        names.append(_Span(name.encode(), len(name)))
        if isinstance(value, str):
            values.append(_Span(value.encode(), len(value)))
            types.append(_STRING)
            continue
        number = c_double(value) if isinstance(value, float) else c_int64(value)
        kept.append(number)
        values.append(_Scalar(_FLOAT64 if isinstance(value, float) else _INT64, ctypes.addressof(number)))
        types.append(_SCALAR)
    count = len(names)
    return _Attributes(
        ctypes.sizeof(_Attributes),
        None,
        count,
        (c_int32 * count)(*types),
        _addresses(names, kept),
        _addresses(values, kept),
    )
