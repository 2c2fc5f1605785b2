# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through JAX: at once, and in functions that are compiled, on two ranks over
shared memory and on three over TCP.

The tables and the tests are the contract's own. What lies behind JAX's arrays is tested for the core, with all dtypes
and worlds. So these run a part of the dtypes, and in compiled functions fewer still, as each row is compiled; all of
them, also on two hosts, with THOROUGH=1, which `make check-all` sets.
"""

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
from support.frameworks import JAX, jax_world
from support.world import World, WorldPool

from horovod.core.native import DTYPE_NAMES

pytest.importorskip("jax", reason="not run: jax is not installed")

AT_ONCE = "jax"
DTYPES = {"jax": ("uint8", "bfloat16", "float32", "bool"), "jax_jit": ("float32", "bool")}
WHAT_TO_RUN = [
    (size, mode, dtype)
    for size in ((2, 3, 4) if THOROUGH else (2, 3))
    for mode in JAX
    for dtype in (DTYPE_NAMES if THOROUGH else DTYPES[mode])
    if size == 2 or (mode, dtype) == (AT_ONCE, "float32") or THOROUGH
]
# What is compiled has shapes that do not depend on other ranks, and each kind of operation its own names.
NOT_COMPILED = {"kind", "columns", "gathered dimensions", "gathered member", "alltoall columns", "alltoall dtype"}
MODES_AND_CASES = [
    (size, mode, case)
    for size in (2, 3)
    for mode in JAX
    for case in errors.DISAGREEMENTS
    if (mode == AT_ONCE or case not in NOT_COMPILED) and (size == 2 or THOROUGH)
]
NOT_JAXS = {"no tensor"}  # JAX has nothing in place


@pytest.fixture
def jax_worlds(worlds: WorldPool) -> Any:
    """In place of the pool, for the contract's tests: a world for each size whatever transport they ask for."""

    def world(size: int, env: Mapping[str, str] | None = None) -> World:
        transport = {3: "tcp", 4: "3+1"}.get(size)
        other = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"} if transport else {}
        return jax_world(worlds, size, **other)

    return world


@pytest.mark.parametrize(("size", "framework", "dtype"), WHAT_TO_RUN)
def test_results(jax_worlds: Any, size: int, framework: str, dtype: str) -> None:
    for wrong in jax_worlds(size).run(results.wrong_rows, framework, dtype):
        assert wrong == []


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bool", marks=pytest.mark.thorough)])
def test_results_over_sets(jax_worlds: Any, dtype: str) -> None:
    results.test_results_over_overlapping_sets_are_those_of_the_reference(jax_worlds, AT_ONCE, 3, "tcp", dtype)


def test_a_reducescatter(jax_worlds: Any) -> None:
    results.test_a_reducescatter_has_the_bits_of_the_allreduce(jax_worlds, AT_ONCE, "tcp")


def test_special_floats(jax_worlds: Any) -> None:
    results.test_special_floats_propagate_and_zeros_keep_their_sign(jax_worlds, AT_ONCE)


@pytest.mark.thorough
def test_many_in_flight(jax_worlds: Any) -> None:
    results.test_many_operations_in_flight_may_start_in_another_order_on_every_rank(jax_worlds, AT_ONCE)


def test_objects(jax_worlds: Any) -> None:
    results.test_objects_travel(jax_worlds, AT_ONCE, 3, "tcp")


@pytest.mark.parametrize(("size", "framework", "case"), MODES_AND_CASES)
def test_disagreements(jax_worlds: Any, size: int, framework: str, case: str) -> None:
    errors.test_every_rank_is_told_who_disagrees_about_what(jax_worlds, framework, size, "", case)


@pytest.mark.parametrize("case", sorted(set(errors.LOCAL_ERRORS) - NOT_JAXS))
def test_local_errors(jax_worlds: Any, case: str) -> None:
    errors.test_a_call_that_is_wrong_on_one_rank_fails_there_and_the_others_do_not_wait(
        jax_worlds, AT_ONCE, 2, "", case
    )


def test_names(jax_worlds: Any) -> None:
    errors.test_names_may_hold_any_text(jax_worlds, AT_ONCE)


def test_a_name_in_flight(jax_worlds: Any) -> None:
    errors.test_a_name_in_flight_is_refused_at_once_and_does_not_hurt_the_first(jax_worlds, AT_ONCE)


def test_what_cannot_be_pickled(jax_worlds: Any) -> None:
    errors.test_what_cannot_be_pickled_fails_on_all_ranks(jax_worlds, AT_ONCE)


@pytest.mark.parametrize("case", arguments.WRONG)
def test_wrong_arguments(jax_worlds: Any, case: str) -> None:
    arguments.test_a_wrong_argument_is_named_and_the_others_do_not_wait(jax_worlds, AT_ONCE, 2, "", case)


def test_numbers_in_arrays(jax_worlds: Any) -> None:
    arguments.test_a_number_may_come_as_an_array_of_one(jax_worlds, AT_ONCE)


@pytest.mark.parametrize("framework", JAX)
@pytest.mark.parametrize("size", [2, 3])
def test_join(jax_worlds: Any, size: int, framework: str) -> None:
    joining.test_every_allreduce_gets_zeros_from_who_has_joined(jax_worlds, framework, size, "")


def test_what_cannot_be_joined(jax_worlds: Any) -> None:
    joining.test_what_needs_every_rank_fails_on_those_who_call_it(jax_worlds, AT_ONCE, 3, "")


def test_join_in_sets(jax_worlds: Any) -> None:
    joining.test_sets_follow_the_same_rule(jax_worlds, AT_ONCE, "")


@pytest.mark.parametrize("framework", JAX)
@pytest.mark.parametrize("dtype", adasum.TOLERANCES)
def test_adasum(jax_worlds: Any, dtype: str, framework: str) -> None:
    adasum.test_every_form_gives_the_reference_s_result_on_all_ranks(jax_worlds, framework, 2, "", dtype)


def test_adasum_in_sets(jax_worlds: Any) -> None:
    adasum.test_a_set_of_a_power_of_two_has_it_and_others_say_so(jax_worlds, AT_ONCE, "")


def test_what_a_set_says_of_itself(jax_worlds: Any) -> None:
    process_sets.test_a_set_knows_its_members(jax_worlds, AT_ONCE, 3, "")


@pytest.mark.parametrize("case", process_sets.REFUSED)
def test_what_sets_refuse(jax_worlds: Any, case: str) -> None:
    process_sets.test_what_is_refused_on_all_ranks(jax_worlds, AT_ONCE, "", case)


def test_who_is_no_member(jax_worlds: Any) -> None:
    process_sets.test_a_rank_that_is_no_member_is_refused_alone(jax_worlds, AT_ONCE)


def test_errors_in_sets(jax_worlds: Any) -> None:
    process_sets.test_errors_in_a_set_reach_its_members(jax_worlds, AT_ONCE, "")
