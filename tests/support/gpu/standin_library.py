# SPDX-License-Identifier: Apache-2.0
"""The library of the stand-in for CUDA and NCCL (tests/native/standin): how it is built, and its functions."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "COMPILER",
    "DEVICES",
    "LIBRARY",
    "ROOT",
    "SOURCES",
    "Counts",
    "building",
    "environment",
    "library",
    "races",
]

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "native" / "standin"
LIBRARY = ROOT / "build" / "standin" / "libhvd_standin.so"
DEVICES = 4
COMPILER = shutil.which("c++") or shutil.which("g++") or ""


@contextlib.contextmanager
def building(library: Path, sources: Iterable[Path]) -> Iterator[Path | None]:
    """Gives the file to build a test's library as; None if the library is there, and newer than its sources."""
    if not COMPILER:
        pytest.skip("not run: no C++ compiler")
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(source.stat().st_mtime for source in sources)
        if library.exists() and library.stat().st_mtime >= newest:
            yield None
            return
        made = library.with_suffix(".new")
        yield made
        made.rename(library)


def environment(way: str = "best", **more: str) -> dict[str, str]:
    """Of worlds with GPUs. Builds the stand-in if it is not there, or older than its sources."""
    with building(LIBRARY, SOURCES.iterdir()) as made:
        if made is not None:
            words = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'native'}"]
            subprocess.run([*words, *map(str, sorted(SOURCES.glob("*.cc"))), "-o", str(made)], check=True)
    named = {"HOROVOD_CUDA_LIBRARY": str(LIBRARY), "HOROVOD_NCCL_LIBRARY": str(LIBRARY)}
    return {**named, "HOROVOD_GPU_OPERATIONS": way, **more}


class Counts(ctypes.Structure):
    _fields_ = [
        (name, c_int64)
        for name in ("streams", "events", "allocations", "pinned", "pageable_copies", "launches", "unique_ids")
    ]


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "standin_races": (c_char_p, []),
    "standin_forget": (None, []),
    "standin_fail": (None, [c_char_p, c_int, c_int, c_int]),
    "standin_block": (None, [c_char_p, c_int, c_int]),
    "standin_is_planned": (c_int, [c_char_p]),
    "standin_nccl_version": (None, [c_int]),
    "standin_stream": (c_void_p, [c_int]),
    "standin_hold": (None, [c_void_p]),
    "standin_release": (None, [c_void_p]),
    "standin_drain": (None, [c_void_p]),
    "standin_allocate": (c_void_p, [c_int, c_size_t]),
    "standin_copy": (None, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "standin_touch": (None, [c_void_p, c_void_p, c_size_t, c_int]),
    "standin_order": (None, [c_void_p, c_void_p]),
    "standin_free_on": (None, [c_void_p, c_void_p]),
    "standin_count": (Counts, []),
}
_opened: list[Any] = []


def library() -> Any:
    """The stand-in, in a rank."""
    if not _opened:
        opened = ctypes.CDLL(os.environ["HOROVOD_CUDA_LIBRARY"])
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(opened, name)
            function.restype, function.argtypes = result, arguments
        _opened.append(opened)
    return _opened[0]


def races() -> str:
    """Accesses without an order since the last call, a line for each."""
    text: bytes = library().standin_races()
    return text.decode()
