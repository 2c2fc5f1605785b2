# SPDX-License-Identifier: Apache-2.0
"""Discovery of hosts: what scripts print, fail and hang with, what changes and what does not; and cooldowns."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import wait_until

from horovod.elastic.decide.cooldown import Cooldown
from horovod.elastic.drive.discovery import (
    DiscoveryError,
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    Poller,
    asked,
    parse,
)

Written = Callable[..., HostDiscoveryScript]


@pytest.fixture
def script(tmp_path: Path) -> Written:
    def write(text: str, slots: int | None = None, limit_s: float = 10.0) -> HostDiscoveryScript:
        path = tmp_path / "discover hosts.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return HostDiscoveryScript(str(path), slots, limit_s)

    return write


def test_a_script_prints_hosts_with_slots_or_without(script: Written) -> None:
    discovery = script("echo a:2; echo; echo '  b.example-1 '; echo c:0; echo a:2", slots=4)
    assert discovery.find_available_hosts_and_slots() == {"a": 2, "b.example-1": 4}
    assert script("true").find_available_hosts_and_slots() == {}


def test_a_command_line_works_like_a_script() -> None:
    assert HostDiscoveryScript("printf 'n1\\nn2\\n'", 1).find_available_hosts_and_slots() == {"n1": 1, "n2": 1}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("a:2\n\nb:two\n", r"the script printed 'b:two' in line 3, which is not a host"),
        ("-oProxyCommand=x:1\n", "which is not a host"),
        ("a b\n", "which is not a host"),
        ("Warning: no cluster\n", "which is not a host\nhint: a line for each host"),
        ("\ufffd\x00\n", "which is not a host"),
        ("a\n", "'a' in line 1: the number of slots is missing\nhint: print name:slots, or give --slots-per-host"),
        ("a:2\na:3\n", "'a:3' in line 2, but 2 slots for this host further up"),
    ],
)
def test_nonsense_is_quoted_with_its_line(output: str, text: str) -> None:
    with pytest.raises(DiscoveryError, match=text):
        parse(output, None, "the script")


@given(st.text())
def test_any_output_is_hosts_or_an_error(output: str) -> None:
    try:
        hosts = parse(output, 1, "the script")
    except DiscoveryError as error:
        assert str(error).startswith("the script printed ")
    else:
        assert all(name and not name.startswith("-") and slots > 0 for name, slots in hosts.items())


def test_a_script_that_fails_says_how_and_its_last_words(script: Written) -> None:
    with pytest.raises(DiscoveryError, match=r"discover hosts\.sh exited with code 3: 'no such cluster'"):
        script("echo a:1; echo first >&2; echo no such cluster >&2; exit 3").find_available_hosts_and_slots()
    with pytest.raises(DiscoveryError, match="was killed by signal 9"):
        script("kill -9 $$").find_available_hosts_and_slots()


def test_a_script_that_cannot_be_run_says_what_to_do(script: Written, tmp_path: Path) -> None:
    discovery = script("echo a:1")
    (tmp_path / "discover hosts.sh").chmod(0o644)
    if os.getuid() or not os.access(tmp_path / "discover hosts.sh", os.X_OK):
        with pytest.raises(DiscoveryError, match=r"code 126: .*denied.*\n.*chmod"):
            discovery.find_available_hosts_and_slots()
    with pytest.raises(DiscoveryError, match=r"code 127: .*not found.*\nhint: give its path"):
        HostDiscoveryScript("no_such_script.sh", 1).find_available_hosts_and_slots()


def gone(pid: int) -> bool:
    """Whether no process of this id runs; one that has ended may still stand in the list of its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_script_that_hangs_is_killed_with_all_that_it_started(script: Written, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(DiscoveryError, match=r"did not end within 0\.5 s, and was killed: 'asking'"):
        script(
            f"echo asking >&2; sleep 1000 & echo $$ $! > '{pids}'; wait", limit_s=0.5
        ).find_available_hosts_and_slots()
    wait_until(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))


def test_who_leaves_a_process_behind_has_printed_all_the_same(script: Written, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    discovery = script(f"echo a:1; sleep 1000 & echo $! > '{pid}'")
    try:
        assert discovery.find_available_hosts_and_slots() == {"a": 1}
    finally:
        os.kill(int(pid.read_text()), 9)


class Told(HostDiscovery):
    """A discovery of a user's, which says what a test tells it to."""

    def __init__(self, *answers: Any) -> None:
        self.answers: queue.Queue[Any] = queue.Queue()
        for answer in answers:
            self.answers.put(answer)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [None, ["a"], {"a": "2"}, {"a": -1}, {"a b": 1}, {"a:1": 1}, {3: 1}, {"a": True}])
