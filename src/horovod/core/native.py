# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror of native/include/horovod/horovod.h: Python crosses into the engine (step 4).

Nothing here decides anything: layouts, prototypes, the library's place, and the one translation of a code into an
exception. Every call frees the GIL (CDLL). The functions of the hot path take plain integers for addresses, which is
the cheapest ctypes conversion; only this package calls them.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
from ctypes import POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

from horovod.core import exceptions

__all__ = [
    "ABI_VERSION",
    "Link",
    "Mpi",
    "Options",
    "Request",
    "Result",
    "Scratch",
    "Setting",
    "Status",
    "Tensor",
    "build_id",
    "error_of",
    "library",
    "scratch",
]

ABI_VERSION = 2

# hvd_code
OK = 0
PENDING = 1
INVALID_ARGUMENT = 2
DUPLICATE_NAME = 3
MISMATCH = 4
RANK_LOST = 5
RANK_LEFT = 6
ABORTED = 7
NOT_RUNNING = 8
UNAVAILABLE = 9
OUT_OF_MEMORY = 10
WOULD_DEADLOCK = 11
FORKED = 12
INTERNAL = 13
REFUSED = 14
JOINED = 15
DEVICE_LOST = 16
DEADLOCK = 17

# hvd_dtype
UINT8, INT8, INT16, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BOOL = range(10)
UINT16, UINT32, UINT64 = 10, 11, 12
DTYPE_NAMES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"),
    *("uint16", "uint32", "uint64"),
)
DTYPE_BYTES = (1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 2, 4, 8)

# hvd_op: also the public constants of every framework package
Average = 0
"""The sum of the ranks' tensors, divided by their number."""
Sum = 1
"""The sum of the ranks' tensors."""
Adasum = 2
"""Adasum, which adds gradients by their directions: equal ones are averaged, orthogonal ones added."""
Min = 3
"""By element the smallest of the ranks' values."""
Max = 4
"""By element the largest of the ranks' values."""
Product = 5
"""By element the product of the ranks' values."""
BitAnd = 6
"""By element the bitwise and of the ranks' values, which are integers or bool."""
BitOr = 7
"""By element the bitwise or of the ranks' values, which are integers or bool."""
BitXor = 8
"""By element the bitwise exclusive or of the ranks' values, which are integers or bool."""
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product", "BitAnd", "BitOr", "BitXor")
BITWISE = (BitAnd, BitOr, BitXor)

# hvd_kind
ALLREDUCE, ALLGATHER, BROADCAST, BARRIER, ALLTOALL, REDUCESCATTER, ADD_PROCESS_SET, REMOVE_PROCESS_SET = range(8)
SEND, RECEIVE = 8, 9
KIND_NAMES = (
    "allreduce",
    "allgather",
    "broadcast",
    "barrier",
    "alltoall",
    "reducescatter",
    "add_process_set",
    "remove_process_set",
    "send",
    "receive",
)

# hvd_place
ON_HOST, ON_CUDA = range(2)

# hvd_request.flags
SYNC = 1

TEXT_BYTES = 2048
MAX_DIMENSIONS = 16


class Setting(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Status(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("code", c_int32),
        ("failed_rank", c_int32),
        ("member", c_int32),
        ("text", c_char * TEXT_BYTES),
    ]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(Status), OK, -1, -1)

    def message(self) -> str:
        """The text; cut anywhere when too long, so its last character may be half a one."""
        return bytes(self.text).decode("utf-8", "replace")


