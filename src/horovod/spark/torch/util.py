# SPDX-License-Identifier: Apache-2.0
"""Bytes of PyTorch objects, and Horovod's names for the helpers that make them."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from typing import Any

import torch

from horovod.core import pickling

__all__ = ["deserialize", "deserialize_fn", "is_module_available", "is_module_available_fn", "save_into_bio"]
__all__ += ["save_into_bio_fn", "serialize", "serialize_fn"]


def save_into_bio(obj: Any, save_obj_fn: Callable[[Any, Any], None]) -> io.BytesIO:
    """A buffer that `save_obj_fn(obj, buffer)` has written, to be read from its start."""
    buffer = io.BytesIO()
    save_obj_fn(obj, buffer)
    buffer.seek(0)
    return buffer


def serialize(obj: Any) -> bytes:
    """The bytes of an object with tensors, classes of scripts included; tensors that are one stay one."""
    return save_into_bio(obj, lambda value, buffer: torch.save(value, buffer, pickle_module=pickling)).getvalue()


def deserialize(content: bytes) -> Any:
    """The object that `serialize` wrote, on the CPU."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)


def is_module_available(module_name: str) -> bool:
    """True if a module can be imported."""
    return importlib.util.find_spec(module_name) is not None


def save_into_bio_fn() -> Callable[..., io.BytesIO]:
    """`save_into_bio` as a function to send."""
    return save_into_bio


def serialize_fn() -> Callable[[Any], bytes]:
    """`serialize` as a function to send."""
    return serialize


def deserialize_fn() -> Callable[[bytes], Any]:
    """`deserialize` as a function to send."""
    return deserialize


def is_module_available_fn() -> Callable[[str], bool]:
    """`is_module_available` as a function to send."""
    return is_module_available
