# SPDX-License-Identifier: Apache-2.0
"""Linux's means to keep a tree of processes together: subreaper, death signal, and a walk over all descendants.

Also the names of signals, and the exit code that a shell makes of one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

from horovod.core.wording import on_one_line

__all__ = [
    "UNENDED_S",
    "become_subreaper",
    "descendants",
    "die_with_parent",
    "end_descendants",
    "shell_code",
    "signal_descendants",
    "signal_name",
    "signal_session",
    "state",
    "take_signals",
    "why_left",
]

# Chosen: how long processes may take to end after SIGKILL. Large ones take seconds; those that the kernel keeps, or
# that may not be killed, never end.
UNENDED_S = 10.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DEAD = (b"Z", b"X")
_libc = ctypes.CDLL(None, use_errno=True)


def take_signals() -> None:
    """Undoes what a parent may have left behind: a mask, under which signals never come, and a SIGCHLD that is ignored.

    With the latter, the kernel forgets how children have ended. All other signals that are ignored stay so, as under
    nohup; the processes that this one starts get the same.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process, so that a walk still finds them."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> Callable[[], None]:
    """A `preexec_fn`: the child gets `number` when this thread ends, even by SIGKILL.

    With the id of its `parent` the child may call it for itself.
    """
    parent = os.getpid() if parent is None else parent

    def arm() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before it was armed

    return arm


def descendants(root: int) -> dict[int, int]:
    """All living descendants of `root` by pid, with their start times, which tell a reused pid. No zombies."""
    children: dict[int, list[tuple[int, int, bool]]] = {}
    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else []
        if fields:
            lives = fields[0] not in _DEAD
            children.setdefault(int(fields[1]), []).append((int(entry), int(fields[19]), lives))
    tree: dict[int, int] = {}
    seen = {root}
    todo = [root]
    while todo:
        for pid, start, lives in children.get(todo.pop(), ()):
            if pid not in seen:
                seen.add(pid)
                # A zombie has no children. But it had some a moment ago, when this walk came by them.
                todo.append(pid)
                if lives:
                    tree[pid] = start
    return tree


def signal_descendants(root: int, number: signal.Signals) -> int:
    """Signals every descendant of `root`, whatever session or group it is in. Returns how many there were."""
    tree = descendants(root)
    for pid, start in tree.items():
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue  # ended meanwhile
        try:
            found = _parent_and_start(pid)
            if found is not None and found[1] == start:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    return len(tree)


def end_descendants(patience_s: float) -> list[int]:
    """Kills all descendants of this process, and reaps its children. Returns those that are left after that time."""
    until = time.monotonic() + patience_s
    while signal_descendants(os.getpid(), signal.SIGKILL):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() >= until:
            return sorted(descendants(os.getpid()))
        time.sleep(0.01)
    return []


def why_left(pid: int) -> str:
    """In words, of a process that SIGKILL has not ended."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            name = f" ({on_one_line(file.read().strip())})"
    except OSError:
        name = ""
    why = "the kernel keeps it, for example in a driver or a file system"
    why = why if state(pid) == "D" else "it belongs to another user, or is slow to end"
    return f"process {pid}{name} has not ended: {why}"


def signal_session(session: int, number: signal.Signals) -> None:
    """Signals every process of a session, whatever its parent is."""
    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else []
        if fields and int(fields[3]) == session and fields[0] not in _DEAD:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry), number)


def state(pid: int) -> str:
    """The kernel's letter: R, S, D, T stopped by a signal, t held by a debugger; empty if the process is gone."""
    fields = _stat(pid)
    return fields[0].decode() if fields else ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_code(code: int) -> int:
    """An exit code of Python's, in which a signal is negative, as a shell gives it: 128 + the signal's number."""
    return code if code >= 0 else 128 - code


def _parent_and_start(pid: int) -> tuple[int, int] | None:
    fields = _stat(pid)
    if not fields or fields[0] in _DEAD:
        return None
    return int(fields[1]), int(fields[19])


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name may hold blanks and parentheses: the fields begin behind its last one.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
