# SPDX-License-Identifier: Apache-2.0
"""Old import name of notices that the hosts have changed; re-exports only."""

from horovod.elastic.worker.notices import HostsUpdatedRequest, HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "HostsUpdatedRequest", "WorkerNotificationManager"]
