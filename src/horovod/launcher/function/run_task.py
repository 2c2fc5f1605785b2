# SPDX-License-Identifier: Apache-2.0
"""A rank of horovod.run: reads the function, runs it, leaves its result or exception where the caller reads it.

Run as `run_task TASK RESULT...` (placement/base.py) with one result file a rank. The files are the caller's
memory, or in a folder of this user. If the job has other machines, it is run with `--port PORT` instead: the caller is
asked there (exchange.py). What is exchanged is pickled by design.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from horovod.core import raised, tracebacks
from horovod.core.exceptions import HorovodInternalError
from horovod.core.wording import tell
from horovod.elastic.worker import session as sessions
from horovod.launcher.function.exchange import ask_for_task, bring_answer
from horovod.launcher.function.unpicklable import named
from horovod.settings import Settings, current_environment
from horovod.world.launchers import recognise
from horovod.world.secret import read_secret

__all__ = ["Answer", "dumps"]

_WRAP_ERRORS = ("tensorflow", "keras", "jax", "jaxlib")


@dataclasses.dataclass
class Answer:
    """`worker`: of an elastic job, its number. `time_ns`: when, on the clock that all processes of a machine share.

    `code`: the exit code of a rank that failed. `ended`: the error of a framework came after the world had ended.
    """

    rank: int
    value: Any = None
    error: Exception | None = None
    traceback: str = ""
    time_ns: int = 0
    worker: int | None = None
    code: int = 1
    ended: bool = False

    @property
    def is_of_peers(self) -> bool:
        """True if another rank's end has caused this error."""
        return self.ended or isinstance(self.error, HorovodInternalError)


def _has_ended(error: Exception) -> bool:
    """True if TensorFlow or JAX has wrapped what Horovod said of the world's end."""
    context = sys.modules.get("horovod.core.context")
    if type(error).__module__.partition(".")[0] not in _WRAP_ERRORS or context is None or not context.is_initialized():
        return False
    return context.current().end_seen() is not None


def dumps(value: Any, what: str, parts: Mapping[str, Any] | None = None, name: str = "horovod.run") -> bytes:
    """Pickled by cloudpickle, which takes lambdas, local functions and classes of a script by value.

    Where it is not installed, by pickle, which does not. Raises TypeError that names which of the `parts`, and what in
    it, cannot be pickled; `what`: if there are no parts. `name`: the function that was called.
    """
    dump: Callable[[Any], bytes] = pickle.dumps
    hint = ""
    try:
        from horovod.core import pickling
    except ImportError:
        hint = "\nhint: without cloudpickle a function must be importable by name: install cloudpickle"
        if isinstance(value, tuple) and value and getattr(value[0], "__module__", None) == "__main__":
            raise TypeError(f"{name}: {what} is defined in the script itself{hint}") from None
    else:
        dump = pickling.dumps
    with named(name, parts or {what: value}, dump, what, hint):
        return dump(value)


class _Caller(Protocol):
    """Where the task comes from, and where the answer goes."""

    def task(self) -> bytes: ...

    def answer(self, rank: int, data: bytes) -> None: ...


@dataclasses.dataclass
class _Files:
    given: str
    results: list[str]

    def task(self) -> bytes:
        return Path(self.given).read_bytes()

    def answer(self, rank: int, data: bytes) -> None:
        Path(self.results[rank]).write_bytes(data)


@dataclasses.dataclass
class _Connections:
    address: str
    port: int
    secret: bytes

    def task(self) -> bytes:
        return ask_for_task(self.address, self.port, self.secret)

    def answer(self, rank: int, data: bytes) -> None:
        bring_answer(self.address, self.port, self.secret, rank, data)


def _search_path(own: list[str], callers: list[str]) -> list[str]:
    """The caller's modules are found here as there: its script's folder comes first, what it has added comes last."""
    known = next((index for index, entry in enumerate(callers) if entry in own), len(callers))
    return [*callers[:known], *own, *(entry for entry in callers[known:] if entry not in own)]


def _called(rank: int, caller: _Caller) -> Answer:
    try:
        given = pickle.loads(caller.task())
        sys.path[:] = _search_path(sys.path, given["path"])
        func, args, kwargs = pickle.loads(given["call"])
        return Answer(rank, value=func(*args, **kwargs))
    except Exception as error:
        return Answer(rank, error=error, traceback=tracebacks.formatted(error), ended=_has_ended(error))
    except sessions.Stopped:
        raise
    except SystemExit as end:
        # As a SystemExit it would end the caller without a word.
        text = f"rank {rank} called sys.exit({end.code!r})"
        code = end.code & 0xFF if isinstance(end.code, int) else 1
        trace = f"{text}\n{tracebacks.formatted(end)}"
        return Answer(rank, error=RuntimeError(text), traceback=trace, code=code or 1)


def _portable(answer: Answer) -> tuple[Answer, bytes]:
    """The answer, pickled. If it cannot be pickled, an answer that says so."""
    try:
        what = f"the result of rank {answer.rank}"
        data = dumps(answer, what, {what: answer.value}, "horovod")
        if answer.error is not None:
            pickle.loads(data)  # an exception class with another constructor may be pickled, but not loaded
    except Exception as error:
        if answer.error is None:
            tell(error)
            return _portable(dataclasses.replace(answer, value=None, error=error))
        kind = type(answer.error)
        text = f"rank {answer.rank} raised {kind.__module__}.{kind.__qualname__}: {answer.error}"
        return _portable(dataclasses.replace(answer, error=RuntimeError(text)))
    return answer, data


def _last_rank(rank: int, worker: int | None) -> int:
    """Workers of elastic jobs change their ranks. `rank`: of a job's that does not."""
    session = sessions.current()
    if session is None or session.world is None:
        return rank
    return [member.number for member in session.world.members].index(worker or 0)


def main() -> int:
    settings = Settings.from_environment()
    rank = settings.rank
    if rank is None:
        started = recognise(current_environment())  # mpirun's ranks
        rank = started.rank if started is not None else 0
    caller: _Caller
    if sys.argv[1] == "--port":
        secret = read_secret(settings.secret_file)
        caller = _Connections(settings.rendezvous_address, int(sys.argv[2]), secret)
    else:
        caller = _Files(sys.argv[1], sys.argv[2:])
    answer = _called(rank, caller)
    answer.rank, answer.worker = _last_rank(rank, settings.worker), settings.worker
    answer.time_ns = time.monotonic_ns()
    if answer.error is not None:
        print(answer.traceback, end="", file=sys.stderr)
    error = answer.error
    answer, data = _portable(answer)
    caller.answer(answer.rank, data)
    if error is not None:
        raised.begin(error, settings.raised_grace_s)
    return 0 if answer.error is None else answer.code


if __name__ == "__main__":
    # As a module of its name, so that the caller can load what is pickled here.
    from horovod.launcher.function import run_task

    code = run_task.main()
    sys.stdout.flush()
    sys.exit(code)
