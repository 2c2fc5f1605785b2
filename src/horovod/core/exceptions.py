# SPDX-License-Identifier: Apache-2.0
"""Every exception a user can see. Imports nothing of ours.

    RuntimeError
    +-- HorovodInternalError         an operation failed on the job's side; elastic training catches it and retries
    |   +-- MismatchError            the ranks disagree about a tensor; all of them get the same text
    |   +-- RankLostError            a rank died, froze, or its host is unreachable   .failed_rank
    |   |   +-- RankLeftError        a rank shut down or exited while others still waited for it
    |   +-- AbortedError             the job was aborted, or the stall limit passed
    |   +-- NotRunningError          the operation outlived the shutdown of this rank
    +-- HostsUpdatedInterrupt        elastic: the hosts changed, nothing failed   .skip_sync
    ValueError
    +-- StartError                   init could not join or form a world
    +-- NotInitializedError          rank(), size() or an operation before init()
    +-- InvalidRequestError          this rank's call is wrong; no other rank has seen it
        +-- DuplicateNameError       the name is already in flight on this rank
    ImportError
    +-- HorovodVersionMismatchError  the framework differs from the one this build was made for

The base classes are Horovod's own contract: scripts written for it catch RuntimeError, ValueError and
HorovodInternalError.
"""

from __future__ import annotations

__all__ = [
    "AbortedError",
    "DuplicateNameError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InvalidRequestError",
    "MismatchError",
    "NotInitializedError",
    "NotRunningError",
    "RankLeftError",
    "RankLostError",
    "StartError",
]


class HorovodInternalError(RuntimeError):
    """An operation failed for a reason that lies with the job, not with this call's arguments."""


class MismatchError(HorovodInternalError):
    """The ranks disagree about a tensor: its dtype, shape, operation, scale or root. The job keeps running."""


class RankLostError(HorovodInternalError):
    """A rank is gone. `failed_rank` is its world rank, -1 where no single rank can be named."""

    def __init__(self, text: str, failed_rank: int = -1) -> None:
        super().__init__(text)
        self.failed_rank = failed_rank

    def __reduce__(self) -> tuple[type[RankLostError], tuple[str, int]]:
        return type(self), (str(self), self.failed_rank)


class RankLeftError(RankLostError):
    """A rank shut down or exited in order while others still waited for it."""


class AbortedError(HorovodInternalError):
    """The generation was ended on purpose: by an abort, or because a stall passed its limit."""


class NotRunningError(HorovodInternalError):
    """The operation was submitted to, or was still in flight in, a context that has been stopped."""


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic: the set of hosts changed while all ranks are well. `skip_sync`: no state needs to be sent anew."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class StartError(ValueError):
    """init could not find its peers, prove itself to them, or agree with them on the settings."""


class NotInitializedError(ValueError):
    """Horovod has not been initialized in this process, or has been shut down."""


class InvalidRequestError(ValueError):
    """A call's arguments are wrong on this rank."""


class DuplicateNameError(InvalidRequestError):
    """An operation of the same name is still in flight on this rank."""


class HorovodVersionMismatchError(ImportError):
    """The installed framework's version is not the one this build was made for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {installed_version} is installed, but Horovod was built for {name} {version}")
        self.name = name
        self.version = version
        self.installed_version = installed_version
