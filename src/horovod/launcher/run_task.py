# SPDX-License-Identifier: Apache-2.0
"""A rank of horovod.run: reads the function, runs it, leaves its result or exception where the caller reads it.

Run as `python -m horovod.launcher.run_task TASK RESULT...` with one result file a rank. The files are the caller's
memory, which this user alone can open; their contents are pickled by design.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
import time
import traceback
from typing import Any

from horovod.core.settings import Settings

__all__ = ["Answer", "dumps"]


@dataclasses.dataclass
class Answer:
    """`time_ns`: when, on the clock that all processes of a machine share."""

    rank: int
    value: Any = None
    error: Exception | None = None
    traceback: str = ""
    time_ns: int = 0


def dumps(value: Any, what: str) -> bytes:
    """Pickled by cloudpickle, which takes lambdas, local functions and classes of a script by value.

    Where it is not installed, by pickle, which does not. Raises TypeError that names `what`.
    """
    try:
        import cloudpickle
    except ImportError:
        dump, hint = (
            pickle.dumps,
            "\nhint: without cloudpickle a function must be importable by name: install cloudpickle",
        )
        if isinstance(value, tuple) and value and getattr(value[0], "__module__", None) == "__main__":
            raise TypeError(f"horovod.run: {what} is defined in the script itself{hint}") from None
    else:
        dump, hint = cloudpickle.dumps, ""
    try:
        return bytes(dump(value))
    except Exception as error:  # pickling runs the object's own code
        raise TypeError(f"horovod.run: {what} cannot be pickled: {error}{hint}") from error


def _called(rank: int, task: str) -> Answer:
    try:
        with open(task, "rb") as file:
            given = pickle.load(file)
        sys.path += [entry for entry in given["path"] if entry not in sys.path]
        func, args, kwargs = pickle.loads(given["call"])
        return Answer(rank, value=func(*args, **kwargs))
    except Exception as error:
        return Answer(rank, error=error, traceback=f"rank {rank}:\n{traceback.format_exc()}")
    except SystemExit as end:
        # As a SystemExit it would end the caller without a word.
        text = f"rank {rank} called sys.exit({end.code!r})"
        return Answer(rank, error=RuntimeError(text), traceback=f"{text}\n{traceback.format_exc()}")


def _portable(answer: Answer) -> tuple[Answer, bytes]:
    """The answer, pickled. If it cannot be pickled, an answer that says so."""
    try:
        data = dumps(answer, f"the result of rank {answer.rank}")
        if answer.error is not None:
            pickle.loads(data)  # an exception class with another constructor may be pickled, but not loaded
    except Exception as error:
        if answer.error is None:
            print(error, file=sys.stderr)
            return _portable(Answer(answer.rank, error=error, time_ns=answer.time_ns))
        kind = type(answer.error)
        text = f"rank {answer.rank} raised {kind.__module__}.{kind.__qualname__}: {answer.error}"
        return _portable(dataclasses.replace(answer, error=RuntimeError(text)))
    return answer, data


def main() -> int:
    rank = Settings.from_environment().rank
    assert rank is not None
    answer = _called(rank, sys.argv[1])
    answer.time_ns = time.monotonic_ns()
    if answer.error is not None:
        print(answer.traceback, end="", file=sys.stderr)
    answer, data = _portable(answer)
    with open(sys.argv[2 + rank], "wb") as file:
        file.write(data)
    return 0 if answer.error is None else 1


if __name__ == "__main__":
    # As a module of its name, so that the caller can load what is pickled here.
    from horovod.launcher import run_task

    code = run_task.main()
    sys.stdout.flush()
    sys.exit(code)
