# SPDX-License-Identifier: Apache-2.0
"""The agent on another machine, and its keeper.

Here no launcher stands behind the agent to clean up after it. So a second process does, the agent's parent: it adopts
what a killed agent leaves behind, ends it, and removes the job's folder. It also ends an agent that hangs after the
connection to the launcher has gone, passes signals on to it, and removes the rows of a DataFrame that its rank read
(spark/task/rows.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from horovod.launcher.host import agent, processes
from horovod.launcher.host.job_directory import remove_directory, say
from horovod.settings import Settings

_STDOUT = 1
# The time that the agent itself may take to end everything, beyond the ranks' grace.
_PATIENCE_S = 2.0


class _Word:
    """The agent's message to its keeper (agent.Agent): the ranks' grace in seconds and the job's folder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = ""

    def read(self) -> tuple[float, str]:
        with contextlib.suppress(BlockingIOError):
            self._text += os.read(self._descriptor, select.PIPE_BUF).decode()
        grace_s, _, directory = self._text.partition(" ")
        return float(grace_s or 0.0), directory


def main() -> int:
    """Returns the agent's exit code, as a shell gives it."""
    processes.take_signals()
    processes.become_subreaper()
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)  # a signal to this group comes once, by way of the keeper
        processes.die_with_parent(signal.SIGTERM, keeper)()
        agent.main(writer)
        return 0
    os.close(writer)
    for number in (*agent.ENDING, *agent.PASSED_ON):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(child, number))
    word = _Word(reader)
    code = _wait_for(child, word)
    for pid in processes.end_descendants(processes.UNENDED_S):
        say(f"horovodrun: {processes.why_left(pid)}")
    _, directory = word.read()
    for folder in (directory, Settings.from_environment().spark_rows):
        if os.path.isdir(folder):
            remove_directory(folder)
    return processes.shell_code(code)


def _wait_for(child: int, word: _Word) -> int:
    """The agent's exit code. If the launcher's end of stdout closes, the agent has a limited time left."""
    events = select.poll()
    ended = os.pidfd_open(child)
    events.register(ended, select.POLLIN)
    events.register(_STDOUT, 0)  # only whether its reader has gone
    kill_at: float | None = None
    while True:
        left_ms = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1000
        happened = {descriptor for descriptor, _ in events.poll(left_ms)}
        if ended in happened:
            break
        if _STDOUT in happened:
            events.unregister(_STDOUT)
            kill_at = time.monotonic() + word.read()[0] + _PATIENCE_S
        elif kill_at is not None and time.monotonic() >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = None
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
