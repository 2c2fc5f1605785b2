# SPDX-License-Identifier: Apache-2.0
"""Compression of what travels: a floating tensor is sent as a half and given back in its own dtype (steps 2 and 3).

A compressor is a class with two static methods, compress(tensor) -> (tensor, context) and decompress(tensor, context)
-> tensor; users may bring their own. A framework's package makes its classes from `casting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from horovod.core.exceptions import InvalidRequestError
from horovod.core.wording import shown

__all__ = [
    "Compressor",
    "NoneCompressor",
    "casting",
    "check_compression",
    "compressed",
    "compressing",
    "why_no_compressor",
]


class Compressor:
    """The interface, and the base class for users' own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send in place of `tensor`, and the context that decompress needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the result in the form of the user's tensor."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def why_no_compressor(compression: Any) -> str | None:
    """The text of the error for anything that is not a compressor; raises nothing, so that compilers can trace it."""
    if all(callable(getattr(compression, method, None)) for method in ("compress", "decompress")):
        return None
    is_choice = isinstance(compression, str) and compression in ("none", "fp16", "bf16")
    choice = compression if is_choice else "none, .fp16 and .bf16"
    return (
        f"compression={shown(compression)}: expected a class with compress and decompress\n"
        f"hint: hvd.Compression.{choice}"
    )


def check_compression(compression: Any) -> None:
    """Raises ValueError for anything that is not a compressor."""
    why = why_no_compressor(compression)
    if why is not None:
        raise InvalidRequestError(why)


def casting(
    name: str, is_floating: Callable[[Any], bool], cast: Callable[[Any, Any], Any], dtype: Any
) -> type[Compressor]:
    """A compressor class that sends floating tensors as `dtype`, and other tensors unchanged. `cast(tensor, dtype)`."""

    class Casting(Compressor):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            if is_floating(tensor) and tensor.dtype != dtype:
                return cast(tensor, dtype), tensor.dtype
            return tensor, None

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor if ctx is None else cast(tensor, ctx)

    Casting.__name__ = Casting.__qualname__ = name
    return Casting


def compressed(
    tensors: Iterable[Any], compression: type[Compressor], tell: Callable[[Exception], None]
) -> list[tuple[Any, Any]]:
    """Compresses each tensor. Returns what to send for it, and what decompress needs.

    `tell(error)`: tells the other ranks, which wait for this one's tensors, that they will not come.
    """
    try:
        return [compression.compress(tensor) for tensor in tensors]
    except Exception as error:
        tell(error)
        raise


class _Waitable(Protocol):
    def wait(self) -> Any: ...


class _Compressed:
    """A started reduction of a compressed tensor; wait() returns the result in the form of the gradient."""

    def __init__(self, operation: _Waitable, compression: type[Compressor], ctx: Any) -> None:
        self._operation = operation
        self._compression = compression
        self._ctx = ctx

    def wait(self) -> Any:
        return self._compression.decompress(self._operation.wait(), self._ctx)


def compressing(
    start: Callable[[Any, str], _Waitable],
    compression: type[Compressor],
    tell: Callable[[str, Exception], None],
) -> Callable[[Any, str], _Waitable]:
    """`start(gradient, name)` for gradients that travel compressed.

    `tell(name, error)`: tells the other ranks that this one's reduction will not come.
    """
    if compression is NoneCompressor:
        return start

    def start_compressed(gradient: Any, name: str) -> _Waitable:
        # Otherwise they would take this rank's next gradient for the one of this step.
        ((sent, ctx),) = compressed([gradient], compression, lambda error: tell(name, error))
        return _Compressed(start(sent, name), compression, ctx)

    return start_compressed
