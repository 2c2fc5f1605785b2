# SPDX-License-Identifier: Apache-2.0
"""Every exception a user can see. Imports nothing of ours but how texts are shown.

    RuntimeError
    +-- HorovodInternalError         an operation failed on the job's side; elastic training catches it and retries
    |   +-- MismatchError            the ranks disagree about a tensor; all of them get the same text
    |   |   +-- PeerRefusedError     another rank's call of the operation was wrong
    |   |   +-- RankJoinedError      a rank has joined, and the operation needs its data
    |   +-- RankLostError            a rank died, froze, or its host is unreachable   .failed_rank
    |   |   +-- RankLeftError        a rank shut down or exited while others still waited for it
    |   |   +-- DeviceLostError      a rank's GPU has failed, and its process has to be started anew
    |   +-- AbortedError             the job was aborted, or the stall limit passed
    |   |   +-- DeadlockError        ranks wait for each other in different calls, and none of them can go on
    |   +-- NotRunningError          the operation outlived the shutdown of this rank
    +-- HostsUpdatedInterrupt        elastic: the hosts changed, nothing failed   .skip_sync
    ValueError
    +-- StartError                   init could not join or form a world; its code says why
    +-- NotInitializedError          rank(), size() or an operation before init()
    +-- InvalidRequestError          this rank's call is wrong; ranks that wait for it are told
        +-- DuplicateNameError       the name is already in flight on this rank
    MemoryError
    +-- OutOfMemoryError             a rank has no memory for an operation
    ImportError
    +-- NativeCoreError              the native library is missing, or is another version's
    +-- HorovodVersionMismatchError  the framework differs from the one this build was made for

The base classes are Horovod's own contract: scripts written for it catch RuntimeError, ValueError and
HorovodInternalError.

An error has a stable `code`, a word that `horovodrun --explain CODE` and docs/troubleshooting.md tell more about
(launcher/options/explanations). Its text ends with that command. The text of
InvalidRequestError has no such line, because it is complete in itself.
"""

from __future__ import annotations

from typing import Any

from horovod.core.wording import plain

__all__ = [
    "NOT_REACHED",
    "AbortedError",
    "DeadlockError",
    "DeviceLostError",
    "DuplicateNameError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InvalidRequestError",
    "MismatchError",
    "NativeCoreError",
    "NotInitializedError",
    "NotRunningError",
    "OutOfMemoryError",
    "PeerRefusedError",
    "RankJoinedError",
    "RankLeftError",
    "RankLostError",
    "StartError",
    "explain_command",
    "named",
    "text_of",
]


def explain_command(code: str) -> str:
    """The last line of an error says how to read more about it."""
    return f"more: horovodrun --explain {code}"


class _Explained(Exception):
    """An error whose last line says where its code is explained."""

    code = ""

    def text(self) -> str:
        """Empty if the error was made without one, as elastic scripts make HorovodInternalError."""
        return plain(super().__str__())

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.text(), explain_command(self.code))))


def text_of(error: BaseException) -> str:
    """An error's text as a part of another text: without the line about its code."""
    return error.text() if isinstance(error, _Explained) else str(error)


def named(error: BaseException) -> str:
    """An error's class and text, as a part of another text."""
    return ": ".join(filter(None, (type(error).__name__, text_of(error))))


class HorovodInternalError(_Explained, RuntimeError):
    """An operation failed for a reason that lies with the job, not with this call's arguments."""

    code = "internal"


class MismatchError(HorovodInternalError):
    """The ranks disagree about a tensor: its dtype, shape, operation, scale or root. The job keeps running."""

    code = "mismatch"


class PeerRefusedError(MismatchError):
    """Another rank's call of this operation was wrong. It has raised what the text says."""

    code = "refused"


class RankJoinedError(MismatchError):
    """A rank has joined, so it has no data for this operation, which is not an allreduce."""

    code = "joined"


# A text with these words says that a rank cannot be reached (data_links.py), so no rank need be lost.
NOT_REACHED = "hint: if that rank has not ended, a firewall"


class RankLostError(HorovodInternalError):
    """A rank is gone, or cannot be reached. `failed_rank` is its world rank, -1 if no single rank can be named."""

    code = "rank-lost"

    def __init__(self, *text: Any, failed_rank: int = -1) -> None:
        """`text` may be followed by the rank."""
        given = list(text)
        if len(given) == 2 and isinstance(given[1], int):
            failed_rank = given.pop()
        super().__init__(*given)
        self.failed_rank = failed_rank
        if NOT_REACHED in self.text():
            self.code = "start-connection"


class RankLeftError(RankLostError):
    """A rank shut down or exited in order while others still waited for it."""

    code = "rank-left"


class DeviceLostError(RankLostError):
    """The GPU of `failed_rank` has failed: that rank's process cannot use it any more, and has to be started anew."""

    code = "device-lost"


class AbortedError(HorovodInternalError):
    """The generation was ended on purpose: by an abort, or because a stall passed its limit."""

    code = "aborted"


class DeadlockError(AbortedError):
    """Ranks wait for each other in different calls, and none of them has a thread that could make the other call."""

    code = "deadlock"


class NotRunningError(HorovodInternalError):
    """This rank was shut down before the operation was submitted, or before it completed."""

    code = "not-running"


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic: the set of hosts changed while all ranks are well. `skip_sync`: no state needs to be sent anew."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync

    def __str__(self) -> str:
        return "the hosts have changed: training goes on in a new world. Do not catch this: hvd.elastic.run does"


class StartError(_Explained, ValueError):
    """init could not find its peers, prove itself to them, or agree with them on the settings. `code` says which.

    `of_peer`: another rank's trouble, though the code may be one of this rank's own.
    """

    of_peer = False

    def __init__(self, *text: Any, code: str = "internal") -> None:
        """`text` may be followed by the code."""
        given = list(text)
        if len(given) == 2:
            code = str(given.pop())
        super().__init__(*given)
        self.code = code


class NotInitializedError(_Explained, ValueError):
    """Horovod has not been initialized in this process, or has been shut down."""

    code = "not-initialized"


class InvalidRequestError(ValueError):
    """A call's arguments are wrong on this rank."""

    code = "invalid-request"

    def __str__(self) -> str:
        return plain(super().__str__())


class DuplicateNameError(_Explained, InvalidRequestError):
    """An operation of the same name is still in flight on this rank."""

    code = "duplicate-name"


class OutOfMemoryError(_Explained, MemoryError):
    """A rank has no memory for an operation's result or for what it shares with the others."""

    code = "out-of-memory"


class NativeCoreError(_Explained, ImportError):
    """The native library is missing, was built for another system, or belongs to another version."""

    code = "native-core"


class HorovodVersionMismatchError(ImportError):
    """The installed framework's version is not the one this build was made for."""

    def __init__(self, name: str = "", version: str = "", installed_version: str = "", *_: Any) -> None:
        super().__init__(f"{name} {installed_version} is installed, but Horovod was built for {name} {version}")
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type[HorovodVersionMismatchError], tuple[str, str, str]]:
        return type(self), (self.name or "", self.version, self.installed_version)
