# SPDX-License-Identifier: Apache-2.0
"""Requests: the checks that a call's fixed part gets once, and the cache of those that are prepared.

Step 4 of a gradient's way. core/collectives.py says what goes into them.

A RequestCache belongs to one generation. Everything here runs on the caller's thread and never blocks on a peer.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from horovod.core import native
from horovod.core.exceptions import InvalidRequestError
from horovod.core.gpus import Gpu
from horovod.core.native import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BFLOAT16,
    BITWISE,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    REDUCESCATTER,
    UINT64,
    Adasum,
    Max,
    Min,
    Sum,
)
from horovod.core.wording import quoted, shown

__all__ = [
    "Key",
    "Metas",
    "Prepared",
    "PreparedOnGpu",
    "RequestCache",
    "as_factor",
    "as_factors",
    "check_adasum_ranks",
    "check_name",
    "check_reduction",
    "check_tensors",
    "forms_of",
    "own_rows",
    "request_of",
    "wire_name",
]

# Equal for two calls if and only if their requests are equal but for the addresses.
Key = tuple[Any, ...]
Metas = tuple[tuple[int, tuple[int, ...]], ...]  # by tensor: dtype, shape

# Names that never come back must not fill the memory.
MAX_ENTRIES = 16384
_FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)


class Prepared:
    """A request that the native core holds at the address `entry`, until this object is gone."""

    __slots__ = ("_cache", "entry", "process_set")

    def __init__(self, cache: RequestCache, address: int, process_set: int) -> None:
        self._cache = weakref.ref(cache)
        self.entry = address
        self.process_set = process_set

    def __del__(self) -> None:
        cache = self._cache()  # with its generation all its requests are freed
        if cache is not None and cache.pointer is not None and os.getpid() == cache.process_id:
            cache.library.hvd_release_entry(cache.pointer, self.entry)


class PreparedOnGpu(Prepared):
    """Likewise, of tensors in the memory of a GPU. Its calls say which stream has computed them."""

    __slots__ = ("gpu",)

    def __init__(self, cache: RequestCache, address: int, process_set: int, gpu: Gpu) -> None:
        super().__init__(cache, address, process_set)
        self.gpu = gpu


class RequestCache:
    """The prepared requests of one generation, by key.

    A key is prepared when it comes the second time, so that a name which never comes back leaves nothing behind in the
    native core.
    """

    def __init__(self, library: ctypes.CDLL, pointer: int) -> None:
        self.library = library
        self.pointer: int | None = pointer  # None once the generation is freed
        self.process_id = os.getpid()
        self.prepared: dict[Key, Prepared] = {}
        self._sighted: dict[Key, int] = {}  # keys that came once, with their process sets
        self.get = self.prepared.get

    def find(self, key: Key) -> Prepared | None:
        """Does get(); None for a key with a part that has no hash, such as a list: the checks say what is wrong."""
        try:
            return self.get(key)
        except TypeError:
            return None

    def add(
        self,
        key: Key,
        request: native.Request,
        failed: Callable[[int, native.Status], Exception],
        gpu: Gpu | None = None,
    ) -> Prepared | native.Request:
        """Returns what to submit for a key that get() does not know. `failed`: makes an exception of a native code.

        `gpu`: where the tensors lie, if not in host memory. Such a request is always prepared.
        """
        try:
            is_new = key not in self._sighted
        except TypeError:  # a part of it has no hash, such as a NumPy array of one number
            return request if gpu is None else self._prepare(request, failed, gpu)
        if is_new:
            if len(self._sighted) >= MAX_ENTRIES:
                self._sighted.clear()
            self._sighted[key] = request.process_set
            return request if gpu is None else self._prepare(request, failed, gpu)
        if len(self.prepared) >= MAX_ENTRIES:
            for oldest in list(itertools.islice(self.prepared, MAX_ENTRIES // 2)):
                self.prepared.pop(oldest, None)
        prepared = self.prepared[key] = self._prepare(request, failed, gpu)
        return prepared

    def _prepare(
        self, request: native.Request, failed: Callable[[int, native.Status], Exception], gpu: Gpu | None
    ) -> Prepared:
        entry = ctypes.c_void_p()
        status = native.scratch.status
        code = self.library.hvd_prepare(
            self.pointer, ctypes.addressof(request), ctypes.addressof(entry), native.scratch.status_address
        )
        if code != native.OK or entry.value is None:
            if gpu is not None and code == native.UNAVAILABLE:  # a fault of this rank, of which the others are told
                raise InvalidRequestError(status.message())
            raise failed(code, status)
        if gpu is None:
            return Prepared(self, entry.value, request.process_set)
        return PreparedOnGpu(self, entry.value, request.process_set, gpu)

    def forget_set(self, number: int) -> None:
        """Drops all requests of a process set: its number may come back for another one of the same ranks."""
        for key in [key for key, prepared in self.prepared.items() if prepared.process_set == number]:
            del self.prepared[key]
        for key in [key for key, process_set in self._sighted.items() if process_set == number]:
            del self._sighted[key]


def wire_name(label: str, name: str | None) -> bytes | None:
    """The name under which the ranks meet."""
    return None if name is None else f"{label}.{name}".encode()


def check_name(name: Any) -> None:
    """Raises TypeError or ValueError if `name` cannot be one."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: expected a str, got {type(name).__name__}")
    if name is not None and "\0" in name:
        raise InvalidRequestError(f"name {quoted(name)}: a name cannot hold a NUL character")


