# SPDX-License-Identifier: Apache-2.0
"""Rank and size as nodes, so that a graph may be built before the job's size is known."""

from __future__ import annotations

import tensorflow as tf

from horovod.core import context as contexts
from horovod.tensorflow import xla
from horovod.tensorflow.shim import operations

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "rank_within", "size_op"]


def _place(what: str, process_set: int, name: str | None) -> tf.Tensor:
    xla.refuse(f"{what}_op")
    known = contexts.current().sets.get(process_set) if process_set and contexts.is_initialized() else None
    # A set's id means another one after the next init: the node holds its ranks.
    number = process_set if known is None else known.lasting
    return operations().horovod_place(what=what, process_set=number, name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set at the time that the node runs (int32)."""
    return _place("size", process_set_id, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host at the time that the node runs (int32)."""
    return _place("local_size", 0, name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process' rank at the time that the node runs (int32)."""
    return _place("rank", 0, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process' rank on its host at the time that the node runs (int32)."""
    return _place("local_rank", 0, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this process is a member of the set at the time that the node runs, else 0 (int32)."""
    return _place("included", process_set_id, name)


def rank_within(process_set_id: int) -> tf.Tensor:
    """This process' rank in a process set at the time that the node runs (int32)."""
    return _place("rank", process_set_id, None)
