# SPDX-License-Identifier: Apache-2.0
"""Tensors as the flat memory that operations read and write.

Operations that do not reduce move any dtype: one that the core does not know travels as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from horovod.core import native
from horovod.torch.tensors import check_writable

__all__ = ["Target", "as_moved", "as_row", "flat", "moved_count", "one_block"]

_KNOWN = frozenset(getattr(torch, name) for name in native.DTYPE_NAMES)


def flat(tensor: Tensor) -> Tensor:
    """The elements in order, as one dimension: a view if they are dense."""
    dense = tensor.detach().contiguous().resolve_conj().resolve_neg()
    return dense.as_strided((dense.numel(),), (1,))  # view() keeps a stride that has no meaning, of one element or none


def as_moved(tensor: Tensor) -> Tensor:
    """Likewise, for an operation that adds nothing."""
    elements = flat(tensor)
    return elements if elements.dtype in _KNOWN else elements.view(torch.uint8)


def as_row(tensor: Tensor) -> Tensor:
    """Likewise, of a gather of equal parts: the ranks compare all dimensions but the first."""
    return as_moved(tensor).unsqueeze(0)


def moved_count(tensor: Tensor) -> int:
    """The number of elements of as_moved(tensor)."""
    count: int = tensor.numel() if tensor.dtype in _KNOWN else tensor.numel() * tensor.element_size()
    return count


def one_block(tensors: Sequence[Tensor]) -> Tensor | None:
    """The flat memory of dense tensors of equal size that follow each other, such as chunks of one; else None."""
    first = tensors[0]
    step = first.numel() * first.element_size()
    start = first.data_ptr()
    for index, tensor in enumerate(tensors):
        if tensor.data_ptr() != start + index * step or tensor.shape != first.shape or not tensor.is_contiguous():
            return None
        if tensor.is_conj() or tensor.is_neg() or tensor.dtype != first.dtype:
            return None
        if tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
    return first.detach().as_strided((first.numel() * len(tensors),), (1,))


class Target:
    """The flat memory into which an operation writes the elements of `tensors`, in order.

    Their own, if they are dense and follow each other; else private memory, from which `deliver` copies.
    """

    __slots__ = ("_tensors", "memory")

    def __init__(self, tensors: Sequence[Tensor], moved: bool) -> None:
        """`moved`: the operation adds nothing."""
        for tensor in tensors:
            check_writable(tensor)
        block = one_block(tensors)
        self._tensors = () if block is not None else tensors
        if block is None:
            first = tensors[0]
            block = torch.empty(sum(one.numel() for one in tensors), dtype=first.dtype, device=first.device)
        self.memory = as_moved(block) if moved else block

    @property
    def is_private(self) -> bool:
        return bool(self._tensors)

    def fill(self, tensor: Tensor) -> None:
        """Puts a tensor's elements there, if it is not its own memory."""
        if self._tensors:
            self.memory.copy_(as_moved(tensor))

    def deliver(self) -> None:
        """The operation is done."""
        if not self._tensors:
            return
        with torch.no_grad():
            whole = self.memory.view(self._tensors[0].dtype)
            parts = whole.split([one.numel() for one in self._tensors])
            for tensor, part in zip(self._tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