def as_factor(argument: str, value: Any) -> float:
    """The value of an argument that scales. Raises ValueError for anything but a number."""
    try:
        factor = None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several elements
        factor = None
    if factor is None or factor != factor:
        raise InvalidRequestError(f"{argument}={shown(value)}: expected a number")
    return factor + 0.0  # not -0.0, which a key would take for 0.0


def as_factors(prescale: Any, postscale: Any) -> tuple[float, float]:
    """The factors of a reduction. Raises ValueError for anything but numbers."""
    return as_factor("prescale_factor", prescale), as_factor("postscale_factor", postscale)


def check_tensors(kind: int, label: str, metas: Metas) -> None:
    """Raises if an operation cannot have such shapes."""
    for dtype, shape in metas:
        if len(shape) > native.MAX_DIMENSIONS:
            raise InvalidRequestError(f"expected at most {native.MAX_DIMENSIONS} dimensions, got {len(shape)}")
        if kind in (ALLGATHER, ALLTOALL, REDUCESCATTER) and not shape:
            raise InvalidRequestError(f"{label} needs rows: expected at least one dimension, got a 0-d tensor")
        assert 0 <= dtype <= UINT64


def check_reduction(kind: int, op: Any, dtypes: Sequence[int]) -> None:
    """Raises if tensors have no such reduction."""
    try:
        known = 0 <= operator.index(op) < len(native.OP_NAMES)
    except TypeError:
        known = False
    if not known:
        raise InvalidRequestError(f"op={shown(op)}: expected one of {', '.join(native.OP_NAMES)}")
    if op == Adasum and kind != ALLREDUCE:
        raise NotImplementedError("op=Adasum is for allreduce and grouped_allreduce alone")
    for dtype in dtypes:
        if op == Adasum and dtype not in _FLOATS:
            raise InvalidRequestError(f"op=Adasum is for floating-point tensors, got {native.DTYPE_NAMES[dtype]}")
        if op in BITWISE and dtype in _FLOATS:
            raise InvalidRequestError(
                f"op={native.OP_NAMES[op]} is for integers and bool, got {native.DTYPE_NAMES[dtype]}\n"
                "hint: view it as integers of its width"
            )
        if dtype == BOOL and op not in (Min, Max, *BITWISE):
            raise InvalidRequestError(
                f"bool tensors: expected op Min, Max, BitAnd, BitOr or BitXor, got op={native.OP_NAMES[op]}\n"
                "hint: cast it to an integer"
            )


def own_rows(place: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what this rank gets of a reducescatter: as the native core deals the rows (rows_of_member)."""
    members, index = place
    return shape[0] // members + (index < shape[0] % members), *shape[1:]


def check_adasum_ranks(members: int) -> None:
    """Raises NotImplementedError if that many ranks cannot be combined in pairs."""
    if members & (members - 1):
        raise NotImplementedError(
            f"Adasum needs 2, 4, 8, ... ranks, got {members}\nhint: start as many, or give a process set of as many"
        )


def request_of(
    kind: int,
    wire_name: bytes | None,
    metas: Metas,
    *,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = 0,
    root_rank: int = -1,
    splits: Sequence[int] | None = None,
    gpu: Gpu | None = None,
    tag: int = 0,
) -> native.Request:
    """The request for the native core, without addresses."""
    tensors = (native.Tensor * len(metas))()
    for tensor, (dtype, shape) in zip(tensors, metas, strict=True):
        tensor.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        tensor.ndim = len(shape)
        tensor.dtype = dtype
    request = native.Request(
        size=ctypes.sizeof(native.Request),
        kind=kind,
        op=op,
        process_set=process_set,
        root_rank=root_rank,
        ntensors=len(metas),
        tensor_size=ctypes.sizeof(native.Tensor),
        name=wire_name,
        tensors=tensors,
        prescale=prescale,
        postscale=postscale,
        tag=tag,
    )
    if gpu is not None:
        request.place, request.device = native.ON_CUDA, gpu.ordinal
    if splits is not None:
        request.splits = (ctypes.c_int64 * max(len(splits), 1))(*splits)
        request.nsplits = len(splits)
    return request


def forms_of(staged: Sequence[Any]) -> list[Any]:
    """Dtype and shape of each."""
    return [form for mine in staged for form in (mine.dtype, mine.shape)]
