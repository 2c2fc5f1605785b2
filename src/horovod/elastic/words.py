# SPDX-License-Identifier: Apache-2.0
"""The words of elastic training (messages.py) as JSON, between the driver and its workers. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from horovod.elastic.messages import (
    AskStack,
    Done,
    Finished,
    Lost,
    Message,
    Raised,
    Ready,
    Stack,
    Stop,
    Update,
    Worker,
    WorldRecord,
)

__all__ = ["Report", "WordError", "packed", "unpacked_message", "unpacked_report"]

# Words of workers about themselves.
Report = Ready | Finished | Raised | Stack

_MESSAGES: dict[str, type] = {
    "world": WorldRecord,
    "lost": Lost,
    "update": Update,
    "stop": Stop,
    "done": Done,
    "ask-stack": AskStack,
}
_REPORTS: dict[str, type] = {"ready": Ready, "finished": Finished, "raised": Raised, "stack": Stack}
_NAMES = {kind: name for name, kind in {**_MESSAGES, **_REPORTS}.items()}


class WordError(ValueError):
    """A message that this version does not know."""


def packed(word: Message | Report) -> dict[str, Any]:
    """The word as JSON takes it."""
    return {"word": _NAMES[type(word)], **dataclasses.asdict(word)}


def unpacked_message(data: Any) -> Message:
    """A message to a worker. Raises WordError."""
    message: Message = _unpacked(data, _MESSAGES)
    return message


def unpacked_report(data: Any, worker: int) -> Report:
    """A word of a worker about itself. Raises WordError, also for a word of another worker."""
    report: Report = _unpacked(data, _REPORTS)
    if report.worker != worker:
        raise WordError(f"worker {worker} speaks for worker {report.worker}")
    return report


def _unpacked(data: Any, kinds: dict[str, type]) -> Any:
    kind = kinds.get(str(data.get("word"))) if isinstance(data, dict) else None
    if kind is None:
        raise WordError(f"expected one of {', '.join(kinds)}, got {str(data)[:200]}")
    fields = dataclasses.fields(kind)
    try:
        return kind(**{field.name: _value(str(field.type), data[field.name]) for field in fields})
    except (KeyError, TypeError, ValueError) as error:
        raise WordError(f"{data['word']} is not complete: {error!r}") from None


def _value(kind: str, value: Any) -> Any:
    """JSON has no tuples."""
    if kind == "StateId":
        generation, cut = value
        return _checked(generation, int), _checked(cut, int)
    if kind == "tuple[int, ...]":
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list of numbers, got {value!r}"[:200])
        return tuple(_checked(number, int) for number in value)
    if kind == "tuple[Worker, ...]":
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list of workers, got {value!r}"[:200])
        return tuple(_worker(*member) for member in value)
    return _checked(value, {"int": int, "bool": bool, "str": str}[kind])


def _worker(number: Any, host: Any, slot: Any) -> Worker:
    return Worker(_checked(number, int), _checked(host, str), _checked(slot, int))


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}"[:200])
    return value
