# SPDX-License-Identifier: Apache-2.0
"""Notices that the hosts have changed, as scripts and platforms written for Horovod name them.

A state hears of changes from its worker's session (elastic/worker/session.py), and so do those who have asked to listen
here.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import threading
from typing import Any

from horovod.elastic.messages import ADDED, REMOVED

__all__ = ["HostUpdateResult", "HostsUpdatedRequest", "WorkerNotificationManager", "notification_manager"]

_log = logging.getLogger("horovod")


class HostUpdateResult(enum.IntFlag):
    """The changes of the hosts."""

    no_update = 0
    removed = REMOVED
    added = ADDED
    mixed = REMOVED | ADDED


@dataclasses.dataclass
class HostsUpdatedRequest:
    """A notice. `timestamp` grows with every one."""

    timestamp: int
    res: HostUpdateResult = HostUpdateResult.no_update


class WorkerNotificationManager:
    """Tells those who listen that the hosts have changed: whatever has on_hosts_updated(timestamp, update_res)."""

    def __init__(self) -> None:
        self._listeners: list[Any] = []

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Does nothing: a worker has its connection with the launcher."""

    def register_listener(self, listener: Any) -> None:
        """Adds a listener."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        """Removes a listener."""
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Tells all listeners. An error of one of them is printed, and the others are told."""
        for listener in list(self._listeners):
            try:
                listener.on_hosts_updated(timestamp, update_res)
            except Exception:
                _log.exception("horovod: warning: %s.on_hosts_updated failed", type(listener).__name__)

    def tell(self, timestamp: int, update_res: int) -> None:
        """Calls handle_hosts_updated in a thread of its own: a slow listener must not delay this one."""
        if self._listeners:
            told = (timestamp, update_res)
            threading.Thread(target=self.handle_hosts_updated, args=told, name="horovod-notices", daemon=True).start()


notification_manager = WorkerNotificationManager()
