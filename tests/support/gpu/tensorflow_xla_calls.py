# SPDX-License-Identifier: Apache-2.0
"""Calls what a traced function of TensorFlow's asks for, as XLA would on CUDA.

plan = plan_of(function, x)     # the target and the text of the call, from TensorFlow's own graph
first, second = plans_of(function, x)  # of a function with several
call(plan, [(x, y)])            # None, or the text of the error; the target is looked up in XLA's own registry

A machine without a GPU cannot have such a call from XLA itself. xla_calls.py does the same for JAX.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from support.gpu import standin

__all__ = ["call", "plan_of", "plans_of"]

_LOOKUP = "_ZNK3xla24CustomCallTargetRegistry6LookupERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES8_"
_GLOBAL = "_ZN3xla24CustomCallTargetRegistry6GlobalEv"
_MESSAGE = "_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"
# The stream, the addresses of operands and then results, the text of the call and its length, the place for an error.
_TARGET = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
)


class _Text(ctypes.Structure):
    """std::string, as libstdc++ has it."""

    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t), ("capacity", ctypes.c_size_t * 2)]


class _Message(ctypes.Structure):
    """std::optional<std::string_view>."""

    _fields_ = [("length", ctypes.c_size_t), ("data", ctypes.c_void_p), ("present", ctypes.c_bool)]


def _string(text: str) -> _Text:
    return _Text(text.encode(), len(text), (ctypes.c_size_t * 2)(len(text), 0))


def plan_of(function: Callable[..., Any], *tensors: Any) -> tuple[str, str]:
    (plan,) = plans_of(function, *tensors)
    return plan


def plans_of(function: Callable[..., Any], *tensors: Any) -> list[tuple[str, str]]:
    """The target and the text of each call in what `function` is traced to for tensors of these shapes and dtypes."""
    import tensorflow as tf

    specs = [tf.TensorSpec(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in tensors]
    traced = tf.function(function, jit_compile=True, autograph=False).get_concrete_function(*specs)
    nodes = [each for each in traced.graph.get_operations() if each.type == "XlaCustomCallV2"]
    return [(node.get_attr("call_target_name").decode(), node.get_attr("backend_config").decode()) for node in nodes]


def call(
    plan: tuple[str, str], tensors: Sequence[tuple[Any, Any]], stream: int | None = None, before: Sequence[Any] = ()
) -> str | None:
    """Takes the target from the registry and calls it with pairs of an input and an output, on the current stream.

    `before`: what it is given of the call before. Returns the error's text, None if there is none.
    """
    library = ctypes.CDLL("libtensorflow_cc.so.2")
    registry, lookup, message = library[_GLOBAL], library[_LOOKUP], library[_MESSAGE]
    registry.restype = lookup.restype = ctypes.c_void_p
    lookup.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Text), ctypes.POINTER(_Text)]
    message.restype, message.argtypes = _Message, [ctypes.c_void_p]
    target, number = plan
    address = lookup(registry(), _string(target), _string("CUDA"))
    assert address
    places = [*(given for given, _ in tensors), *before, *(result for _, result in tensors)]
    addresses = [place.data_ptr() for place in places]
    status = (ctypes.c_uint64 * 5)()  # std::optional<std::string>, empty
    buffers = (ctypes.c_void_p * len(addresses))(*addresses)
    if stream is None:
        stream = standin.gpu().current_stream()
    _TARGET(address)(stream, buffers, number.encode(), len(number), ctypes.addressof(status))
    found = message(ctypes.addressof(status))
    return ctypes.string_at(found.data, found.length).decode() if found.present else None
