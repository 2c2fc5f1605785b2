# SPDX-License-Identifier: Apache-2.0
"""The one table of names that torch 2.6 to 2.14 calls the methods of a process group by.

Python's and C++'s callers of one release may use different ones.
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["with_all_names"]

_OTHER_NAMES = {
    "all_gather_single": ("_allgather_base",),  # 2.13
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced",),  # 2.13
    "reduce_scatter_single": ("_reduce_scatter_base",),  # 2.13
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced",),  # 2.13
    "all_to_all_single": ("alltoall_base",),  # 2.13
    "recv_anysource": ("recvAnysource",),
    "rank": ("getRank",),
    "size": ("getSize",),
    "name": ("getBackendName", "_get_backend_name"),
    "_set_group_name": ("setGroupName",),
    "_set_group_desc": ("setGroupDesc",),
    "set_timeout": ("setTimeout", "_set_default_timeout"),
}

T = TypeVar("T", bound=type[Any])


def with_all_names(group: T) -> T:
    """A decorator of a class of process groups."""
    for name, others in _OTHER_NAMES.items():
        for other in others:
            setattr(group, other, getattr(group, name))
    return group
