# SPDX-License-Identifier: Apache-2.0
"""The options of every optimizer wrapper and tape, once (step 2 of a gradient's way).

Their defaults, checks and error texts stand here. Imports no framework.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from horovod.core.compression import Compressor, NoneCompressor, check_compression
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import OP_NAMES, Adasum, Average
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.requests import as_factor
from horovod.core.wording import shown

__all__ = ["ReductionOptions", "check_groups", "check_passes"]


@dataclasses.dataclass(frozen=True)
class ReductionOptions:
    """How gradients become the ranks' average. Raises ValueError for options that do not fit together.

    compression: what travels. gradient_predivide_factor f: gradients are scaled by 1/f before and f / size after the
    sum. groups: None, a number of groups, or lists of variables. backward_passes_per_step: passes that are summed
    locally (averaged with average_aggregated_gradients) before one reduction. scale_local_gradients: gradients of local
    variables are divided by the size.
    """

    name: str | None = None
    op: int = Average
    compression: type[Compressor] = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    scale_local_gradients: bool = True
    device_dense: str = ""
    device_sparse: str = ""

    def __post_init__(self) -> None:
        if self.op not in range(len(OP_NAMES)):
            raise InvalidRequestError(f"op={shown(self.op)}: expected one of {', '.join(OP_NAMES)}")
        factor = as_factor("gradient_predivide_factor", self.gradient_predivide_factor)
        if factor != 1.0 and self.op != Average:
            raise InvalidRequestError("gradient_predivide_factor is for op=Average only")
        if not factor > 0:
            given = shown(self.gradient_predivide_factor)
            raise InvalidRequestError(f"gradient_predivide_factor={given}: expected a number above 0")
        check_compression(self.compression)
        check_process_set(self.process_set)
        check_passes(self.backward_passes_per_step)

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> ReductionOptions:
        """The options among a function's arguments. `num_groups` is the old name of `groups`."""
        names = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in arguments.items() if name in names}
        if given.get("groups") is None and arguments.get("num_groups"):
            given["groups"] = arguments["num_groups"]
        return cls(**given)

    @property
    def factors(self) -> tuple[float, float]:
        """(prescale, postscale)."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor

    @property
    def how(self) -> tuple[int, None, float, float, ProcessSet]:
        """As core/collectives.py takes it."""
        return self.op, None, *self.factors, self.process_set

    @property
    def is_adasum(self) -> bool:
        """True if the ranks' own steps are combined, not their gradients."""
        return self.op == Adasum


def check_passes(passes: Any) -> None:
    """Raises ValueError for a number of backward passes that cannot be."""
    if not isinstance(passes, int) or passes < 1:
        raise InvalidRequestError(f"backward_passes_per_step={shown(passes)}: expected a whole number, 1 or more")


def check_groups(
    groups: Any,
    noun: str,
    is_member: Callable[[Any], bool],
    key_of: Callable[[Any], Hashable],
    smallest: int = 0,
) -> list[Any]:
    """Raises ValueError for groups that cannot be.

    Returns all members. `noun`: what members are called; `smallest`: number of groups.
    """
    if groups is None:
        return []
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= smallest:
        return []
    if not isinstance(groups, list) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise InvalidRequestError(f"groups={shown(groups)}: expected a number of groups, or a list of lists of {noun}s")
    members = list(itertools.chain.from_iterable(groups))
    for member in members:
        if not is_member(member):
            raise InvalidRequestError(f"groups: expected lists of {noun}s, got {type(member).__name__}")
    if len({key_of(member) for member in members}) < len(members):
        raise InvalidRequestError(f"groups: a {noun} is in more than one group, or twice in one")
    return members
