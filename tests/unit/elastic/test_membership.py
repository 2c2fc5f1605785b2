# SPDX-License-Identifier: Apache-2.0
"""What the driver of elastic jobs decides, case by case: who is started, blamed, stopped, and who gets which rank.

test_membership_model.py has the protocol in all orders of events; this has what the model leaves out.
"""

from __future__ import annotations

import pytest
from support.elastic.membership import TWO_HOSTS, Driver

from horovod.elastic import messages as m
from horovod.elastic.decide.job import GATHER, LIVE, NO_HOST_LEFT, NO_WORLD, OVER, SCRIPT, SUCCESS, JobState, waits
from horovod.elastic.decide.ranks import identities


def test_the_first_world_has_all_that_were_started_in_the_order_of_hosts() -> None:
    driver = Driver()
    assert driver.started() == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert driver.job.phase == GATHER
    driver.all_ready()
    assert driver.job.phase == LIVE and driver.ranks == [0, 1, 2, 3]
    assert driver.record.sync and driver.record.base == (1, 0) and driver.record.reason == "the job starts"
    assert sorted(driver.told(m.WorldRecord)) == [0, 1, 2, 3]


def test_nothing_starts_before_there_are_np_slots_and_never_more_than_max_np() -> None:
    driver = Driver((("a", 2),), np=3, min_np=2, max_np=3)
    assert driver.started() == []
    wait = waits(driver.job, driver.rules)
    assert wait == ("1 more slot: 2 can be used, 3 needed (-np)", m.Timer.SLOTS)
    driver.on(m.Listed((("a", 2), ("b", 4))))
    assert driver.started() == [("a", 0), ("a", 1), ("b", 0)]
    driver.on(m.Listed((("a", 1), ("b", 4))))
    assert driver.told(m.Stop) == [1] and driver.started() == [("b", 1)], "the place of the stopped one is given on"


def test_those_in_reserve_replace_lost_workers_at_once() -> None:
    hosts = (("a", 1), ("b", 1), ("c", 1), ("d", 1))
    driver = Driver(hosts, np=2, max_np=2, spares=1, settle=True)
    assert driver.started() == [("a", 0), ("b", 0)], "the first world is made without them"
    driver.on(m.Ready(0, 0, m.NO_STATE), m.Ready(1, 0, m.NO_STATE))
    assert driver.started() == [("c", 0)]
    driver.on(m.Ready(2, 0, m.NO_STATE))
    assert driver.orders == () and waits(driver.job, driver.rules) is None, "it disturbs nobody"
    driver.ends(1)
    assert driver.started() == [("d", 0)], "another one takes its place in the reserve"
    driver.leave(0, orderly=False)
    assert driver.ranks == [0, 2] and driver.job.phase == LIVE
    driver.on(m.Ready(3, 0, m.NO_STATE), m.Finished(0, 2, (2, 1)), m.Finished(2, 2, (2, 1)))
    assert driver.outcome == SUCCESS and driver.told(m.Stop) == [3] and driver.told(m.Done) == [0, 2]


def test_who_is_ready_while_one_is_lacking_is_not_in_reserve() -> None:
    driver = Driver((("a", 1), ("b", 1)), np=2, max_np=2, spares=1, blame="worker", cooldown=True).all_ready()
    driver.ends(1)
    driver.leave(0, orderly=False)
    assert driver.ranks == [0]
    driver.on(m.Listed((("a", 1), ("b", 1), ("c", 1))))
    assert driver.started() == [("c", 0)]
    driver.on(m.Ready(2, 0, m.NO_STATE))
    assert driver.told(m.Update) == [0]


def test_one_in_reserve_takes_the_place_of_a_host_that_leaves() -> None:
    driver = Driver((("a", 1), ("b", 1), ("c", 1)), np=2, max_np=2, spares=1).all_ready()
    driver.on(m.Ready(2, 0, m.NO_STATE), m.Listed((("a", 1), ("c", 1))))
    assert driver.told(m.Update) == [0, 1]
    driver.leave(0, 1)
    assert driver.ranks == [0, 2] and driver.told(m.Stop) == [1]


def test_rank_0_has_the_newest_state_and_its_host_comes_first() -> None:
    driver = Driver().all_ready()
    driver.on(m.Ready(0, 1, (1, 4)), m.Ready(1, 1, (1, 4)), m.Ready(3, 1, (1, 5)), m.Ready(2, 1, (1, 4)))
    assert driver.ranks == [3, 2, 0, 1]
    assert driver.record.sync and driver.record.base == (1, 5)
    local = [
        (one.local_rank, one.local_size, one.cross_rank, one.cross_size) for one in identities(driver.record.members)
    ]
    assert local == [(1, 2, 0, 2), (0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)], "a worker keeps its device"


