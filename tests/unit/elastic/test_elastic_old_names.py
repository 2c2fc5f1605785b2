# SPDX-License-Identifier: Apache-2.0
"""What scripts and platforms took from horovod.common.elastic and horovod.runner.elastic does what it did."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from horovod.common import elastic
from horovod.runner.elastic import discovery, driver, registration, rendezvous
from horovod.runner.elastic.settings import ElasticSettings
from horovod.runner.elastic.worker import HostsUpdatedRequest, HostUpdateResult, WorkerNotificationManager

NONE, REMOVED, ADDED, MIXED = HostUpdateResult(0), HostUpdateResult(1), HostUpdateResult(2), HostUpdateResult(3)


def manager(**host_slots: int) -> tuple[discovery.HostManager, discovery.FixedHosts]:
    hosts = discovery.FixedHosts(host_slots)
    return discovery.HostManager(hosts), hosts


def test_a_manager_says_what_has_changed_and_keeps_hosts_by_age() -> None:
    found, hosts = manager(b=2)
    assert found.current_hosts.count_available_slots() == 0
    assert found.update_available_hosts() == ADDED and found.update_available_hosts() == NONE
    changes: list[tuple[dict[str, int], HostUpdateResult]] = [
        ({"a": 4, "b": 2}, ADDED),
        ({"a": 3, "b": 2}, REMOVED),
        ({"b": 3, "a": 3}, ADDED),
        ({"b": 1, "c": 1, "a": 3}, MIXED),
    ]
    for host_slots, result in changes:
        hosts.set(host_slots)
        assert found.update_available_hosts() == result
    now = found.current_hosts
    assert now.host_assignment_order == ["b", "a", "c"] and now.available_hosts == {"a", "b", "c"}
    assert (now.get_slots("a"), now.get_slots("nowhere"), now.count_available_slots()) == (3, 0, 5)
    assert "'a': 3" in str(now)
    hosts.set({"a": 3})
    assert found.update_available_hosts() == REMOVED and found.current_hosts.host_assignment_order == ["a"]


def test_a_blacklisted_host_is_left_out_and_its_workers_hear_of_it() -> None:
    found, hosts = manager(a=2, b=2)
    found.update_available_hosts()
    before, event = found.current_hosts, found.get_host_event("a")
    assert not event.is_set() and found.get_host_event("a") is event
    found.blacklist("a")
    assert event.is_set() and found.is_blacklisted("a") and not found.is_blacklisted("b")
    assert before.available_hosts == {"a", "b"} and found.current_hosts.available_hosts == {"b"}
    assert found.current_hosts.count_available_slots() == 2
    assert found.get_host_event("a") is not event
    hosts.set({"a": 9, "b": 2})
    assert found.update_available_hosts() == NONE, "whatever becomes of it"


def test_a_host_comes_back_after_its_cooldown_as_the_youngest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(discovery.time, "monotonic", lambda: now[0])
    hosts = discovery.FixedHosts({"a": 1, "b": 1})
    found = discovery.HostManager(hosts, cooldown_range=(10, 50))
    found.update_available_hosts()
    for longest in (30, 50, 50):  # of the n-th failure
        found.blacklist("a")
        found.blacklist("a")  # another worker of the same host: the same failure
        now[0] += 19
        assert found.update_available_hosts() == NONE
        now[0] += longest - 18
        assert found.update_available_hosts() == ADDED and not found.is_blacklisted("a")
        assert found.current_hosts.host_assignment_order == ["b", "a"]
    state = discovery.HostState()
    state.blacklist()
    now[0] += 1e9
    assert not state.is_resurrected(), "without a range it is for ever"
    state.whitelist()
    assert not state.is_blacklisted()


@pytest.mark.parametrize("cooldown_range", [(0, 10), (1, 3601)])
def test_a_cooldown_range_has_limits(cooldown_range: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="from 1 to 3600"):
        discovery.HostState(cooldown_range)


def test_hosts_that_were_there_before_come_first() -> None:
    order = discovery.HostManager.order_available_hosts
    assert order(["d", "a", "c"], ["c", "b", "a"]) == ["c", "a", "d"]


def test_settings_are_attributes_and_travel_without_their_discovery() -> None:
    hosts = discovery.FixedHosts({"a": 1})
    settings: Any = ElasticSettings(hosts, 2, 4, 600, None, (10, 20), num_proc=3, nics={"eth0"})
    assert settings.discovery is hosts and settings.elastic and (settings.verbose, settings.num_proc) == (0, 3)
    sent: Any = pickle.loads(pickle.dumps(settings))
    assert sent.discovery is None and (sent.min_num_proc, sent.cooldown_range, sent.nics) == (2, (10, 20), {"eth0"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'min_np'"):
        ElasticSettings(hosts, 2, 4, 600, None, min_np=2)


def test_a_state_hears_what_the_notification_manager_is_told() -> None:
    state = elastic.ObjectState(lambda value: value, lambda: 0, epoch=0)
    elastic.notification_manager.init()
    elastic.notification_manager.register_listener(state)
    try:
        elastic.notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
    finally:
        elastic.notification_manager.remove_listener(state)
    elastic.notification_manager.handle_hosts_updated(2, HostUpdateResult.removed)
    assert isinstance(elastic.notification_manager, WorkerNotificationManager)
    with pytest.raises(RuntimeError) as caught:
        state.check_host_updates()
    assert caught.value.skip_sync is False  # type: ignore[attr-defined]
    state.forget_updates()
    state.check_host_updates()
    assert HostsUpdatedRequest(3) == HostsUpdatedRequest(3, HostUpdateResult.no_update)
    assert HostUpdateResult.mixed == HostUpdateResult.removed | HostUpdateResult.added


def test_what_is_inside_of_horovodrun_says_what_to_use_instead() -> None:
    hosts = discovery.FixedHosts({"a": 1})
    for make in (
        lambda: driver.ElasticDriver(None, hosts, 1, None),
        lambda: driver.ResultsRecorder(),
        lambda: registration.WorkerStateRegistry(None, discovery.HostManager(hosts)),
        lambda: rendezvous.create_rendezvous_handler(None),
    ):
        with pytest.raises(NotImplementedError, match=r"horovodrun --min-np .* subclass of .*HostDiscovery"):
            make()
    results = driver.Results(None, {"a[0]": (0, 1.5)})
    assert (results.error_message, results.worker_results) == (None, {"a[0]": (0, 1.5)})


def test_run_fn_runs_a_function_with_its_state() -> None:
    state = elastic.ObjectState(lambda value: value, lambda: 0, epoch=4)
    assert elastic.run_fn(lambda state, more: state.epoch + more, lambda: None)(state, 3) == 7
