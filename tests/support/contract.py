# SPDX-License-Identifier: Apache-2.0
"""The tests of tests/contract as one table, which each framework's file runs in worlds of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
from contract import test_adasum as adasum
from contract import test_arguments as arguments
from contract import test_errors as errors
from contract import test_join as joining
from contract import test_process_sets as process_sets
from contract import test_remembered_requests as remembered
from contract import test_results as results

from support.world import World, WorldPool

__all__ = ["adasums", "any_transport", "compiled", "disagreements", "mistakes", "row", "rows"]


def any_transport(started: Callable[..., World], worlds: WorldPool) -> Callable[..., World]:
    """In place of the pool: a world for each size whatever transport is asked for. `started(worlds, size, **variables)`
    makes it."""

    def world(size: int, env: Mapping[str, str] | None = None) -> World:
        transport = {3: "tcp", 4: "3+1"}.get(size)
        other = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"} if transport else {}
        return started(worlds, size, **other)

    return world


def disagreements(mode: str, size: int = 2, without: Collection[str] = ()) -> list[Any]:
    test = errors.test_every_rank_is_told_who_disagrees_about_what
    return [row(test, mode, size, "", case) for case in errors.DISAGREEMENTS if case not in without]


def mistakes(name: str, without: Collection[str] = ()) -> list[Any]:
    """Calls that are wrong on one rank."""
    wrong_on_one = errors.test_a_call_that_is_wrong_on_one_rank_fails_there_and_the_others_do_not_wait
    wrong_argument = arguments.test_a_wrong_argument_is_named_and_the_others_do_not_wait
    calls = [(wrong_on_one, errors.LOCAL_ERRORS), (wrong_argument, arguments.WRONG)]
    return [row(test, name, 2, "", case) for test, cases in calls for case in cases if case not in without]


def compiled(name: str) -> Any:
    """For a framework that compiles functions."""
    test = remembered.test_compiled_functions_give_what_they_would_give_alone
    return row(test, name, marks=pytest.mark.slow("compiles every operation for each value"))


def adasums(mode: str) -> list[Any]:
    test = adasum.test_every_form_gives_the_reference_s_result_on_all_ranks
    return [row(test, mode, 2, "", dtype) for dtype in adasum.TOLERANCES]


def rows(
    name: str, modes: Sequence[str] = (), without: Collection[str] = (), also: Sequence[Callable[..., None]] = ()
) -> list[Any]:
    """Parameters (test, arguments) for a framework, all but disagreements. `without`: cases that it does not have;
    `also`: tests that take its name alone."""
    modes = modes or [name]
    over_sets = results.test_results_over_overlapping_sets_are_those_of_the_reference
    return [
        row(over_sets, name, 3, "tcp", "float32"),
        row(over_sets, name, 3, "tcp", "bool", marks=pytest.mark.thorough),
        row(results.test_special_floats_propagate_and_zeros_keep_their_sign, name),
        row(results.test_objects_travel, name, 3, "tcp"),
        *mistakes(name, without),
        row(arguments.test_a_number_may_come_as_an_array_of_one, name),
        *(
            row(joining.test_every_allreduce_gets_zeros_from_who_has_joined, mode, size, "")
            for mode in modes
            for size in (2, 3)
        ),
        row(joining.test_what_needs_every_rank_fails_on_those_who_call_it, name, 3, ""),
        row(joining.test_sets_follow_the_same_rule, name, ""),
        *adasums(name),
        row(adasum.test_a_set_of_a_power_of_two_has_it_and_others_say_so, name, ""),
        row(remembered.test_a_call_gives_what_it_would_give_alone, name),
        row(process_sets.test_a_set_knows_its_members, name, 3, ""),
        *(row(process_sets.test_what_is_refused_on_all_ranks, name, "", case) for case in process_sets.REFUSED),
        row(process_sets.test_a_rank_that_is_no_member_is_refused_alone, name),
        row(process_sets.test_errors_in_a_set_reach_its_members, name, ""),
        *(row(test, name) for test in also),
    ]


def row(test: Callable[..., None], *given: Any, marks: Any = ()) -> Any:
    words = [test.__name__.removeprefix("test_"), *(str(each) for each in given if each != "")]
    return pytest.param(test, given, id="-".join(words), marks=marks)