def test_equal_states_are_not_sent() -> None:
    driver = Driver().all_ready()
    driver.on(m.Listed((("a", 2),)))
    assert sorted(driver.told(m.Update)) == [0, 1, 2, 3]
    assert next(order.message.flags for order in driver.orders) == m.REMOVED  # type: ignore[union-attr]
    driver.leave(0, 1, 2, 3)
    assert driver.ranks == [0, 1] and not driver.record.sync and driver.record.base == (1, 1)
    assert driver.record.reason == "slots were removed" and driver.told(m.Stop) == [2, 3]


def test_a_joiner_disturbs_nobody_before_it_is_ready() -> None:
    driver = Driver((("a", 1),), settle=True).all_ready()
    driver.on(m.Listed((("a", 1), ("b", 2))))
    assert driver.started() == [("b", 0), ("b", 1)] and driver.told(m.Update) == []
    driver.on(m.Ready(1, 0, m.NO_STATE))
    assert driver.told(m.Update) == [] and waits(driver.job, driver.rules).timer == m.Timer.SETTLE  # type: ignore[union-attr]
    driver.on(m.Ready(2, 0, m.NO_STATE), m.Timeout(m.Timer.SETTLE))
    assert driver.told(m.Update) == [0]
    driver.leave(0)
    assert driver.ranks == [0, 1, 2] and driver.record.sync and driver.record.reason == "workers are added"


def test_a_joiner_that_has_gone_again_disturbs_nobody() -> None:
    driver = Driver((("a", 1),), settle=True).all_ready()
    driver.on(m.Listed((("a", 1), ("b", 1))), m.Ready(1, 0, m.NO_STATE))
    assert waits(driver.job, driver.rules).timer == m.Timer.SETTLE  # type: ignore[union-attr]
    driver.ends(1)
    assert waits(driver.job, driver.rules) is None
    driver.on(m.Timeout(m.Timer.SETTLE))
    assert driver.told(m.Update) == []


def test_two_that_cannot_connect_to_each_other_twice_go_on_without_one_of_them() -> None:
    driver = Driver((("a", 1), ("b", 1), ("c", 2))).all_ready()
    trouble = {1: (3,), 3: (1,), 2: (), 0: ()}
    for generation in (1, 2):
        assert driver.job.generation == generation
        driver.on(*(m.Ready(one, generation, (1, 0), False, trouble[one]) for one in range(4)))
    assert driver.orders[-1] == m.Kill(
        3, "was ended: it and worker 1 on b cannot connect to each other; look for a firewall"
    )
    assert driver.job.phase == GATHER, "its end is awaited"
    driver.ends(3)
    assert driver.job.generation == 3 and driver.ranks == [0, 1], "its host has the blame"
    assert driver.told(m.Stop) == [2]


def test_links_that_were_open_when_the_hosts_were_separated_do_not_count() -> None:
    """Then the first of three worlds in a row breaks without naming anybody."""
    driver = Driver((("a", 1), ("b", 1), ("c", 1))).all_ready()
    trouble = {0: (), 1: (2,), 2: (1,)}
    for generation in (1, 2, 3):
        assert driver.job.generation == generation
        driver.on(
            *(m.Ready(one, generation, (1, 0), False, trouble[one] if generation > 1 else ()) for one in range(3))
        )
    assert driver.orders[-1].worker == 2, "the job does not end"  # type: ignore[union-attr]
    driver.ends(2)
    assert driver.job.generation == 4 and driver.ranks == [0, 1]


def test_nobody_is_ended_if_too_few_were_left_then() -> None:
    driver = Driver((("a", 1), ("b", 1)), min_np=2).all_ready()
    for generation in (1, 2, 3):
        driver.on(*(m.Ready(one, generation, (1, 0), False, (1 - one,)) for one in range(2)))
    assert driver.outcome == NO_WORLD, "at once, and not after a long wait for slots"


def test_who_has_trouble_with_more_of_the_others_goes() -> None:
    driver = Driver((("a", 1), ("b", 1), ("c", 1))).all_ready()
    for generation in (1, 2):
        driver.on(*(m.Ready(one, generation, (1, 0), False, (0,) if one else ()) for one in range(3)))
    assert driver.orders[-1].worker == 0  # type: ignore[union-attr]


