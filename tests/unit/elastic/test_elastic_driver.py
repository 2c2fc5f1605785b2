# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job: what it has done by the launcher, and when. A clock that a test sets is its time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from horovod.elastic import messages as m
from horovod.elastic.decide.job import BLAME_WORKER, LIVE, Rules
from horovod.elastic.drive.driver import Driver, Limits
from horovod.world.topology import Identity

LIMITS = Limits(slots_s=100.0, straggler_s=50.0, settle_s=1.0, start_s=30.0, join_s=60.0, cooldown=lambda _: None)


class Job:
    """The launcher and the rendezvous of a driver, which record its calls. Workers are ready when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: tuple[str, int], limits: Limits = LIMITS, **rules: Any):
        self.now = 1000.0
        monkeypatch.setattr("horovod.elastic.drive.driver.time.monotonic", lambda: self.now)
        self.killed: dict[int, str] = {}
        self.gone_ranks: list[tuple[int, str]] = []
        self.said: list[str] = []
        self.outcome = ""
        self.planned: dict[int, Identity] = {}
        self.words: list[tuple[int, str]] = []
        slots = sum(count for _, count in hosts)
        self.driver = Driver(Rules(**{"np": slots, "min_np": 1, **rules}), limits, self, self)
        self.driver.list_hosts(hosts)

    def ready(self, *numbers: int, left: int = 0, cut: int = 0, orderly: bool = False) -> Job:
        for number in numbers:
            self.driver.happens(m.Ready(number, left, (left, cut) if cut else m.NO_STATE, orderly))
        return self

    def at(self, seconds: float) -> None:
        """It is so late now, since the job began."""
        self.now = 1000.0 + seconds
        self.driver.on_time()

    @property
    def ranks(self) -> list[int]:
        record = self.driver.job.record
        return [member.number for member in record.members] if record else []

    # launcher

    def start(self, worker: m.Worker, planned: Identity, joins: bool) -> None:
        self.planned[worker.number] = planned

    def see_off(self, number: int) -> None: ...

    def kill(self, number: int, why: str) -> None:
        self.killed[number] = why

    def over(self, outcome: str, text: str) -> None:
        self.outcome = outcome

    # of the launcher: for the person; of the rendezvous: for a worker

    def tell(self, *told: Any) -> None:
        if len(told) == 1:
            self.said.append(told[0])
        else:
            self.words.append((told[0], told[1]["word"]))

    # rendezvous

    def lead(self, generation: int, places: list[dict[str, Any]]) -> None: ...

    def gone(self, rank: int, text: str) -> None:
        self.gone_ranks.append((rank, text))

    def record_failure(self, rank: int, text: str) -> None: ...

    def forget_worker(self, worker: int) -> None: ...


def test_one_in_reserve_is_planned_as_a_member_but_not_as_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 4), np=3, max_np=3, spares=1).ready(0, 1, 2)
    assert (job.planned[3].rank, job.planned[3].size, job.planned[3].local_rank) == (2, 3, 3)
    job.ready(3)
    assert job.said == ["worker 3 on a is ready after 0.0 s; it waits in reserve"]
    alone = Job(monkeypatch, ("a", 2), np=1, max_np=1, spares=1).ready(0)
    assert alone.planned[1].rank == 1, "it would believe that it is rank 0"


def test_who_makes_a_world_lost_may_be_in_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2)).ready(0, 1)
    job.driver.list_hosts([("a", 1)])
    job.ready(0, left=1, cut=3, orderly=True).ready(1, left=1, cut=3)
    assert job.ranks == [0] and job.words[-2:] == [(1, "stop"), (0, "world")]
    assert job.gone_ranks[0] == (1, "rank 1 (worker 1) has left generation 1")


def test_who_has_ended_with_success_is_gone_when_the_others_meet_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 3)).ready(0, 1, 2)
    job.driver.worker_ended(1, "exited with code 0", well=True)
    assert job.driver.job.phase == LIVE and not job.gone_ranks
    job.driver.worker_ended(2, "exited with code 3", well=False)
    assert {rank for rank, _ in job.gone_ranks} == {1, 2}
    job.ready(0, left=1)
    assert job.ranks == [0] and job.driver.job.generation == 2
    job.driver.worker_ended(0, "exited with code 0", well=True)
    assert job.outcome == "success"


def test_a_worker_that_does_not_get_ready_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 3)).ready(0, 2)
    job.at(20.0)
    job.driver.worker_ended(2, "exited with code 1", well=False)  # the last that has come; its slot is filled again
    job.at(30.0)
    assert job.killed == {1: "was ended: it was not ready within 30 s (--start-timeout)"}, "3 was started later"
    job.driver.worker_ended(1, "was ended", well=False)
    job.at(40.0)
    assert job.driver.next_time() is not None and list(job.killed) == [1]
    job.at(49.9)
    assert list(job.killed) == [1]
    job.at(75.0)
    assert len(job.killed) > 1


def test_a_joiner_that_does_not_get_ready_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 1)).ready(0)
    job.driver.list_hosts([("a", 3)])
    job.at(12.0)
    job.ready(2)
    assert job.said == ["worker 2 on a is ready after 12.0 s; it joins at the next commit"]
    job.at(59.0)
    assert not job.killed
    job.at(60.0)
    assert job.killed == {1: "was ended: it was not ready within 60 s (HOROVOD_ELASTIC_JOIN_SECONDS)"}


def test_workers_that_fail_at_every_start_are_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor before the first world: --elastic-timeout counts from the first slot that lacks."""
    limits = dataclasses.replace(LIMITS, cooldown=lambda _: 40.0)
    job = Job(monkeypatch, ("a", 1), ("b", 1), cooldown=True, limits=limits)
    for seconds in (0.0, 40.0, 80.0):
        job.at(seconds)
        worker = next(one.number for one in job.driver.job.workers if one.host == "b")
        job.driver.worker_ended(worker, "exited with code 1", well=False)
    job.at(99.9)
    assert job.outcome == ""
    job.at(100.0)
    assert job.outcome == "elastic-too-few-slots"


