# SPDX-License-Identifier: Apache-2.0
"""Old import name of discovery; and Horovod's account of hosts, for platforms that keep one.

Our launcher uses none: elastic/decide/membership.py decides. No step of a gradient's way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

from horovod.elastic.decide.cooldown import LONGEST_S, SHORTEST_S, Cooldown
from horovod.elastic.drive.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.elastic.worker.notices import HostUpdateResult

__all__ = [
    "DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS",
    "DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS",
    "DiscoveredHosts",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostManager",
    "HostState",
]

DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = SHORTEST_S
DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS = LONGEST_S


class HostState:
    """A host on the blacklist or not, and the event that ends its workers. cooldown_range: None: for ever."""

    def __init__(self, cooldown_range: tuple[int, int] | None = None) -> None:
        self._cooldown = None if cooldown_range is None else Cooldown.of(*cooldown_range)
        self._event = threading.Event()
        self._failures = 0
        self._is_blacklisted = False
        self._until_s = float("inf")

    def get_event(self) -> threading.Event:
        """The event; another one if it has been set."""
        if self._event.is_set():
            self._event = threading.Event()
        return self._event

    def set_event(self) -> None:
        self._event.set()

    def blacklist(self) -> None:
        """The host has failed: it is left alone, and its workers are to end. Several of them are one failure."""
        if not self._is_blacklisted:
            self._is_blacklisted = True
            self._failures += 1
            if self._cooldown is not None:
                self._until_s = time.monotonic() + self._cooldown.seconds(self._failures)
        self.set_event()

    def whitelist(self) -> None:
        """The host may be used again."""
        self._is_blacklisted = False

    def is_blacklisted(self) -> bool:
        return self._is_blacklisted

    def is_resurrected(self) -> bool:
        """True if it is blacklisted, and its cooldown is over."""
        return self._is_blacklisted and time.monotonic() > self._until_s


class DiscoveredHosts:
    """Hosts with their slots, oldest first. It does not change, but for update()."""

    def __init__(self, host_slots: Mapping[str, int], host_assignment_order: Iterable[str]) -> None:
        self._host_slots = dict(host_slots)
        self._order = list(host_assignment_order)

    @property
    def host_slots(self) -> dict[str, int]:
        return self._host_slots

    @property
    def available_hosts(self) -> set[str]:
        return set(self._order)

    @property
    def host_assignment_order(self) -> list[str]:
        return self._order

    def get_slots(self, host: str) -> int:
        return self._host_slots.get(host, 0)

    def count_available_slots(self) -> int:
        """Of all hosts that may be used."""
        return sum(map(self.get_slots, self._order))

    def update(self, hosts_state: Mapping[str, HostState]) -> DiscoveredHosts:
        """Leaves out hosts that are blacklisted. Returns itself."""
        self._order = [host for host in self._order if not _is_left(hosts_state, host)]
        return self

    def __str__(self) -> str:
        return f"slots: {self._host_slots} order: {self._order}"


class HostManager:
    """The hosts of a discovery, without those that have failed. May be used from any thread."""

    def __init__(self, discovery: HostDiscovery, cooldown_range: tuple[int, int] | None = None) -> None:
        self._discovery = discovery
        self._cooldown_range = cooldown_range
        self._states: dict[str, HostState] = {}
        self._current = DiscoveredHosts({}, [])
        self._lock = threading.Lock()

    @property
    def current_hosts(self) -> DiscoveredHosts:
        with self._lock:
            return DiscoveredHosts(self._current.host_slots, self._current.host_assignment_order).update(self._states)

    def update_available_hosts(self) -> HostUpdateResult:
        """Asks the discovery. Returns what has changed: more slots count as added, and so does a cooldown's end."""
        found = self._discovery.find_available_hosts_and_slots()
        with self._lock:
            result = HostUpdateResult.no_update
            for host, state in self._states.items():
                if host in found and state.is_resurrected():
                    state.whitelist()
                    result |= HostUpdateResult.added
            before = self._current.host_slots
            for host in {*before, *found}:
                if found.get(host, 0) != before.get(host, 0) and not _is_left(self._states, host):
                    grows = found.get(host, 0) > before.get(host, 0)
                    result |= HostUpdateResult.added if grows else HostUpdateResult.removed
            usable = [host for host in found if not _is_left(self._states, host)]
            self._current = DiscoveredHosts(
                found, self.order_available_hosts(usable, self._current.host_assignment_order)
            )
            return result

    def blacklist(self, host: str) -> None:
        """The host has failed. It loses its place in the order."""
        with self._lock:
            self._state_of(host).blacklist()
            self._current = DiscoveredHosts(self._current.host_slots, self._current.host_assignment_order)
            self._current.update(self._states)

    def is_blacklisted(self, host: str) -> bool:
        with self._lock:
            return _is_left(self._states, host)

    def get_host_event(self, host: str) -> threading.Event:
        """Is set when the host fails: its workers are to end."""
        with self._lock:
            return self._state_of(host).get_event()

    @staticmethod
    def order_available_hosts(available_hosts: Iterable[str], prev_host_assignment_order: Iterable[str]) -> list[str]:
        """The hosts that were there before, in their order, and then the others."""
        available = list(available_hosts)
        old = [host for host in prev_host_assignment_order if host in available]
        return old + [host for host in available if host not in old]

    def _state_of(self, host: str) -> HostState:
        return self._states.setdefault(host, HostState(self._cooldown_range))


def _is_left(states: Mapping[str, HostState], host: str) -> bool:
    return host in states and states[host].is_blacklisted()