def test_the_last_that_holds_the_state_is_kept_whatever_trouble_it_has() -> None:
    driver = Driver((("a", 1),), blame="worker").all_ready()
    driver.on(m.Listed((("a", 1), ("b", 2))), m.Ready(1, 0, m.NO_STATE), m.Ready(2, 0, m.NO_STATE))
    driver.leave(0)
    for generation in (2, 3):
        driver.on(m.Ready(0, generation, (1, 1), False, (1, 2)))
        driver.on(*(m.Ready(one, generation, m.NO_STATE, False, (0,)) for one in (1, 2)))
    assert driver.orders[-1].worker == 2  # type: ignore[union-attr]


def test_trouble_with_connections_is_forgotten_when_a_world_has_had_a_cut() -> None:
    driver = Driver((("a", 1), ("b", 1))).all_ready()
    for generation in range(1, 6):
        cut = (generation, 1)
        driver.on(*(m.Ready(one, generation, cut, False, (1 - one,)) for one in range(2)))
        assert driver.job.generation == generation + 1


@pytest.mark.parametrize("trains", [False, True])
def test_three_workers_that_fail_alike_when_they_join_end_the_job(trains: bool) -> None:
    driver = Driver((("a", 2),), min_np=2, blame="worker", cooldown=True).all_ready()
    driver.leave(0, 1, orderly=False)
    for number in (1, 2, 3):
        if number > 1:
            driver.on(m.Raised(number, m.NO_STATE, "TypeError: x"))
        driver.ends(number)
        driver.on(m.CooledDown(("a", 1)), m.Ready(number + 1, 0, m.NO_STATE))
        driver.on(m.Ready(0, driver.job.generation, (driver.job.generation if trains else 1, 1)))
    if trains:
        assert driver.job.raised == (), "there was a cut in between: the job is well"
        return
    assert driver.on(m.Raised(4, m.NO_STATE, "TypeError: another")) == []
    driver.on(m.Raised(4, m.NO_STATE, "TypeError: x"))
    assert driver.outcome == SCRIPT
    assert driver.orders[-1].text == "workers 2, 3 and 4 raised the same exception when they joined: TypeError: x"  # type: ignore[union-attr]


def test_a_removed_place_that_comes_back_before_the_cut_changes_nothing_but_the_generation() -> None:
    driver = Driver().all_ready()
    driver.on(m.Listed((("a", 2),)), m.Listed(TWO_HOSTS))
    assert driver.started() == []
    driver.leave(0, 1, 2, 3)
    assert driver.ranks == [0, 1, 2, 3] and driver.record.generation == 2 and not driver.record.sync


def test_a_failure_leaves_the_whole_host_and_stops_its_other_workers_in_order() -> None:
    driver = Driver().all_ready()
    driver.ends(3)
    assert m.Blacklist(("b", m.WHOLE_HOST), 1) in driver.orders
    assert sorted(driver.told(m.Lost)) == [0, 1, 2] and driver.told(m.Stop) == []
    driver.leave(0, 1, 2, cut=7, orderly=False)
    assert driver.ranks == [0, 1] and driver.told(m.Stop) == [2]
    assert driver.record.reason == "worker 3 on b was killed (SIGKILL)"


def test_a_host_that_has_left_discovery_and_returns_is_a_new_one() -> None:
    driver = Driver((("a", 1), ("b", 1))).all_ready()
    driver.ends(0)
    driver.leave(1, orderly=False)
    assert driver.ranks == [1] and driver.started() == []
    driver.on(m.Listed((("b", 1),)), m.Listed((("a", 1), ("b", 1))))
    assert driver.started() == [("a", 0)] and driver.job.failures == ()
    assert driver.job.hosts == (("b", 1), ("a", 1)), "oldest first"


def test_a_host_whose_time_is_over_is_used_again() -> None:
    driver = Driver((("a", 1), ("b", 1)), cooldown=True).all_ready()
    driver.ends(0)
    assert driver.started() == []
    driver.on(m.CooledDown(("a", m.WHOLE_HOST)))
    assert driver.started() == [("a", 0)]


