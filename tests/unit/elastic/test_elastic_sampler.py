# SPDX-License-Identifier: Apache-2.0
"""No item is lost and none counts twice, whatever the ranks become in the middle of an epoch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.elastic.worker.sampler import Partition, order_of


def test_ranks_take_items_in_turns_and_the_last_turn_is_filled_from_the_start() -> None:
    partition = Partition([5, 1, 4, 0, 2], 2)
    assert [partition.items_of(rank) for rank in range(2)] == [[5, 4, 2], [1, 0, 5]]
    assert partition.items_per_rank == 3


def test_fewer_items_than_half_the_ranks_are_repeated_as_often_as_it_takes() -> None:
    assert [Partition([7, 8], 5).items_of(rank) for rank in range(5)] == [[7], [8], [7], [8], [7]]


def test_nothing_left_is_nothing_for_anybody() -> None:
    assert [Partition([], 3).items_of(rank) for rank in range(3)] == [[], [], []]


def test_the_order_is_that_of_random_with_seed_and_epoch() -> None:
    expected = list(range(10))
    random.Random(3 + 4).shuffle(expected)
    assert order_of(10, True, 3, 4) == expected
    assert order_of(4, False, 3, 4) == [0, 1, 2, 3]


STEP = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.booleans())


@given(st.integers(0, 60), st.lists(STEP, max_size=8), st.integers(1, 6))
def test_an_epoch_is_covered_once(length: int, worlds: list[tuple[int, int, int, bool]], last: int) -> None:
    """Worlds of any size take some batches of any size; in some, the last batch is undone by a loss."""
    order = order_of(length, True, 0, 1)
    counted: list[int] = []
    done = 0
    for ranks, batch, batches, lost in worlds:
        shares = [Partition(order[done:], ranks).items_of(rank) for rank in range(ranks)]
        for index in range(batches):
            taken = [share[index * batch : (index + 1) * batch] for share in shares]
            if len(taken[0]) < batch or (lost and index == batches - 1):
                break  # the rest of the epoch is for the next world; what is undone was never counted
            counted += [item for share in taken for item in share]
            done += batch * ranks
    final = Partition(order[done:], last)
    counted += [item for rank in range(last) for item in final.items_of(rank)]
    assert set(counted) == set(range(length))
    padding = len(counted) - length
    assert 0 <= padding < max([last, *(ranks * batch for ranks, batch, _, _ in worlds)], default=1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_ranks_take_in_step_is_a_beginning_of_what_remains(ranks: int) -> None:
    remaining = order_of(23, True, 5, 0)
    for taken in range(23 // ranks):
        shares = [Partition(remaining, ranks).items_of(rank)[:taken] for rank in range(ranks)]
        assert {item for share in shares for item in share} == set(remaining[: taken * ranks])
