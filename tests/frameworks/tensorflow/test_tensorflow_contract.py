# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through TensorFlow: eagerly, in tf.function and in graphs of TensorFlow 1, on two
ranks over shared memory, on three over TCP, and on two hosts.

The tables and the tests are the contract's own. To make a graph for every row is slow, so the two modes that do run a
part of the dtypes, and worlds but the first a dtype for each mode; all of them with THOROUGH=1, which `make check-all`
sets.
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
from support.extent import THOROUGH, later
from support.frameworks import TENSORFLOW, tensorflow_world
from support.world import World, WorldPool

from horovod.core.native import DTYPE_NAMES

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

TRACED_DTYPES = DTYPE_NAMES if THOROUGH else ("float32", "bool")
EAGERLY = "tensorflow"
WHAT_TO_RUN = [
    pytest.param(size, mode, dtype, marks=[pytest.mark.oldest_tensorflow] if (size, dtype) == (2, "float32") else [])
    for size in (2, 3, 4)
    for mode in TENSORFLOW
    for dtype in (DTYPE_NAMES if mode == EAGERLY else TRACED_DTYPES)
    if size == 2 or (mode, dtype) == (EAGERLY, "float32") or THOROUGH
]
# In graphs two kinds of operations never meet: each has a name, which begins with its kind.
MODES_AND_CASES = [
    (size, mode, case)
    for size in (2, 3)
    for mode in TENSORFLOW
    for case in errors.DISAGREEMENTS
    if (mode == EAGERLY or case != "kind") and (size == 2 or mode == EAGERLY or THOROUGH)
]
# TensorFlow has other forms (a list of variables, nothing in flight), or takes what is refused elsewhere.
NOT_TENSORFLOWS = {"no tensor", "no list", "empty group", "gathered list", "splits dtype"}


@pytest.fixture
def tensorflow_worlds(worlds: WorldPool) -> Any:
    """In place of the pool, for the contract's tests: a world for each size whatever transport they ask for."""

    def world(size: int, env: Mapping[str, str] | None = None) -> World:
        transport = {3: "tcp", 4: "3+1"}.get(size)
        other = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"} if transport else {}
        return tensorflow_world(worlds, size, **other)

    return world


@pytest.mark.parametrize(("size", "framework", "dtype"), WHAT_TO_RUN)
def test_results(tensorflow_worlds: Any, size: int, framework: str, dtype: str) -> None:
    for wrong in tensorflow_worlds(size).run(results.wrong_rows, framework, dtype):
        assert wrong == []


@pytest.mark.parametrize("dtype", ["float32", later("bool")])
def test_results_over_sets(tensorflow_worlds: Any, dtype: str) -> None:
    results.test_results_over_overlapping_sets_are_those_of_the_reference(tensorflow_worlds, EAGERLY, 3, "tcp", dtype)


def test_special_floats(tensorflow_worlds: Any) -> None:
    results.test_special_floats_propagate_and_zeros_keep_their_sign(tensorflow_worlds, EAGERLY)


def test_objects(tensorflow_worlds: Any) -> None:
    results.test_objects_travel(tensorflow_worlds, EAGERLY, 3, "tcp")


@pytest.mark.parametrize(("size", "framework", "case"), MODES_AND_CASES)
def test_disagreements(tensorflow_worlds: Any, size: int, framework: str, case: str) -> None:
    errors.test_every_rank_is_told_who_disagrees_about_what(tensorflow_worlds, framework, size, "", case)


@pytest.mark.parametrize("case", sorted(set(errors.LOCAL_ERRORS) - NOT_TENSORFLOWS))
def test_local_errors(tensorflow_worlds: Any, case: str) -> None:
    errors.test_a_call_that_is_wrong_on_one_rank_fails_there_and_the_others_do_not_wait(
        tensorflow_worlds, EAGERLY, 2, "", case
    )


@pytest.mark.parametrize("case", arguments.WRONG)
def test_wrong_arguments(tensorflow_worlds: Any, case: str) -> None:
    arguments.test_a_wrong_argument_is_named_and_the_others_do_not_wait(tensorflow_worlds, EAGERLY, 2, "", case)


def test_numbers_in_arrays(tensorflow_worlds: Any) -> None:
    arguments.test_a_number_may_come_as_an_array_of_one(tensorflow_worlds, EAGERLY)


@pytest.mark.parametrize("framework", TENSORFLOW)
@pytest.mark.parametrize("size", [2, 3])
def test_join(tensorflow_worlds: Any, size: int, framework: str) -> None:
    joining.test_every_allreduce_gets_zeros_from_who_has_joined(tensorflow_worlds, framework, size, "")


def test_what_cannot_be_joined(tensorflow_worlds: Any) -> None:
    joining.test_what_needs_every_rank_fails_on_those_who_call_it(tensorflow_worlds, EAGERLY, 3, "")


def test_join_in_sets(tensorflow_worlds: Any) -> None:
    joining.test_sets_follow_the_same_rule(tensorflow_worlds, EAGERLY, "")


@pytest.mark.parametrize("dtype", adasum.TOLERANCES)
def test_adasum(tensorflow_worlds: Any, dtype: str) -> None:
    adasum.test_every_form_gives_the_reference_s_result_on_all_ranks(tensorflow_worlds, EAGERLY, 2, "", dtype)


def test_adasum_in_sets(tensorflow_worlds: Any) -> None:
    adasum.test_a_set_of_a_power_of_two_has_it_and_others_say_so(tensorflow_worlds, EAGERLY, "")


def test_what_a_set_says_of_itself(tensorflow_worlds: Any) -> None:
    process_sets.test_a_set_knows_its_members(tensorflow_worlds, EAGERLY, 3, "")


@pytest.mark.parametrize("case", process_sets.REFUSED)
def test_what_sets_refuse(tensorflow_worlds: Any, case: str) -> None:
    process_sets.test_what_is_refused_on_all_ranks(tensorflow_worlds, EAGERLY, "", case)


def test_who_is_no_member(tensorflow_worlds: Any) -> None:
    process_sets.test_a_rank_that_is_no_member_is_refused_alone(tensorflow_worlds, EAGERLY)


def test_errors_in_sets(tensorflow_worlds: Any) -> None:
    process_sets.test_errors_in_a_set_reach_its_members(tensorflow_worlds, EAGERLY, "")
