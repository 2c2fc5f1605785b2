# SPDX-License-Identifier: Apache-2.0
"""ctypes mirror of native/simulate/library/c_api.h: one simulated job."""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Callable
from typing import Any

from horovod.core import exceptions, native
from horovod.simulate.errors import InputError

__all__ = ["Fault", "Job", "Options", "SimulationError"]

_EVENTS_AT_ONCE = 200_000


class SimulationError(Exception):
    """Something that must hold in every run did not hold; the text says what."""


class Options(ctypes.Structure):
    """Hosts, links and processors, as c_api.h says."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("hosts", ctypes.c_int32),
        ("ranks_per_host", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("star_hosts", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("gbit", ctypes.c_double),
        ("latency_us", ctypes.c_double),
        ("send_us", ctypes.c_double),
        ("receive_us", ctypes.c_double),
        ("plant", ctypes.c_int32),
        ("spans", ctypes.c_int32),
        ("shuffled", ctypes.c_int32),
    ]

    def __init__(self, **values: Any) -> None:
        super().__init__(size=ctypes.sizeof(Options), **values)


class Fault(ctypes.Structure):
    """A fault of the job, as c_api.h says."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("target", ctypes.c_int32),
        ("kind", ctypes.c_char_p),
        ("step", ctypes.c_int32),
        ("event", ctypes.c_uint64),
        ("amount", ctypes.c_double),
    ]

    def __init__(self, **values: Any) -> None:
        super().__init__(size=ctypes.sizeof(Fault), **values)


@functools.cache
def _library() -> ctypes.CDLL:
    path = native.library_path().with_name("libhorovod_simulate.so")
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as error:
        raise exceptions.NativeCoreError(
            f"the simulator's library cannot be opened: {error}\nhint: `pip install .` builds it"
        ) from error
    pointer, status = ctypes.c_void_p, ctypes.c_void_p
    for name, arguments in {
        "hvd_simulate_create": [pointer, pointer, status],
        "hvd_simulate_add_name": [pointer, ctypes.c_char_p, ctypes.c_int64, ctypes.c_double, status],
        "hvd_simulate_add_fault": [pointer, pointer, status],
        "hvd_simulate_run": [pointer, ctypes.c_uint64, status],
        "hvd_simulate_report": [pointer, ctypes.c_char_p, ctypes.c_int64],
        "hvd_simulate_free": [pointer],
    }.items():
        function = getattr(opened, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int
    opened.hvd_simulate_report.restype = ctypes.c_int64
    opened.hvd_simulate_free.restype = None
    return opened


class Job:
    """A simulated job, from its options to its counts. A context manager: it may have gigabytes."""

    def __init__(self, options: Options) -> None:
        self._status = native.Status()
        self._pointer = ctypes.c_void_p()
        self._call("create", ctypes.byref(options), ctypes.byref(self._pointer))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        _library().hvd_simulate_free(self._pointer)
        self._pointer = ctypes.c_void_p()

    def _call(self, name: str, *arguments: Any) -> int:
        code = int(getattr(_library(), f"hvd_simulate_{name}")(*arguments, ctypes.byref(self._status)))
        if code == native.INVALID_ARGUMENT:
            raise InputError(self._status.message())
        if code == native.INTERNAL:
            raise SimulationError(self._status.message())
        if code not in (native.OK, native.PENDING):
            raise native.error_of(code, self._status.message())
        return code

    def add_name(self, name: str, elements: int, ready_us: float) -> None:
        """A float32 tensor, which is ready so many microseconds after a step's start."""
        self._call("add_name", self._pointer, name.encode(), elements, ready_us)

    def add_fault(self, fault: Fault) -> None:
        """Raises InputError if its kind or its target does not exist."""
        self._call("add_fault", self._pointer, ctypes.byref(fault))

    def run(self, progress: Callable[[dict[str, Any]], None]) -> None:
        """Runs to the end. Raises SimulationError if something did not hold."""
        while self._call("run", self._pointer, _EVENTS_AT_ONCE) == native.PENDING:
            progress(self.report())

    def report(self) -> dict[str, Any]:
        """The counts so far; times in nanoseconds of virtual time."""
        length = _library().hvd_simulate_report(self._pointer, None, 0)
        room = ctypes.create_string_buffer(length + 1)
        _library().hvd_simulate_report(self._pointer, room, length + 1)
        report: dict[str, Any] = json.loads(room.value or b"{}")
        return report
