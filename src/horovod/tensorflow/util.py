# SPDX-License-Identifier: Apache-2.0
"""Variables as keys of dictionaries and members of sets, which they are not themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["refs_to_vars", "vars_to_refs"]


def vars_to_refs(vars: Any) -> Any:
    """The references of variables: a list becomes a tuple, nested ones likewise."""
    if isinstance(vars, Sequence):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables behind references: a tuple becomes a list, nested ones likewise."""
    if isinstance(refs, (tuple, list)):
        return [refs_to_vars(reference) for reference in refs]
    return refs.deref()
