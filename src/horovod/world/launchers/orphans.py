# SPDX-License-Identifier: Apache-2.0
"""Ends a rank whose launcher, or the launcher's daemon on this host, was killed: it would train on, seen by no user.

The launcher is the nearest ancestor that is not this rank itself by its environment. What is between them are wrappers,
such as a shell. If a wrapper ends before the launcher, the rank was put into the background on purpose, and is left
alone; so is a rank whose launcher cannot be found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from horovod.core.wording import tell
from horovod.world.launchers.ancestors import parent_of
from horovod.world.launchers.base import Environment, Started

__all__ = ["watch"]

_watched = False

Recognise = Callable[[Environment], Started | None]


def watch(started: Started, recognise: Recognise, grace_s: float) -> None:
    """From now on, once a process. Costs a thread that sleeps. `grace_s`: between SIGTERM and SIGKILL."""
    global _watched
    if _watched:
        return
    _watched = True
    ancestors = _up_to_launcher(started, recognise)
    opened: list[int] = []
    with contextlib.suppress(OSError):  # one has just ended
        opened.extend(map(os.pidfd_open, ancestors))
    if len(opened) == len(ancestors) > 0 and _up_to_launcher(started, recognise) == ancestors:
        who = f"rank {started.rank}: {started.launcher}, or its daemon on this host (process {ancestors[-1]}),"
        threading.Thread(target=_wait, args=(opened, who, grace_s), name="horovod-launcher", daemon=True).start()
        return
    for descriptor in opened:
        os.close(descriptor)


def _wait(opened: list[int], who: str, grace_s: float) -> None:
    """`opened`: the ancestors, the launcher last."""
    waiting = select.poll()
    for descriptor in opened:
        waiting.register(descriptor, select.POLLIN)
    if [descriptor for descriptor, _ in waiting.poll()] != opened[-1:]:  # a launcher may end soon after its wrappers
        return
    with contextlib.suppress(OSError, ValueError):  # its reader is gone as well
        hint = "hint: HOROVOD_END_WITH_LAUNCHER=0 lets ranks go on without it"
        tell(f"horovod: {who} has ended; this rank ends, too\n{hint}")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)


def _up_to_launcher(started: Started, recognise: Recognise) -> list[int]:
    """The ancestors, from the parent to the launcher; none if there is no launcher."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 1:
        found.append(pid)
        try:
            variables = _environment_of(pid)
            if (one := recognise(variables)) is None or (one.launcher, one.rank) != (started.launcher, started.rank):
                return found
            pid = parent_of(pid)
        except PermissionError:  # of another user, such as slurmstepd
            return found
        except (OSError, ValueError):  # it has just ended
            return []
    return []


def _environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}