def test_by_worker_the_slot_is_filled_again_until_the_host_is_to_blame() -> None:
    driver = Driver(blame="worker").all_ready()
    for failures, (number, at_s) in enumerate([(3, 0.0), (4, 250.0), (5, 299.0)], 1):
        driver.ends(number, at_s=at_s)
        whole = failures == 3
        place = ("b", m.WHOLE_HOST if whole else 1)
        assert m.Blacklist(place, failures) in driver.orders
        driver.on(m.CooledDown(place))
        assert driver.started() == [("b", 1)]
        number = driver.job.workers[-1].number
        driver.on(m.Ready(number, 0, m.NO_STATE))
    driver.ends(6, at_s=1000.0)
    assert m.Blacklist(("b", 1), 1) in driver.orders, "the others are long ago"


def test_a_failed_start_is_the_hosts_fault() -> None:
    driver = Driver(blame="worker")
    driver.ends(2)
    assert m.Blacklist(("b", m.WHOLE_HOST), 1) in driver.orders and driver.told(m.Stop) == [3]


def test_the_last_host_is_not_left_while_somebody_there_goes_on() -> None:
    driver = Driver((("a", 3),)).all_ready()
    driver.ends(2)
    assert m.Blacklist(("a", 2), 1) in driver.orders and driver.job.phase == GATHER
    driver.leave(0, 1, orderly=False)
    assert driver.ranks == [0, 1]


def test_workers_that_fail_everywhere_at_their_start_end_the_job() -> None:
    driver = Driver((("a", 1), ("b", 1)))
    driver.ends(0)
    assert driver.outcome == ""
    driver.ends(1)
    assert driver.outcome == "elastic-no-host-left" and driver.job.phase == OVER
    patient = Driver((("a", 1), ("b", 1)), cooldown=True)
    patient.ends(0, 1)
    assert patient.outcome == "" and waits(patient.job, patient.rules).timer == m.Timer.SLOTS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("is_ready", "what"),
    [(False, "no worker has got to hvd.init()"), (True, "workers have failed on every host (a, b)")],
)
def test_the_end_says_whether_any_worker_has_got_to_init(is_ready: bool, what: str) -> None:
    driver = Driver((("a", 1), ("b", 1)))
    if is_ready:
        driver.on(m.Ready(0, 0, m.NO_STATE))
    driver.ends(1, 0)
    text = f"{what}: worker 1 on b was killed (SIGKILL) and worker 0 on a was killed (SIGKILL)"
    assert m.End(NO_HOST_LEFT, text) in driver.orders


def test_a_host_that_was_removed_is_not_blamed() -> None:
    driver = Driver().all_ready()
    driver.on(m.Listed((("a", 2),)))
    driver.ends(2)
    assert not any(isinstance(order, m.Blacklist) for order in driver.orders)


def test_a_removed_holder_of_the_state_stays_for_one_more_world() -> None:
    driver = Driver((("a", 1), ("b", 1))).all_ready()
    driver.on(m.Listed((("c", 1),)))
    driver.leave(0, 1)
    assert driver.job.phase == GATHER, "nobody could take the state"
    driver.on(m.Ready(2, 0, m.NO_STATE))
    assert driver.ranks == [0, 2] and driver.record.sync and driver.told(m.Stop) == [1]
    assert sorted(driver.told(m.Update)) == [0, 2], "it leaves at the next cut"
    driver.leave(0, 2)
    assert driver.ranks == [2] and not driver.record.sync and driver.told(m.Stop) == [0]


@pytest.mark.parametrize("restart", [False, True])
def test_without_a_holder_the_state_is_lost_or_all_start_afresh(restart: bool) -> None:
    driver = Driver((("a", 1), ("b", 1)), restart=restart, blame="worker", cooldown=True).all_ready()
    driver.leave(0, 1, cut=3)
    driver.on(m.Listed((("a", 1), ("b", 1), ("c", 1))), m.Ready(2, 0, m.NO_STATE))
    driver.ends(0, 1)
    assert driver.outcome == ("" if restart else "elastic-state-lost")
    if restart:
        assert driver.ranks == [2] and driver.record.base == (3, 0) and driver.record.sync
        assert driver.record.reason.endswith("no worker holds the state: all start over")


def test_members_that_never_had_a_cut_hold_the_state_all_the_same() -> None:
    driver = Driver((("a", 1), ("b", 1))).all_ready()
    driver.ends(0)
    driver.on(m.Ready(1, 1, m.NO_STATE))
    assert driver.ranks == [1] and driver.record.base == (2, 0)


def test_with_a_reset_limit_of_0_no_change_is_allowed() -> None:
    driver = Driver((("a", 1), ("b", 1)), reset_limit=0).all_ready()
    assert driver.record.generation == 1 and driver.outcome == ""
    driver.on(m.Listed((("a", 1),)))
    driver.leave(0, 1)
    assert driver.outcome == "elastic-reset-limit"