class Link(ctypes.Structure):
    _fields_ = [("peer", c_int32), ("purpose", c_int32), ("fd", c_int32), ("index", c_int32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("generation", c_uint64),
        ("host_of_rank", POINTER(c_int32)),
        ("settings", POINTER(Setting)),
        ("nsettings", c_uint32),
        ("nlinks", c_uint32),
        ("links", POINTER(Link)),
        ("setting_size", c_uint32),
        ("link_size", c_uint32),
    ]


class Mpi(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("why", c_char_p),
        ("path", c_char_p),
        ("version", c_char_p),
        ("world", c_uint64),
        ("byte", c_uint64),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("input", c_void_p),
        ("output", c_void_p),
        ("shape", POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("output_bytes", c_int64),
    ]


class Request(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_int32),
        ("op", c_int32),
        ("process_set", c_int32),
        ("root_rank", c_int32),
        ("flags", c_uint32),
        ("ntensors", c_uint32),
        ("tensor_size", c_uint32),
        ("name", c_char_p),
        ("tensors", POINTER(Tensor)),
        ("prescale", c_double),
        ("postscale", c_double),
        ("done", c_void_p),
        ("user", c_void_p),
        ("splits", POINTER(c_int64)),
        ("nsplits", c_uint32),
        ("reserved", c_uint32),
        ("place", c_int32),
        ("device", c_int32),
        ("tag", c_int32),
    ]


class Result(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("ndim", c_int32),
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("rows", POINTER(c_int64)),
        ("place", c_int32),
        ("device", c_int32),
    ]


class Scratch(threading.local):
    """Out-parameters of one thread, made once: allocating them would cost more than the call."""

    def __init__(self) -> None:
        self.status = Status()
        self.status_address = ctypes.addressof(self.status)
        self.status_argument = c_void_p(self.status_address)  # for functions without argument types


scratch = Scratch()

# name: (result type, argument types). c_void_p stands for every pointer that the hot path passes as an integer.
_PROTOTYPES: dict[str, tuple[type | None, list[type]]] = {
    "hvd_abi_version": (c_uint32, []),
    "hvd_code_name": (c_char_p, [c_int32]),
    "hvd_dtype_bytes": (c_int32, [c_int32]),
    "hvd_cuda_version": (c_int32, [c_char_p, c_void_p]),
    "hvd_nccl_version": (c_int32, [c_char_p, c_char_p, c_void_p]),
    "hvd_rows_of_member": (c_int64, [c_int64, c_int32, c_int32]),
    "hvd_build_info": (c_char_p, []),
    "hvd_communicators": (c_char_p, []),
    "hvd_plan": (
        ctypes.c_int,
        [c_char_p, c_int32, c_void_p, c_int32, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_void_p],
    ),
    "hvd_control_links": (ctypes.c_int, [c_void_p, c_int32, c_int32, c_int32, c_void_p, c_void_p]),
    "hvd_use_mpi": (ctypes.c_int, [c_void_p, c_void_p]),
    "hvd_start": (ctypes.c_int, [c_void_p, c_void_p, c_void_p]),
    "hvd_stop": (ctypes.c_int, [c_void_p, c_uint32, c_void_p]),
    "hvd_end_seen": (ctypes.c_int, [c_void_p, c_void_p]),
    "hvd_fail_at_exit": (None, []),
    "hvd_limit_time": (None, [c_uint32, c_char_p]),
    "hvd_free": (None, [c_void_p]),
    "hvd_abort": (None, [c_void_p, c_int32, c_char_p]),
    "hvd_prepare": (ctypes.c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "hvd_release_entry": (None, [c_void_p, c_void_p]),
    "hvd_submit_entry": (ctypes.c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p]),
    "hvd_submit_entry_on": (
        ctypes.c_int,
        [c_void_p, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p],
    ),
    "hvd_run_entry": (ctypes.c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_void_p]),
    "hvd_submit": (ctypes.c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "hvd_refuse": (ctypes.c_int, [c_void_p, c_char_p, c_int32, c_char_p, c_void_p]),
    "hvd_add_process_set": (ctypes.c_int, [c_void_p, c_void_p, c_uint32, c_void_p, c_void_p]),
    "hvd_remove_process_set": (ctypes.c_int, [c_void_p, c_int32, c_void_p, c_void_p]),
    "hvd_join": (ctypes.c_int, [c_void_p, c_void_p, c_void_p]),
    "hvd_wait": (ctypes.c_int, [c_void_p, c_uint64, c_int32, c_void_p]),
    "hvd_declare_blocked": (ctypes.c_int, [c_void_p, c_void_p, c_uint32, c_void_p]),
    "hvd_missing": (ctypes.c_int, [c_void_p, c_uint64, c_void_p, c_void_p, c_void_p]),
    "hvd_poll": (ctypes.c_int, [c_void_p, c_uint64, c_void_p]),
    "hvd_poll_launch": (ctypes.c_int, [c_void_p, c_uint64, c_void_p]),
    "hvd_wait_on_stream": (ctypes.c_int, [c_void_p, c_uint64, c_void_p, c_int32, c_void_p]),
    "hvd_settle": (ctypes.c_int, [c_void_p, c_int32, c_void_p]),
    "hvd_copy_result": (ctypes.c_int, [c_void_p, c_uint64, c_uint32, c_void_p, c_void_p, c_void_p]),
    "hvd_get_result": (ctypes.c_int, [c_void_p, c_uint64, c_uint32, c_void_p, c_void_p]),
    "hvd_release": (None, [c_void_p, c_uint64]),
    "hvd_start_timeline": (ctypes.c_int, [c_void_p, c_int32, c_char_p, c_char_p, c_int32, c_void_p]),
    "hvd_stop_timeline": (ctypes.c_int, [c_void_p, c_void_p]),
    "hvd_stack_source": (None, [ctypes.c_int, ctypes.c_int]),
    "hvd_fault_point": (ctypes.c_int, [c_char_p, c_char_p]),
    "hvd_statistics": (c_int64, [c_void_p, c_void_p, c_int64]),
}


def library_path() -> Path:
    """Where the build puts the library: beside this package."""
    return Path(__file__).resolve().parent.parent / "lib" / "libhorovod.so"


@functools.cache
def library() -> ctypes.CDLL:
    """The native core, opened once per process. Raises NativeCoreError, which says what is missing."""
    path = library_path()
    if not path.exists():
        raise exceptions.NativeCoreError(
            f"Horovod's native core is missing: {path} does not exist\n"
            "hint: `pip install .` builds it; a source tree has no built core"
        )
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as error:
        raise exceptions.NativeCoreError(
            f"Horovod's native core cannot be opened: {error}\nhint: it was built for another system; install again"
        ) from error
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(opened, name)
        except AttributeError:
            raise exceptions.NativeCoreError(
                f"{path} has no function {name}\nhint: it is from another version; install again"
            ) from None
        function.restype = result
        function.argtypes = arguments
        if name == "hvd_abi_version" and function() != ABI_VERSION:
            raise exceptions.NativeCoreError(
                f"{path} speaks ABI version {function()}, this package version {ABI_VERSION}\n"
                "hint: two versions are mixed; install again"
            )
    return opened


@functools.cache
def build_id() -> str:
    """Tells builds of one version apart: a checksum of the sources that this one was made of."""
    return str(json.loads(library().hvd_build_info())["build"])


def error_of(code: int, text: str, failed_rank: int = -1) -> Exception:
    """The one translation of an hvd_code into the exception that users see."""
    if code == RANK_LOST:
        return exceptions.RankLostError(text, failed_rank)
    if code == RANK_LEFT:
        return exceptions.RankLeftError(text, failed_rank)
    if code == DEVICE_LOST:
        return exceptions.DeviceLostError(text, failed_rank)
    kinds: dict[int, type[Exception]] = {
        INVALID_ARGUMENT: exceptions.InvalidRequestError,
        DUPLICATE_NAME: exceptions.DuplicateNameError,
        MISMATCH: exceptions.MismatchError,
        REFUSED: exceptions.PeerRefusedError,
        JOINED: exceptions.RankJoinedError,
        ABORTED: exceptions.AbortedError,
        DEADLOCK: exceptions.DeadlockError,
        NOT_RUNNING: exceptions.NotRunningError,
        OUT_OF_MEMORY: exceptions.OutOfMemoryError,
    }
    text = text or f"the native core failed with code {code}"
    if code in kinds:
        return kinds[code](text)
    error = exceptions.HorovodInternalError(text)
    error.code = {UNAVAILABLE: "unavailable", FORKED: "forked"}.get(code, error.code)
    return error
