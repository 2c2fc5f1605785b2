# SPDX-License-Identifier: Apache-2.0
"""How the core sees a framework's tensors (step 3): the adapter that every sibling supplies, and the one for NumPy.

The native core takes dense, row-major, aligned memory: the host's, or a GPU's (core/gpus.py). A tensor that is
something else (a view, a tensor of another device) is staged: copied to private memory, and the result is written back.

Complex numbers travel as pairs of real ones, in a last dimension of 2. Sums, averages and moves of pairs are those of
the numbers; other operations are refused (check_complex).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from horovod.core import native
from horovod.core.exceptions import InvalidRequestError

__all__ = [
    "Adapter",
    "NumpyAdapter",
    "check_complex",
    "check_complex_rows",
    "numbers",
    "of_each",
    "check_complex_group",
    "check_rows",
    "pairs",
    "unsupported_dtype",
]

T = TypeVar("T")


class Adapter(Protocol[T]):
    """The adapter of a framework, for core/collectives.py. Everything runs on the caller's thread."""

    def stage(self, tensor: T) -> Any:
        """`tensor` itself or a private copy of it that the native core can read and write, with `dtype` and `shape`.

        In a GPU's memory, a core.gpus.OnGpu. Raises InvalidRequestError for a layout that has no meaning here,
        TypeError for anything but a tensor.
        """
        ...

    @property
    def find(self) -> Callable[..., Any] | None:
        """core/calls.py's, if it knows such tensors."""
        ...

    @property
    def run_known(self) -> Callable[..., Any] | None:
        """Likewise."""
        ...

    def is_complex(self, tensor: Any) -> bool:
        """True if the elements of a tensor are complex. Such a tensor is always staged as another object."""
        ...

    def dtype_of(self, staged: Any) -> int:
        """The hvd_dtype. Raises InvalidRequestError for one that no operation takes."""
        ...

    def stage_in_place(self, tensor: T) -> Any:
        """As stage, for an operation whose result goes into `tensor`.

        Raises InvalidRequestError or TypeError if it cannot be written there.
        """
        ...

    def address(self, staged: Any) -> int:
        """The address at which the memory of a staged tensor begins."""
        ...

    def empty_like(self, staged: T) -> T:
        """New host memory for a result of the same shape and dtype."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: int) -> T:
        """New host memory of an hvd_dtype."""
        ...

    def write_back(self, tensor: T, staged: Any) -> None:
        """Copies a staged result into the tensor that the user gave."""
        ...

    def deliver(self, staged: Any, like: T) -> T:
        """A staged result as the user gets it: on the device of `like`."""
        ...


def check_complex(op: Any) -> None:
    """Raises NotImplementedError if complex tensors have no such reduction."""
    if op not in (None, native.Average, native.Sum):
        name = native.OP_NAMES[op] if op in range(len(native.OP_NAMES)) else repr(op)
        raise NotImplementedError(
            f"complex tensors: expected op Average or Sum, got op={name}\nhint: reduce its real and its imaginary part"
        )


def check_complex_group(adapter: Adapter[Any], tensors: Sequence[Any], op: Any) -> None:
    """As check_complex, if one of the tensors is complex."""
    if op not in (None, native.Average, native.Sum) and any(map(adapter.is_complex, tensors)):
        check_complex(op)


def check_rows(adapter: Adapter[Any], label: str, tensors: Sequence[Any], staged: Sequence[Any]) -> None:
    """As check_complex_rows, for those tensors that are complex."""
    for tensor, mine in zip(tensors, staged, strict=True):
        if mine is not tensor and adapter.is_complex(tensor):
            check_complex_rows(label, mine.shape[:-1])


def check_complex_rows(label: str, shape: Sequence[int]) -> None:
    """Raises InvalidRequestError for a complex number alone, which would travel as two rows."""
    if not shape:
        raise InvalidRequestError(f"{label} needs rows: expected at least one dimension, got a 0-d tensor")


def unsupported_dtype(seen: object) -> InvalidRequestError:
    """The error for a dtype that no operation takes."""
    known = ", ".join([*native.DTYPE_NAMES, "complex64", "complex128"])
    return InvalidRequestError(f"dtype {seen} is not supported: expected one of {known}")


def of_each(function: Callable[[Any], Any], tensors: Sequence[Any]) -> list[Any]:
    """Calls `function` for each tensor; an error says which of several tensors it is about."""
    results: list[Any] = []
    try:
        for tensor in tensors:
            results.append(function(tensor))
    except (TypeError, ValueError) as error:
        if len(tensors) == 1:
            raise
        kind = TypeError if isinstance(error, TypeError) else InvalidRequestError
        raise kind(f"tensor {len(results)} of {len(tensors)}: {error}") from error.__cause__
    return results


def _numpy_dtypes() -> dict[np.dtype[Any], int]:
    return {np.dtype(name): number for number, name in enumerate(native.DTYPE_NAMES) if name != "bfloat16"}


def _interface_address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _field_address(array: np.ndarray[Any, Any]) -> int:
    return ctypes.c_void_p.from_address(id(array) + object.__basicsize__).value or 0


_sample = np.zeros(1)
# In CPython an array's address is the first field behind the object's head (NumPy's C interface: PyArrayObject). To
# read it there takes a tenth of the time of asking the array.
_reads_field = sys.implementation.name == "cpython" and _field_address(_sample) == _interface_address(_sample)
_address = _field_address if _reads_field else _interface_address


class NumpyAdapter:
    """NumPy arrays; bfloat16 as ml_dtypes registers it. Whatever np.asarray takes may be given out of place."""

    find = None
    run_known = None

    def __init__(self) -> None:
        self._number_of = _numpy_dtypes()
        self._dtype_of = {number: dtype for dtype, number in self._number_of.items()}

    def stage(self, tensor: Any) -> np.ndarray[Any, Any]:
        if type(tensor) is np.ndarray:
            flags = tensor.flags
            if flags.c_contiguous and flags.aligned and tensor.dtype.kind != "c":
                return tensor
        # Anything but a plain array is copied: np.asarray of a subclass or of another library's tensor
        # shares memory.
        return pairs(np.array(tensor, order="C"))

    def is_complex(self, tensor: Any) -> bool:
        return bool(np.iscomplexobj(tensor))

    def dtype_of(self, staged: np.ndarray[Any, Any]) -> int:
        number = self._number_of.get(staged.dtype)
        return self._learn(staged.dtype) if number is None else number

    def _learn(self, dtype: np.dtype[Any]) -> int:
        # ml_dtypes is not imported here: a caller that has such an array has imported it.
        if dtype.name != "bfloat16" or "ml_dtypes" not in sys.modules:
            raise unsupported_dtype(dtype)
        self._number_of[dtype] = native.BFLOAT16
        self._dtype_of[native.BFLOAT16] = dtype
        return native.BFLOAT16

    def stage_in_place(self, tensor: Any) -> np.ndarray[Any, Any]:
        if type(tensor) is np.ndarray and tensor.flags.carray and tensor.dtype.kind != "c":
            return tensor  # contiguous, aligned and writeable
        if not isinstance(tensor, np.ndarray):
            raise TypeError(f"an operation in place needs a numpy.ndarray, got {type(tensor).__name__}")
        if not tensor.flags.writeable:
            raise InvalidRequestError("an operation in place needs a writeable array, got a read-only one")
        return self.stage(tensor)

    def address(self, staged: np.ndarray[Any, Any]) -> int:
        return _address(staged)

    def empty_like(self, staged: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.empty(staged.shape, staged.dtype)

    def empty(self, shape: tuple[int, ...], dtype: int) -> np.ndarray[Any, Any]:
        return np.empty(shape, self._dtype_of[dtype])

    def write_back(self, tensor: np.ndarray[Any, Any], staged: np.ndarray[Any, Any]) -> None:
        tensor[...] = numbers(staged, tensor)

    def deliver(self, staged: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
        return numbers(staged, like)


_COMPLEX = {"complex64": np.float32, "complex128": np.float64}


def pairs(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A contiguous array, or a view of its complex numbers as pairs."""
    real = _COMPLEX.get(array.dtype.name)
    return array if real is None else array.reshape(-1).view(real).reshape(*array.shape, 2)


def numbers(array: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
    """The result for `like`: the array, or a view of its pairs as complex numbers."""
    if not np.iscomplexobj(like):
        return array
    wide = np.complex64 if array.dtype == np.float32 else np.complex128
    return array.reshape(-1).view(wide).reshape(array.shape[:-1])