def test_the_reset_limit_ends_the_job() -> None:
    driver = Driver((("a", 1), ("b", 1)), reset_limit=1).all_ready()
    driver.on(m.Listed((("a", 1),)))
    driver.leave(0, 1)
    assert driver.record.generation == 2
    driver.on(m.Listed((("a", 1), ("b", 1))), m.Ended(1, "exited with code 0", 0.0), m.Ready(2, 0, m.NO_STATE))
    driver.leave(0)
    assert driver.outcome == "elastic-reset-limit" and "--reset-limit 1 allows" in driver.orders[-1].text  # type: ignore[union-attr]


def test_members_that_do_not_come_are_killed_and_only_then_is_there_a_new_world() -> None:
    driver = Driver().all_ready()
    driver.leave(0, 1, 3, orderly=False)
    assert waits(driver.job, driver.rules) == ("workers of generation 1: 2 on b", m.Timer.STRAGGLERS)
    assert driver.on(m.Timeout(m.Timer.STRAGGLERS)) == [m.Kill(2)] and driver.job.phase == GATHER
    driver.ends(2)
    assert driver.ranks == [0, 1]


def test_a_wait_for_the_only_ones_with_the_state_says_so() -> None:
    driver = Driver((("a", 1),), max_np=2).all_ready()
    driver.on(m.Listed((("a", 1), ("b", 1))), m.Ready(1, 0, m.NO_STATE))
    driver.leave(0)
    assert driver.ranks == [0, 1] and driver.record.base == (1, 1)
    driver.on(m.Ready(1, 2, m.NO_STATE, False))  # its synchronisation has failed
    wait = waits(driver.job, driver.rules)
    assert wait == ("workers of generation 2: 0 on a; no other worker has the state", m.Timer.STRAGGLERS)


def test_too_few_slots_for_too_long_end_the_job_with_the_flag() -> None:
    driver = Driver((("a", 1), ("b", 1)), min_np=2).all_ready()
    driver.ends(1)
    driver.leave(0, orderly=False)
    driver.on(m.Timeout(m.Timer.STRAGGLERS))
    assert driver.orders == (), "a timer that is not awaited does not count"
    driver.on(m.Timeout(m.Timer.SLOTS))
    assert driver.outcome == "elastic-too-few-slots" and driver.told(m.Stop) == [0]
    assert "1 can be used, 2 needed (--min-np)" in driver.orders[-1].text  # type: ignore[union-attr]


def test_success_is_said_by_all_members_and_an_exit_is_none() -> None:
    driver = Driver((("a", 1), ("b", 1))).all_ready()
    driver.on(m.Finished(0, 1, (1, 9)))
    assert driver.orders == ()
    driver.on(m.Ended(1, "exited with code 0", 0.0))
    assert driver.ranks == [0] and driver.record.generation == 2, "the one that has finished does the rest alone"
    driver.on(m.Finished(0, 2, (1, 9)))
    assert driver.outcome == "success" and driver.told(m.Done) == [0]
    driver.on(m.Finished(0, 2, (1, 9)))
    assert driver.told(m.Done) == [0], "it may have missed the answer"


def test_the_same_exception_of_two_workers_at_one_cut_ends_the_job_with_its_text() -> None:
    driver = Driver().all_ready()
    error = "ZeroDivisionError: division by zero (train.py:12)"
    driver.on(
        m.Raised(0, (1, 3), error), m.Raised(0, (1, 3), error), m.Raised(1, (1, 4), error), m.Raised(2, (1, 3), "x")
    )
    assert driver.outcome == ""
    driver.on(m.Raised(3, (1, 3), error))
    assert driver.outcome == "elastic-script" and error in driver.orders[-1].text  # type: ignore[union-attr]


def test_workers_that_have_no_state_yet_do_not_end_the_job_of_those_that_train() -> None:
    driver = Driver((("a", 1), ("b", 2)), np=1).all_ready()
    driver.leave(0, 1, 2)
    driver.on(m.Listed((("a", 1), ("b", 4))))
    error = "RuntimeError: CUDA error"
    driver.on(m.Raised(3, m.NO_STATE, error), m.Raised(4, m.NO_STATE, error), m.Raised(77, (1, 1), error))
    assert driver.outcome == "" and driver.job.phase == LIVE
    first = Driver().all_ready()
    first.on(m.Raised(0, m.NO_STATE, error), m.Raised(1, m.NO_STATE, error))
    assert first.outcome == "elastic-script", "nobody had a state, so all were at the same place"


