# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks, from Python, over every transport."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from support.world import WorldError, WorldPool

import horovod.core as hvd


def pass_on() -> list[int]:
    """Each rank sends to the next; rank 0 then receives one of each rank, from any."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in (np.float32, np.uint64, np.float16, bool):
        for shape in ((), (0,), (3, 5), (400_000,)):
            mine, theirs = np.full(shape, rank % 2, dtype), np.full(shape, 0, dtype)
            sent = hvd.send_async(mine, (rank + 1) % size, tag=-7)
            assert hvd.recv(theirs, (rank - 1) % size, tag=-7) == (rank - 1) % size
            hvd.synchronize(sent)
            assert np.array_equal(theirs, np.full(shape, (rank - 1) % size % 2, dtype))
    sources = []
    if rank:
        hvd.send(np.array([rank, rank]), 0)
    else:
        for _ in range(1, size):
            got = np.zeros((2, 1), np.int64)
            sources.append(hvd.recv(got))
            assert got.tolist() == [[sources[-1]]] * 2
    # A view with gaps goes through a copy.
    spread = np.zeros((4, 2), np.float32)
    if rank == 0:
        hvd.send(np.arange(8, dtype=np.float32).reshape(2, 4).T, 1)
    elif rank == 1:
        hvd.recv(spread[:, ::-1], 0)
        assert spread.tolist() == [[4, 0], [5, 1], [6, 2], [7, 3]]
    hvd.barrier()
    return sorted(sources)


@pytest.mark.parametrize("transport", ["3", "tcp", "2+1"])
def test_messages_arrive_whole(worlds: WorldPool, transport: str) -> None:
    env = {} if transport == "3" else {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert worlds(3, env).run(pass_on)[0] == [1, 2]


def wrong_calls() -> None:
    hvd.init()
    for part, call in {
        "itself": lambda: hvd.send(np.ones(1), hvd.rank()),
        "got 7": lambda: hvd.send(np.ones(1), 7),
        "rank=None": lambda: hvd.send(np.ones(1), None),
        "tag=2147483648": lambda: hvd.recv(np.ones(1), 0, tag=2**31),
        "rank='0'": lambda: hvd.recv(np.ones(1), "0"),
        "tag=1.5": lambda: hvd.send(np.ones(1), 0, tag=1.5),
    }.items():
        with pytest.raises(ValueError, match=part):
            call()
    hvd.barrier()


def test_wrong_calls_are_errors_here(worlds: WorldPool) -> None:
    worlds(3).run(wrong_calls)


def send_to_another_host() -> None:
    hvd.init()
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="(?s)no link to rank 2.*HOROVOD_DYNAMIC_PROCESS_SETS=1"):
            hvd.send(np.ones(1), 2)
    hvd.barrier()


def test_hosts_without_a_link_are_told_the_setting(worlds: WorldPool) -> None:
    worlds(3, {"HOROVOD_TRANSPORT": "2+1"}).run(send_to_another_host)


def wait_for_the_dead() -> None:
    hvd.init()
    if hvd.rank() == 1:
        time.sleep(0.3)
        os._exit(3)
    hvd.recv(np.zeros(3), None if hvd.rank() else 1)


def test_a_lost_sender_is_named(worlds: WorldPool) -> None:
    with pytest.raises(WorldError, match="rank 1"):
        worlds(3).run(wait_for_the_dead)
