# SPDX-License-Identifier: Apache-2.0
"""How a list of gradients becomes the ranks' average (step 2 of a gradient's way), for frameworks that have all
gradients in a list: TensorFlow's tape, and the optimizers of Keras. Imports no framework: a subclass says how tensors
are reduced. (PyTorch's gradients come one by one: core/gradient_reducer.py.)

The ranks' gradients meet by their place in the list, not by their variables' names: Keras numbers layers by what a
process has built before, which may differ. The name holds a sum over all shapes, so that two models of one program do
not take each other's place. The native core knows such names (native/negotiation/gradient_lists.h): ranks that wait for
each other in different lists have different models.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import zlib
from collections.abc import Sequence
from typing import Any

from horovod.core import context as contexts
from horovod.core.compression import Compressor, NoneCompressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Adasum, Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.requests import check_adasum_ranks

__all__ = ["GradientList"]


@dataclasses.dataclass
class GradientList(abc.ABC):
    """Averages gradients over the ranks of a process set. Raises ValueError for options that do not fit together."""

    name: str = "gradients"
    op: int = Average
    compression: type[Compressor] = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None  # None, a number of groups, or lists of variables
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    device_dense: str = ""
    device_sparse: str = ""
    even_alone: bool = False  # reduces in a job of one rank, too: for measurements

    def __post_init__(self) -> None:
        self._local: set[Any] = set()
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise InvalidRequestError("gradient_predivide_factor goes with op=Average only")
        if not self.gradient_predivide_factor > 0:
            raise InvalidRequestError(
                f"gradient_predivide_factor={self.gradient_predivide_factor}: expected a number above 0"
            )
        self._check_groups()
        if self.op == Adasum and contexts.is_initialized():
            check_adasum_ranks(self.process_set.size() or 1)

    # What a framework's package says.

    @abc.abstractmethod
    def key_of(self, variable: Any) -> Any:
        """What tells a variable from another, as a dictionary's key."""

    @abc.abstractmethod
    def is_sparse(self, gradient: Any) -> bool:
        """Whether it has indices and values."""

    @abc.abstractmethod
    def to_dense(self, gradient: Any) -> Any:
        """A tensor of any gradient."""

    @abc.abstractmethod
    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        """The reduction of a sparse gradient."""

    @abc.abstractmethod
    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        """The reductions of `tensors`, compressed already; each list of positions in `grouped` as a whole."""

    def divided(self, gradient: Any, divisor: int) -> Any:
        """A gradient, sparse or dense, divided by a number."""
        return gradient / divisor

    def unique(self, name: str) -> str:
        """`name`, made different from others that may be in flight at the same time."""
        return name

    # What all have in common.

    def _check_groups(self) -> None:
        groups = self.groups
        if groups is None or (isinstance(groups, int) and groups >= 0):
            return
        if not isinstance(groups, list) or not all(isinstance(group, (list, tuple)) for group in groups):
            raise InvalidRequestError(
                f"groups={groups!r}: expected a number of groups, or a list of lists of variables"
            )
        members = list(itertools.chain.from_iterable(groups))
        for member in members:
            if not hasattr(member, "assign"):
                raise InvalidRequestError(f"groups: expected lists of variables, seen a {type(member).__name__}")
        if len({self.key_of(member) for member in members}) < len(members):
            raise InvalidRequestError("groups: a variable is in more than one group, or twice in one")

    def register_local(self, variable: Any) -> None:
        """The gradient of `variable` is not reduced: every rank trains its own."""
        self._local.add(self.key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return bool(self._local) and self.key_of(variable) in self._local

    @property
    def factors(self) -> tuple[float, float]:
        """(prescale, postscale)"""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @property
    def is_active(self) -> bool:
        """Whether this rank takes part and has somebody to do it with."""
        return self.process_set.included() and (contexts.size() > 1 or self.even_alone)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """The reduced gradients, in order; None stays None. `variables`: needed for groups and local ones."""
        results = list(gradients)
        if not self.is_active:
            return results
        members = self.process_set.size() or 1
        reduced = []
        for index, gradient in enumerate(results):
            if gradient is None:
                continue
            if variables is not None and self.is_local(variables[index]):
                if self.scale_local_gradients:
                    results[index] = self.divided(gradient, members)
                continue
            if self.sparse_as_dense or not self.is_sparse(gradient):
                results[index] = self.to_dense(gradient)
            reduced.append(index)
        name = self.unique(self._name_of([results[index] for index in reduced]))
        dense = [index for index in reduced if not self.is_sparse(results[index])]
        for index in set(reduced) - set(dense):
            results[index] = self.reduce_sparse(results[index], f"{name}.{index}")
        if dense:
            pairs = [self.compression.compress(results[index]) for index in dense]
            received = self.reduce_dense([sent for sent, _ in pairs], self._grouped(dense, variables), name)
            for index, tensor, (_, ctx) in zip(dense, received, pairs, strict=True):
                results[index] = self.compression.decompress(tensor, ctx)
        return results

    def _name_of(self, gradients: Sequence[Any]) -> str:
        described = ";".join(f"{gradient.dtype}{gradient.shape}" for gradient in gradients)
        return f"{self.name}/list-{zlib.crc32(described.encode()):08x}"

    def _grouped(self, dense: list[int], variables: Sequence[Any] | None) -> list[list[int]]:
        """Positions in `dense` that are reduced as one. Without groups: each alone."""
        positions = list(range(len(dense)))
        if not self.groups:
            return [[position] for position in positions]
        if isinstance(self.groups, int):
            count = min(self.groups, len(positions))
            ends = [len(positions) * index // count for index in range(count + 1)]
            return [positions[start:end] for start, end in itertools.pairwise(ends)]
        if variables is None:
            raise InvalidRequestError("groups of variables need the variables that the gradients belong to")
        position_of = {self.key_of(variables[index]): position for position, index in enumerate(dense)}
        groups = []
        for group in self.groups:
            keys = [self.key_of(variable) for variable in group]
            groups.append(sorted(position_of[key] for key in keys if key in position_of))
        taken = set(itertools.chain.from_iterable(groups))
        return [group for group in groups if group] + [[position] for position in positions if position not in taken]