def test_a_worker_whose_process_ended_with_success_is_in_no_later_world() -> None:
    driver = Driver((("a", 3),)).all_ready()
    driver.on(m.Left(1))
    assert driver.orders == () and waits(driver.job, driver.rules) is None, "the others may go on alone"
    driver.leave(0, 2, orderly=False)
    assert driver.job.phase == GATHER, "its end has to be seen first"
    driver.ends(1)
    assert driver.ranks == [0, 2]
    driver.on(m.Left(0), m.Left(2))
    assert driver.outcome == "success"


def test_members_that_do_not_finish_although_others_have_end_the_job() -> None:
    driver = Driver((("a", 2),)).all_ready()
    driver.on(m.Finished(0, 1, (1, 9)))
    wait = waits(driver.job, driver.rules)
    text = "the end of training in workers 1 on a; it has ended in workers 0 on a"
    assert wait == (text, m.Timer.ENDS)
    driver.on(m.Timeout(m.Timer.ENDS))
    assert driver.outcome == "elastic-script" and text in driver.orders[-1].text  # type: ignore[union-attr]


def test_worlds_that_break_by_themselves_end_the_job_unless_there_is_a_commit_between() -> None:
    driver = Driver((("a", 2),)).all_ready()
    for state in (m.NO_STATE, (1, 0), (3, 2), (3, 2)):
        driver.on(*(m.Ready(number, driver.record.generation, state) for number in (0, 1)))
        assert driver.job.phase == LIVE
    driver.on(*(m.Ready(number, 5, (3, 2)) for number in (0, 1)))
    assert driver.job.phase == LIVE
    driver.on(*(m.Ready(number, 6, (3, 2)) for number in (0, 1)))
    assert driver.outcome == "elastic-no-world"


def test_too_few_that_are_ready_end_the_job_as_too_few_slots_do() -> None:
    driver = Driver((("a", 2),), min_np=2).all_ready()
    driver.ends(1)
    driver.leave(0, orderly=False)
    driver.on(m.CooledDown(("a", 1)))
    assert waits(driver.job, driver.rules) == ("workers that start or end: 2 on a", m.Timer.STARTS)
    driver.on(m.Timeout(m.Timer.STARTS))
    assert driver.outcome == "elastic-too-few-slots"


def test_when_the_last_holder_ends_before_another_one_comes_that_one_starts_afresh() -> None:
    driver = Driver((("a", 1), ("b", 1)), restart=True).all_ready()
    driver.on(m.Listed((("a", 1), ("b", 1), ("c", 1))), m.Ready(2, 0, m.NO_STATE))
    driver.leave(0, 1, cut=3)
    assert driver.ranks == [0, 1, 2]
    driver.ends(0, 1)
    driver.on(m.Ready(2, 2, m.NO_STATE))
    assert driver.ranks == [2] and driver.record.base == (3, 0)


EVENTS = [
    m.Ready(0, 1, (1, 1)),
    m.Ready(0, 0, m.NO_STATE),
    m.Ready(0, 1, (1, 1), True),
    m.Ready(77, 0, m.NO_STATE),
    m.Finished(0, 1, (1, 1)),
    m.Attached(0, 1),
    m.Raised(0, (1, 1), "E"),
    m.Left(0),
    m.Left(77),
    m.Ended(0, "ended", 0.0),
    m.Ended(77, "ended", 0.0),
    m.Listed(()),
    m.Listed((("z", 3),)),
    m.CooledDown(("a", m.WHOLE_HOST)),
    *(m.Timeout(timer) for timer in m.Timer),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("phase", ["starting", "live", "gathering", "over"])
def test_every_event_is_legal_in_every_phase(event: m.Event, phase: str) -> None:
    driver = Driver()
    if phase != "starting":
        driver.all_ready()
    if phase == "gathering":
        driver.leave(1)
    if phase == "over":
        driver.on(*(m.Finished(number, 1, (1, 1)) for number in range(4)))
    before = driver.job
    driver.on(event)
    driver.on(event)
    assert isinstance(driver.job, JobState)
    if phase == "over":
        assert driver.job.phase == OVER and not driver.started() and not driver.told(m.WorldRecord)
    if isinstance(event, m.Ended) and event.worker == 77:
        assert driver.job == before, "nobody knows it"
