# SPDX-License-Identifier: Apache-2.0
"""Answers of the ranks of a function, and the end of their job, in files of the caller's memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horovod.core.temporary_files import memory_file
from horovod.core.wording import plain
from horovod.launcher.function.run_task import Answer
from horovod.launcher.host.processes import signal_name
from horovod.launcher.job.supervision import Conclusion

__all__ = ["WorkerTraceback", "answer_in", "answer_of", "memory", "read", "results", "those_that_count", "write"]


class WorkerTraceback(Exception):
    """The cause of a worker's exception in the caller: its traceback, as text."""

    is_of_rank = True

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def memory(stack: contextlib.ExitStack, names: Sequence[str]) -> list[str]:
    """Empty files in this process' memory, by their paths for other processes of this user."""
    paths = []
    for name in names:
        descriptor = memory_file(f"horovod-{name}")
        stack.callback(os.close, descriptor)
        paths.append(f"/proc/{os.getpid()}/fd/{descriptor}")
    return paths


def answer_of(rank: int, path: str) -> Answer | None:
    """The rank's answer; None if it has ended before it could write one."""
    return answer_in(rank, Path(path).read_bytes() if os.path.exists(path) else b"")


def answer_in(rank: int, data: bytes) -> Answer | None:
    """As answer_of, of the bytes themselves."""
    if not data:
        return None
    try:
        answer = pickle.loads(data)
    except Exception as error:  # loading runs the code of the result's own classes
        return Answer(rank, error=RuntimeError(f"the result of rank {rank} cannot be loaded: {error!r}"))
    assert isinstance(answer, Answer)
    return answer


def write(path: str, conclusion: Conclusion) -> None:
    Path(path).write_text(json.dumps(dataclasses.asdict(conclusion)))


def read(path: str) -> Conclusion:
    """An empty one if nothing was written, because the job was interrupted for example."""
    text = Path(path).read_text()
    return Conclusion(**json.loads(text)) if text else Conclusion()


def those_that_count(
    answers: Sequence[Answer | None], code: int, end: Conclusion, name: str = "horovod.run"
) -> list[Answer | None]:
    """Of an elastic job: the answers of the last world's ranks, or the errors that have ended the training.

    The others are of workers whose loss the job has survived.
    """
    if end.has_trained:
        ranks = answers[: len(end.workers)]
        # An answer that cannot be loaded names no worker.
        return [one if one is not None and one.worker in (None, *end.workers) else None for one in ranks]
    errors = [one for one in answers if one is not None and one.error is not None and one.worker in end.workers]
    if not errors:
        raise RuntimeError(f"{name}: the job ended with exit code {code}\n{end.text.rstrip()}")
    return [*errors]


def results(
    answers: Sequence[Answer | None],
    code: int,
    words: str,
    name: str = "horovod.run",
    hosts: Sequence[str] = (),
    peers: bool = True,
) -> list[Any]:
    """The values in rank order, or the first error. `words`: how the job ended.

    `name`: the function, for errors; `hosts`: of each rank. `peers`: if a rank ended without an answer, an error that
    this caused on another one is raised; else one with `words`.
    """
    failed = [answer for answer in answers if answer is not None and answer.error is not None]
    silent = [str(rank) for rank, answer in enumerate(answers) if answer is None]
    if not peers and silent:
        failed = [answer for answer in failed if not answer.is_of_peers]
    if failed:
        # A rank's own error goes before the errors that it causes on its peers, which may be noticed first.
        first = min(failed, key=lambda answer: (answer.is_of_peers, answer.time_ns))
        assert first.error is not None
        where = f" on host {hosts[first.rank]}" if hosts else ""
        text = f"rank {first.rank}{where}:\n{first.traceback}"
        raise first.error from (WorkerTraceback(text) if first.traceback else None)
    if silent:
        raise RuntimeError(
            f"{name}: the job ended with exit code {code}; no result from rank {', '.join(silent)}\n"
            + (words.rstrip("\n") or _without_words(code))
        )
    if code != 0:
        # Every function has returned: an exit handler failed, or a process that a rank left behind.
        why = f"\n{words.rstrip()}" if words else ""
        text = f"{name}: all ranks gave results, but the job ended with exit code {code}{why}"
        warnings.warn(plain(text), stacklevel=3)
    return [answer.value for answer in answers if answer is not None]


def _without_words(code: int) -> str:
    if code < 0:
        return f"the process that supervised the job was killed by {signal_name(-code)}"
    return "hint: the last lines on stderr name the cause"