def test_what_a_users_discovery_returns_is_checked(answer: Any) -> None:
    with pytest.raises(DiscoveryError, match=r"Told\.find_available_hosts_and_slots\(\) returned .*: expected a dict"):
        asked(Told(answer))


def test_what_a_users_discovery_raises_is_named() -> None:
    with pytest.raises(DiscoveryError, match=r"Told\.find.* raised ZeroDivisionError: by what"):
        asked(Told(ZeroDivisionError("by what")))
    with pytest.raises(DiscoveryError, match="NotImplementedError"):
        asked(HostDiscovery())


def test_fixed_hosts_can_be_set_anew() -> None:
    given = {"a": 1}
    hosts = FixedHosts(given)
    given["b"] = 2
    assert asked(hosts) == (("a", 1),)
    hosts.set({"c": 3, "d": 0})
    assert asked(hosts) == (("c", 3),)


@pytest.fixture
def polled() -> Iterator[Callable[..., tuple[Poller, Told, queue.Queue[Any]]]]:
    pollers: list[Poller] = []

    def make(*answers: Any) -> tuple[Poller, Told, queue.Queue[Any]]:
        told, heard = Told(*answers), queue.Queue[Any]()
        poller = Poller(told, 0.0, heard.put, lambda text: heard.put(f"warned: {text}"))
        pollers.append(poller)
        return poller, told, heard

    yield make
    for poller in pollers:
        poller._is_over.set()
        poller._discovery.answers.put({})  # type: ignore[attr-defined]
        poller.stop()


def test_the_first_failure_ends_the_start(polled: Any) -> None:
    poller, _, heard = polled(RuntimeError("no cluster"))
    with pytest.raises(DiscoveryError, match="no cluster"):
        poller.start()
    assert heard.empty() and not poller._thread.is_alive()


def test_a_poller_tells_changes_only_and_later_failures_keep_the_hosts(polled: Any) -> None:
    poller, told, heard = polled({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, OSError("x"), OSError("x"))
    assert poller.start() == (("a", 1), ("b", 2))
    assert heard.get() == (("a", 1),)
    assert "OSError: x\nthe hosts that were listed last stay" in heard.get()
    told.answers.put({"a": 1})
    assert heard.get() == "warned: the hosts can be found out again", "and once for two failures that are alike"
    told.answers.put({})
    assert heard.get() == ()
    told.answers.put({"c": 1})
    assert heard.get() == (("c", 1),)


def test_a_stop_ends_a_script_that_is_being_asked(script: Written, tmp_path: Path) -> None:
    running = tmp_path / "running"
    discovery = script(
        f"test -e '{running}.first' && {{ echo $$ > '{running}'; exec sleep 1000; }}; echo a:1", limit_s=1000
    )
    heard: list[Any] = []
    poller = Poller(discovery, 0.0, heard.append, heard.append)
    assert poller.start() == (("a", 1),)
    Path(f"{running}.first").touch()
    while not running.exists() or not running.read_text().strip():
        time.sleep(0.01)
    while poller._thread.is_alive():  # a machine that is busy may need more than its second
        poller.stop()
    assert heard == [] and gone(int(running.read_text()))


def test_cooldowns_double_and_stay_in_their_range() -> None:
    cooldown = Cooldown.of(10, 100)
    assert [cooldown.seconds(failures, lambda: 0.0) for failures in (1, 2, 3, 4, 99999)] == [20, 40, 80, 100, 100]
    assert cooldown.seconds(2, lambda: 0.5) == 45
    assert Cooldown.of(1, 3600).seconds(99999, lambda: 0.0) == 3600
    assert Cooldown.of(5, 5).seconds(1) == 5
    assert 20 <= cooldown.seconds(1) <= 30


@given(st.floats(1, 3600), st.floats(1, 3600), st.integers(1, 1 << 40), st.floats(0, 1))
def test_a_cooldown_is_within_its_range(first: float, second: float, failures: int, uniform: float) -> None:
    low, high = sorted((first, second))
    assert low <= Cooldown.of(low, high).seconds(failures, lambda: uniform) <= high


@pytest.mark.parametrize("range_s", [(0, 5), (10, 3601), (20, 10), (float("nan"), 5)])
def test_a_range_that_cannot_be_is_refused(range_s: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="--blacklist-cooldown-range .*expected two numbers"):
        Cooldown.of(*range_s)