def test_slots_that_are_filled_in_vain_do_not_make_the_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2), min_np=2).ready(0, 1)
    job.driver.worker_ended(1, "exited with code 1", well=False)
    job.ready(0, left=1)
    for number, seconds in enumerate((10.0, 30.0, 60.0, 90.0), 2):
        job.at(seconds)
        job.driver.worker_ended(number, "exited with code 1", well=False)
        assert job.outcome == ""
    assert any("waiting for " in text and "(--elastic-timeout)" in text for text in job.said)
    job.at(100.0)
    assert job.outcome == "elastic-too-few-slots"


def test_a_host_that_fails_again_is_not_used_because_its_first_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(100.0, 50.0, 1.0, 30.0, 60.0, cooldown=lambda failures: 10.0 * failures)
    job = Job(monkeypatch, ("a", 1), ("b", 1), limits=limits, cooldown=True).ready(0, 1)
    job.driver.worker_ended(1, "was killed", well=False)
    job.at(5.0)
    for hosts in ([("a", 1)], [("a", 1), ("b", 1)]):  # a new one, by its name
        job.driver.list_hosts(hosts)
    job.driver.worker_ended(2, "was killed", well=False)
    job.at(10.0)
    assert ("b", m.WHOLE_HOST) in job.driver.job.blacklisted
    job.at(15.0)
    assert not job.driver.job.blacklisted


def test_what_stood_still_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2)).ready(0, 1).ready(0, left=1)
    job.now += 3600.0
    job.driver.put_off(3600.0)
    job.at(3649.0)
    assert not job.killed
    job.at(3650.0)
    assert job.killed == {1: "was ended: it did not leave its world within 50 s"}


