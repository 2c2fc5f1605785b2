# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through MXNet: on two ranks over shared memory, on three over TCP, and on two
hosts. The tables and the tests are the contract's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from contract import test_adasum as adasum
from contract import test_arguments as arguments
from contract import test_errors as errors
from contract import test_join as joining
from contract import test_process_sets as process_sets
from contract import test_results as results
from support.extent import THOROUGH
from support.world import World, WorldPool

from horovod.core.native import DTYPE_NAMES

pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

NOT_THERE = ("int16", "uint16", "uint32", "uint64")  # in MXNet
DTYPES = [name for name in DTYPE_NAMES if name not in NOT_THERE]
WHAT_TO_RUN = [(size, dtype) for size in (2, 3, 4) for dtype in DTYPES if size == 2 or dtype == "float32" or THOROUGH]
# MXNet has no barrier that meets an allgather (each call has a name, which begins with its kind), no handles and
# knows every dtype that it has, and takes an empty list.
NOT_MXNETS = {"kind", "empty group", "gathered list", "no list", "unsupported", "group of nothing"}
# What MXNet's operations have no keyword for.
NO_KEYWORD = {"compression", "compression of a group", "scattered compression", "scattered group"}


@pytest.fixture
def mxnet_worlds(worlds: WorldPool) -> Any:
    """In place of the pool, for the contract's tests: a world for each size whatever transport they ask for."""

    def world(size: int, env: Mapping[str, str] | None = None) -> World:
        transport = {3: "tcp", 4: "3+1"}.get(size, "shm")
        return worlds(size, {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"})

    return world


@pytest.mark.parametrize(("size", "dtype"), WHAT_TO_RUN)
def test_results(mxnet_worlds: Any, size: int, dtype: str) -> None:
    for wrong in mxnet_worlds(size).run(results.wrong_rows, "mxnet", dtype):
        assert wrong == []


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_results_over_sets(mxnet_worlds: Any, dtype: str) -> None:
    results.test_results_over_overlapping_sets_are_those_of_the_reference(mxnet_worlds, "mxnet", 3, "tcp", dtype)


def test_special_floats(mxnet_worlds: Any) -> None:
    results.test_special_floats_propagate_and_zeros_keep_their_sign(mxnet_worlds, "mxnet")


def test_objects(mxnet_worlds: Any) -> None:
    results.test_objects_travel(mxnet_worlds, "mxnet", 3, "tcp")


@pytest.mark.parametrize("case", sorted(set(errors.DISAGREEMENTS) - NOT_MXNETS))
@pytest.mark.parametrize("size", [2, 3])
def test_disagreements(mxnet_worlds: Any, size: int, case: str) -> None:
    errors.test_every_rank_is_told_who_disagrees_about_what(mxnet_worlds, "mxnet", size, "", case)


@pytest.mark.parametrize("case", sorted(set(errors.LOCAL_ERRORS) - NOT_MXNETS))
def test_local_errors(mxnet_worlds: Any, case: str) -> None:
    errors.test_a_call_that_is_wrong_on_one_rank_fails_there_and_the_others_do_not_wait(
        mxnet_worlds, "mxnet", 2, "", case
    )


@pytest.mark.parametrize("case", sorted(set(arguments.WRONG) - NO_KEYWORD))
def test_wrong_arguments(mxnet_worlds: Any, case: str) -> None:
    arguments.test_a_wrong_argument_is_named_and_the_others_do_not_wait(mxnet_worlds, "mxnet", 2, "", case)


def test_numbers_in_arrays(mxnet_worlds: Any) -> None:
    arguments.test_a_number_may_come_as_an_array_of_one(mxnet_worlds, "mxnet")


def test_average(mxnet_worlds: Any) -> None:
    errors.test_average_still_works_and_warns(mxnet_worlds, "mxnet")


@pytest.mark.parametrize("size", [2, 3])
def test_join(mxnet_worlds: Any, size: int) -> None:
    joining.test_every_allreduce_gets_zeros_from_who_has_joined(mxnet_worlds, "mxnet", size, "")


def test_what_cannot_be_joined(mxnet_worlds: Any) -> None:
    joining.test_what_needs_every_rank_fails_on_those_who_call_it(mxnet_worlds, "mxnet", 3, "")


def test_join_in_sets(mxnet_worlds: Any) -> None:
    joining.test_sets_follow_the_same_rule(mxnet_worlds, "mxnet", "")


@pytest.mark.parametrize("dtype", adasum.TOLERANCES)
def test_adasum(mxnet_worlds: Any, dtype: str) -> None:
    adasum.test_every_form_gives_the_reference_s_result_on_all_ranks(mxnet_worlds, "mxnet", 2, "", dtype)


def test_adasum_in_sets(mxnet_worlds: Any) -> None:
    adasum.test_a_set_of_a_power_of_two_has_it_and_others_say_so(mxnet_worlds, "mxnet", "")


def test_what_a_set_says_of_itself(mxnet_worlds: Any) -> None:
    process_sets.test_a_set_knows_its_members(mxnet_worlds, "mxnet", 3, "")


@pytest.mark.parametrize("case", process_sets.REFUSED)
def test_what_sets_refuse(mxnet_worlds: Any, case: str) -> None:
    process_sets.test_what_is_refused_on_all_ranks(mxnet_worlds, "mxnet", "", case)


def test_who_is_no_member(mxnet_worlds: Any) -> None:
    process_sets.test_a_rank_that_is_no_member_is_refused_alone(mxnet_worlds, "mxnet")


def test_errors_in_sets(mxnet_worlds: Any) -> None:
    process_sets.test_errors_in_a_set_reach_its_members(mxnet_worlds, "mxnet", "")
