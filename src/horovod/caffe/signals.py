# SPDX-License-Identifier: Apache-2.0
"""The effect of SIGINT and SIGHUP on a training or test run: stop, snapshot, or nothing."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import torch

from horovod.caffe.errors import CaffeError
from horovod.caffe.replicas import Replicas

__all__ = ["NONE", "SNAPSHOT", "STOP", "Signals", "effect"]

NONE, SNAPSHOT, STOP = 0, 1, 2
_EFFECTS = {"none": NONE, "snapshot": SNAPSHOT, "stop": STOP}


def effect(name: str) -> int:
    """The number of an effect that a flag names. Raises CaffeError."""
    if name not in _EFFECTS:
        raise CaffeError(f"invalid signal effect {name!r}; expected one of {', '.join(_EFFECTS)}")
    return _EFFECTS[name]


class Signals:
    """Remembers signals until agreed() asks. Used as a context, it puts the earlier handlers back at its end."""

    def __init__(self, interrupt: int = STOP, hangup: int = SNAPSHOT, replicas: Replicas | None = None) -> None:
        self._effects = {signal.SIGINT: interrupt, signal.SIGHUP: hangup}
        self._replicas = replicas or Replicas()
        self._wanted = NONE
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number, what in self._effects.items():
            if what != NONE:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._wanted = max(self._wanted, self._effects[signal.Signals(number)])

    def agreed(self) -> int:
        """The strongest action that a signal of any rank asks for. All ranks call this in each iteration."""
        wanted, self._wanted = self._wanted, NONE
        return int(self._replicas.largest(torch.tensor([wanted], dtype=torch.int32), "caffe.signals")[0])
