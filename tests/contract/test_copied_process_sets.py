# SPDX-License-Identifier: Apache-2.0
"""Copies of process sets: an operation takes the very set that is registered, so a copy of it is that set."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from support.world import WorldPool

import horovod.core as hvd


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_registered_set_is_that_set(worlds: WorldPool, copied: Any) -> None:
    def run(copied: Any) -> float:
        hvd.init()
        first, second = hvd.add_process_set([0, 1]), hvd.add_process_set([2])
        try:
            assert copied(second) is second and copied(first) is first
            assert first.ranks == [0, 1] and first.process_set_id
            assert second.ranks == [2] and second.process_set_id
            mine = copied(first if first.included() else second)
            return float(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=mine)[0])
        finally:
            hvd.remove_process_set(first)
            hvd.remove_process_set(second)

    assert worlds(3, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(run, copied) == [2.0, 2.0, 1.0]


def test_a_set_that_nobody_has_registered_here_is_loaded_with_its_ranks(worlds: WorldPool) -> None:
    def run() -> bool:
        hvd.init()
        pair = hvd.add_process_set([0, 1])
        stored = pickle.dumps(pair)  # as in a checkpoint
        hvd.remove_process_set(pair)
        other = hvd.add_process_set([0, 2])
        loaded = pickle.loads(stored)
        assert loaded is not other and (loaded.ranks, loaded.process_set_id) == ([0, 1], None)
        assert other.ranks == [0, 2] and other.process_set_id
        assert hvd.add_process_set(loaded) is loaded
        hvd.remove_process_set(loaded)
        return hvd.remove_process_set(other)

    assert worlds(3, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(run) == [True] * 3


def test_a_set_is_loaded_before_init_as_well() -> None:
    loaded = pickled(hvd.ProcessSet([1, 0]))
    assert (loaded.ranks, loaded.process_set_id) == ([0, 1], None)
    assert pickled(hvd.global_process_set) is hvd.global_process_set
