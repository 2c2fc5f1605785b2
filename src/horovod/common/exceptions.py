# SPDX-License-Identifier: Apache-2.0
"""Old import name of the exceptions that user code catches; re-exports only."""

from horovod.common.util import get_version_mismatch_message
from horovod.core.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]
