# SPDX-License-Identifier: Apache-2.0
"""MXNet's arrays as the core sees them: step 3 of a gradient's way.

Dense arrays in host memory are used in place; those of a device are copied there and back, by MXNet's engine. An array
is an mx.nd.NDArray or an mx.np.ndarray; a result is of the kind that was given.
"""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.ndarray import _new_alloc_handle

from horovod.core import native
from horovod.core.collectives import Collectives
from horovod.core.exceptions import InvalidRequestError
from horovod.core.tensors import unsupported_dtype

__all__ = ["MxnetAdapter", "check", "collectives", "dtype_of", "empty", "is_on_host"]

_BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # as MXNet has it
_OTHERS = ("int16", "uint16", "uint32", "uint64", "bfloat16")  # MXNet has the last one only, in its own way
_DTYPES: dict[int, Any] = {
    number: np.dtype(name).type for number, name in enumerate(native.DTYPE_NAMES) if name not in _OTHERS
}
_NUMBER_OF = {np.dtype(dtype): number for number, dtype in _DTYPES.items()} | {_BFLOAT16: native.BFLOAT16}


def check(array: Any) -> None:
    """Raises TypeError or ValueError for anything but a dense array of a dtype that operations take."""
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"expected an mxnet.nd.NDArray, got {type(array).__name__}")
    if array.stype != "default":
        raise InvalidRequestError(
            f"stype {array.stype} is not supported: expected a dense array\nhint: call .tostype('default') first"
        )
    dtype_of(array)


def dtype_of(array: Any) -> int:
    """The hvd_dtype. Raises ValueError for one that no operation takes."""
    number = _NUMBER_OF.get(np.dtype(array.dtype))  # a type or a dtype
    if number is None:
        raise unsupported_dtype(np.dtype(array.dtype))
    return number


def is_on_host(array: Any) -> bool:
    """True if the processor can read the array's memory."""
    return str(array.context.device_type).startswith("cpu")


def empty(kind: type, shape: tuple[int, ...], dtype: int) -> Any:
    """New host memory of an hvd_dtype."""
    with mx.util.np_shape(True):  # a length of 0 stands for an unknown one otherwise
        handle = _new_alloc_handle(shape, mx.cpu(), True, _BFLOAT16 if dtype == native.BFLOAT16 else _DTYPES[dtype])
    return kind(handle)


class MxnetAdapter:
    """See core/tensors.py. For operations that block: it waits for what computes an array."""

    find = None
    run_known = None

    def stage(self, tensor: Any) -> Any:
        check(tensor)
        return tensor if is_on_host(tensor) else tensor.as_in_context(mx.cpu())

    def stage_in_place(self, tensor: Any) -> Any:
        return self.stage(tensor)

    def is_complex(self, tensor: Any) -> bool:
        return False  # MXNet has no such arrays

    def dtype_of(self, staged: Any) -> int:
        return dtype_of(staged)

    def address(self, staged: Any) -> int:
        staged.wait_to_read()  # raises what has failed
        memory = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(staged.handle, ctypes.byref(memory)))
        return memory.value or 0

    def empty_like(self, staged: Any) -> Any:
        return self.empty(staged.shape, dtype_of(staged))

    def empty(self, shape: tuple[int, ...], dtype: int) -> Any:
        return empty(mx.nd.NDArray, shape, dtype)

    def write_back(self, tensor: Any, staged: Any) -> None:
        staged.copyto(tensor)

    def deliver(self, staged: Any, like: Any) -> Any:
        if type(like) is not type(staged):
            staged = staged.as_np_ndarray()
        return staged.as_in_context(like.context)


collectives: Collectives[Any] = Collectives(MxnetAdapter())
