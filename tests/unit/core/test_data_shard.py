# SPDX-License-Identifier: Apache-2.0
"""Each rank's share of row groups: disjoint, equal and complete, for any groups, ranks and epochs. Needs no pyarrow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.data import Group, Plan, shard
from horovod.data.parquet import own_share
from horovod.data.shuffle import pools_of
from horovod.spark.task.rows import moves

GROUPS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def rows_of(pieces: list) -> list[tuple[int, int]]:
    return [(piece.group, row) for piece in pieces for row in range(piece.start, piece.stop)]


@settings(deadline=None, max_examples=300)
@given(GROUPS, st.integers(1, 9), st.integers(0, 3), st.integers(0, 20), st.booleans())
def test_shares_are_disjoint_equal_and_complete(groups: list, size: int, seed: int, epoch: int, shuffle: bool) -> None:
    total = sum(groups)
    if total < size:
        with pytest.raises(ValueError, match=f"{total} rows?, fewer than the {size} ranks\nhint: .*num_proc"):
            shard(groups, 0, size, seed, epoch, shuffle)
        return
    shares = [rows_of(shard(groups, rank, size, seed, epoch, shuffle)) for rank in range(size)]
    assert {len(share) for share in shares} == {total // size}
    read = list(itertools.chain.from_iterable(shares))
    assert len(set(read)) == len(read) == total - total % size
    assert set(read) <= {(group, row) for group, rows in enumerate(groups) for row in range(rows)}


@settings(deadline=None, max_examples=50)
@given(GROUPS, st.integers(1, 7))
def test_the_rows_that_are_left_over_are_others_in_each_epoch(groups: list, size: int) -> None:
    total = sum(groups)
    left = total % size
    if total < size or left == 0:
        return
    read: list[set] = []
    for epoch in range(total // left):
        read.append({row for rank in range(size) for row in rows_of(shard(groups, rank, size, 0, epoch, False))})
    everything = {(group, row) for group, rows in enumerate(groups) for row in range(rows)}
    missed = [everything - rows for rows in read]
    assert sum(map(len, missed)) == len(set.union(*missed)) == left * len(read)


@settings(deadline=None, max_examples=100)
@given(GROUPS, st.integers(0, 3), st.booleans())
def test_a_ranks_own_groups_are_read_in_equal_shares_that_leave_out_other_rows(
    groups: list, left: int, shuffle: bool
) -> None:
    share = max(sum(groups) - left, 1)
    epochs = [rows_of(own_share(groups, share, 1, epoch, shuffle)) for epoch in range(sum(groups))]
    assert {(len(rows), len(set(rows))) for rows in epochs} == {(share, share)}
    assert len(set(itertools.chain.from_iterable(epochs))) == sum(groups)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_moved_rows_leave_each_rank_as_many_but_for_one(rows: list) -> None:
    after = list(rows)
    for giver, taker, count in moves(rows):
        assert count > 0 and rows[giver] > rows[taker]
        after[giver] -= count
        after[taker] += count
    assert max(after) - min(after) <= 1 and sum(after) == sum(rows)
    assert (moves(rows) == []) == (max(rows) - min(rows) <= 1)


def test_a_share_without_shuffling_keeps_the_order_and_a_border_group_is_cut() -> None:
    assert shard([4, 4, 2], 0, 2, shuffle=False) == [(0, 0, 4), (1, 0, 1)]
    assert shard([4, 4, 2], 1, 2, shuffle=False) == [(1, 1, 4), (2, 0, 2)]
    assert shard([3, 4], 0, 2, epoch=1, shuffle=False) == [(0, 1, 3), (1, 0, 1)]
    assert shard([3, 4], 1, 2, epoch=2, shuffle=False) == [(1, 2, 4), (0, 0, 1)]  # around the end


def test_groups_are_permuted_by_seed_and_epoch_and_equally_on_all_ranks() -> None:
    orders = {
        (seed, epoch): tuple(piece.group for piece in shard([5] * 8, 0, 1, seed, epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    halves = [piece.group for rank in range(2) for piece in shard([5] * 8, rank, 2, 1, 2)]
    assert tuple(halves) == orders[1, 2]


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 30))
def test_pools_cover_all_pieces(sizes: list, buffer: int) -> None:
    pools = pools_of(sizes, buffer)
    assert [index for first, end, _ in pools for index in range(first, end)] == list(range(len(sizes)))
    assert [rows for *_, rows in pools] == [sum(sizes[first:end]) for first, end, _ in pools]
    assert all(rows >= buffer for *_, rows in pools[:-1])


def test_a_plan_travels_as_json_without_its_secrets() -> None:
    plan = Plan((Group("s3://b/x.parquet", 1, 5, 400, 7),), {"x": "list<element: float>"}, {"secret": "hidden"})
    assert "hidden" not in plan.to_json()
    assert Plan.from_json(plan.to_json(), {"secret": "hidden"}) == plan
    assert (plan.rows, plan.nbytes) == (5, 400)


def test_a_rank_outside_of_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is outside of a world of 2 ranks"):
        shard([4], 2, 2)