def test_who_is_waited_for_is_asked_where_its_script_is(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(100.0, 200.0, 1.0, 30.0, 60.0, cooldown=lambda _: None)
    job = Job(monkeypatch, ("a", 3), limits=limits).ready(0, 1, 2).ready(0, left=1)
    job.at(59.0)
    assert "ask-stack" not in dict(job.words).values()
    job.ready(2, left=1).at(60.0)
    job.at(90.0)
    assert [number for number, word in job.words if word == "ask-stack"] == [1]
    job.driver.reports(m.Stack(1, "line 3"))
    assert job.said[-1] == "worker 1, which the others wait for, is at:\nline 3"
    job.ready(1, left=1)
    job.driver.happens(m.Finished(1, 2, (2, 1)))
    job.at(149.0)
    assert job.words[-1][1] != "ask-stack"
    job.at(150.0)
    assert sorted(job.words[-2:]) == [(0, "ask-stack"), (2, "ask-stack")]


def test_a_process_that_does_not_end_after_its_error_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2)).ready(0, 1)
    job.driver.reports(m.Raised(1, (1, 4), "ValueError: bad sample at train.py:3\nmore"))
    job.at(2.9)
    assert not job.said
    job.at(3.0)
    job.at(29.9)
    text = "worker 1 raised ValueError: bad sample at train.py:3"
    assert job.said == [f"{text}, but its process still runs: it is killed in 27 s"] and not job.killed
    job.at(30.0)
    assert job.killed == {1: "was killed: it ran on for 30 s after its error"}
    job.driver.worker_ended(1, job.killed[1], well=False)
    assert job.said[-1].startswith(
        "worker 1 on a was killed: it ran on for 30 s after its error (ValueError: bad sample at train.py:3); "
        "slot 1 of host a gets"
    )
    assert job.driver.next_time() is not None


def test_a_process_that_raised_is_not_spoken_of_when_the_job_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are being seen off then, long before its 30 s are over."""
    job = Job(monkeypatch, ("a", 3)).ready(0, 1, 2)
    for number in (0, 1, 2):
        job.driver.reports(m.Raised(number, (1, 4), "ValueError: bad sample at train.py:3"))
    assert job.outcome == "elastic-script" and job.driver.next_time() is None
    job.at(30.0)
    assert not job.said and not job.killed


def test_a_place_that_nobody_will_use_again_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2), blame=BLAME_WORKER).ready(0, 1)
    job.driver.worker_ended(1, "was killed by SIGKILL", well=False)
    assert job.said == ["worker 1 on a was killed by SIGKILL; slot 1 of host a gets another worker in 1 s"]
    job.driver.worker_ended(0, "was killed by SIGKILL", well=False)
    assert job.outcome == "elastic-state-lost" and len(job.said) == 1


def test_what_broke_a_world_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2)).ready(0, 1)
    for number in (0, 1):
        job.driver.happens(m.Ready(number, 1, m.NO_STATE, False, (), "HorovodInternalError: mine"))
    assert job.said[-1].startswith("generation 2: worker 0 reports HorovodInternalError: mine; 2 workers go on")


def test_hosts_that_wait_for_a_commit_are_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 2)).ready(0, 1)
    job.driver.list_hosts([("a", 1)])
    job.at(299.0)
    assert not job.said
    job.at(300.0)
    job.at(900.0)
    assert job.said == ["waiting for state.commit() or state.check_host_updates(): the hosts have changed"]


def test_only_the_last_losses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ("a", 8)).ready(*range(8))
    for generation, number in enumerate(range(7, 0, -1), 1):
        job.driver.worker_ended(number, f"broke {number}", well=False)
        job.ready(*range(number), left=generation, cut=1)
    assert job.driver.lost == 7 and len(job.driver.losses) == 5 and job.driver.losses[-1] == "worker 1 on a broke 1"


def test_a_worker_is_planned_by_its_slot_while_a_lower_one_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would choose the device of the worker that comes into the lower slot later."""
    job = Job(monkeypatch, ("a", 2), blame=BLAME_WORKER).ready(0, 1)
    job.driver.worker_ended(0, "exited with code 1", well=False)
    job.ready(1, left=1)
    job.driver.list_hosts([("a", 3)])
    assert job.ranks == [1]
    assert (job.planned[2].local_rank, job.planned[2].local_size) == (2, 3)
