# SPDX-License-Identifier: Apache-2.0
"""Requests: the checks that a call's fixed part gets once, the cache of prepared entries, and the crossing into the
native core (steps 3 and 4 of a gradient's way). core/collectives.py says what goes into them.

Everything here runs on the caller's thread and never blocks on a peer.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from horovod.core import native
from horovod.core.context import Context, Entry
from horovod.core.exceptions import DuplicateNameError, InvalidRequestError
from horovod.core.native import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    REDUCESCATTER,
    Adasum,
    Max,
    Min,
    Sum,
)

__all__ = [
    "LOCAL_ERRORS",
    "Key",
    "Metas",
    "NotAMemberError",
    "check_adasum_ranks",
    "check_name",
    "check_reduction",
    "prepare",
    "refuse",
    "refuse_as",
    "request_of",
    "submit_group",
    "submit_one",
    "wire_name",
]

# (kind, name, op or root or splits, dtype, shape, prescale, postscale, process set): what a request is cached by.
Key = tuple[Any, ...]
Metas = tuple[tuple[int, tuple[int, ...]], ...]  # by tensor: dtype, shape

# Names that never come back must not fill the memory.
MAX_ENTRIES = 16384


class NotAMemberError(InvalidRequestError):
    """This rank is no member of the process set: nobody waits for it there."""


# What a rank may get wrong in its own call.
LOCAL_ERRORS = (TypeError, ValueError, NotImplementedError, OverflowError)


def prepare(
    context: Context,
    key: Key,
    label: str,
    metas: Metas,
    root_rank: int = -1,
    splits: Sequence[int] | None = None,
) -> int | native.Request:
    """A key seen for the first time: checks what it fixes and returns its request; an entry from the second time
    on, so that a name which never comes back leaves nothing behind in the native core."""
    kind, name, op, *_, prescale, postscale, set_number = key
    check_name(name)
    if kind in (ALLREDUCE, REDUCESCATTER):
        check_reduction(kind, op, [dtype for dtype, _ in metas])
        if op == Adasum:
            check_adasum_ranks(context.place(set_number)[0])
    for dtype, shape in metas:
        if len(shape) > native.MAX_DIMENSIONS:
            raise InvalidRequestError(f"expected at most {native.MAX_DIMENSIONS} dimensions, seen {len(shape)}")
        if kind in (ALLGATHER, ALLTOALL, REDUCESCATTER) and not shape:
            raise InvalidRequestError(f"{label} goes by rows: expected at least one dimension, seen a 0-d tensor")
        assert 0 <= dtype <= BOOL
    request = request_of(kind, wire_name(label, name), op, metas, float(prescale), float(postscale), root_rank)
    request.process_set = set_number
    if splits is not None:
        request.splits = (ctypes.c_int64 * max(len(splits), 1))(*splits)
        request.nsplits = len(splits)
    if key not in context.sighted:
        if len(context.sighted) >= MAX_ENTRIES:
            context.sighted.clear()
        context.sighted.add(key)
        return request
    entry = ctypes.c_void_p()
    code = context.library.hvd_prepare(
        context.pointer, ctypes.addressof(request), ctypes.addressof(entry), native.scratch.status_address
    )
    if code != native.OK or entry.value is None:
        context.raise_failure(code, native.scratch.status)
    if len(context.entries) >= MAX_ENTRIES:
        for oldest in list(itertools.islice(context.entries, MAX_ENTRIES // 2)):
            context.entries.pop(oldest, None)
    prepared = context.entries[key] = Entry.of(context, entry.value)
    return prepared


def wire_name(label: str, name: str | None) -> bytes | None:
    """The name under which the ranks meet."""
    return None if name is None else f"{label}.{name}".encode()


def check_name(name: Any) -> None:
    """Raises TypeError or ValueError where `name` is none."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: expected a str, seen {type(name).__name__}")
    if name is not None and "\0" in name:
        raise InvalidRequestError(f"name {name!r}: a name cannot hold a NUL character")


def check_reduction(kind: int, op: Any, dtypes: Sequence[int]) -> None:
    """Raises where tensors have no such reduction."""
    try:
        known = 0 <= operator.index(op) < len(native.OP_NAMES)
    except TypeError:
        known = False
    if not known:
        raise InvalidRequestError(f"op={op!r}: expected one of {', '.join(native.OP_NAMES)}")
    if op == Adasum and kind != ALLREDUCE:
        raise NotImplementedError("op=Adasum is for allreduce and grouped_allreduce alone")
    for dtype in dtypes:
        if op == Adasum and dtype not in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64):
            raise InvalidRequestError(f"op=Adasum is for floating-point tensors, seen {native.DTYPE_NAMES[dtype]}")
        if dtype == BOOL and op not in (Min, Max):
            raise InvalidRequestError(
                f"a bool tensor has Min (and) and Max (or), seen op={native.OP_NAMES[op]}\nhint: cast it to an integer"
            )


def check_adasum_ranks(members: int) -> None:
    """Raises NotImplementedError where that many ranks cannot be combined in pairs."""
    if members & (members - 1):
        raise NotImplementedError(
            f"Adasum needs a power of two ranks, seen {members}\nhint: start 2, 4, 8, ... ranks, or give a process set"
        )


def request_of(
    kind: int,
    wire_name: bytes | None,
    op: Any,
    metas: Metas,
    prescale: float,
    postscale: float,
    root_rank: int,
) -> native.Request:
    """What crosses into the native core, without addresses."""
    tensors = (native.Tensor * len(metas))()
    for tensor, (dtype, shape) in zip(tensors, metas, strict=True):
        tensor.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        tensor.ndim = len(shape)
        tensor.dtype = dtype
    return native.Request(
        size=ctypes.sizeof(native.Request),
        kind=kind,
        op=op if kind in (ALLREDUCE, REDUCESCATTER) else Sum,
        root_rank=root_rank,
        ntensors=len(metas),
        tensor_size=ctypes.sizeof(native.Tensor),
        name=wire_name,
        tensors=tensors,
        prescale=prescale,
        postscale=postscale,
    )


def submit_one(context: Context, entry: int | native.Request, source: int, target: int | None, flags: int) -> int:
    """The hot path: two addresses and one call. Returns the native handle."""
    scratch = native.scratch
    if not isinstance(entry, int):
        return _submit_request(context, entry, [source], [target], flags)
    scratch.input[0] = source
    scratch.output[0] = target
    code = context.library.hvd_submit_entry(
        context.pointer,
        entry,
        scratch.input_address,
        scratch.output_address,
        flags,
        scratch.handle_address,
        scratch.status_address,
    )
    if code:
        context.raise_failure(code, scratch.status)
    return scratch.handle.value


def submit_group(
    context: Context, entry: int | native.Request, sources: list[int], targets: Sequence[int | None], flags: int
) -> int:
    """As submit_one, of several tensors."""
    if not isinstance(entry, int):
        return _submit_request(context, entry, sources, targets, flags)
    scratch = native.scratch
    inputs = (ctypes.c_void_p * len(sources))(*sources)
    outputs = (ctypes.c_void_p * len(targets))(*targets)
    code = context.library.hvd_submit_entry(
        context.pointer,
        entry,
        ctypes.addressof(inputs),
        ctypes.addressof(outputs),
        flags,
        scratch.handle_address,
        scratch.status_address,
    )
    if code:
        context.raise_failure(code, scratch.status)
    return scratch.handle.value


def _submit_request(
    context: Context,
    request: native.Request,
    sources: Sequence[int],
    targets: Sequence[int | None],
    flags: int,
) -> int:
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        request.tensors[index].input = source
        request.tensors[index].output = target
    request.flags = flags
    scratch = native.scratch
    code = context.library.hvd_submit(
        context.pointer, ctypes.addressof(request), scratch.handle_address, scratch.status_address
    )
    if code:
        context.raise_failure(code, scratch.status)
    return scratch.handle.value


def refuse(context: Context, label: str, name: Any, error: Exception, process_set: int = 0) -> NoReturn:
    """Tells the peers why this rank's call of `<label>.<name>` failed, then raises the same error with rank and
    operation in front."""
    shown = f"{label} of an unnamed tensor" if name is None else f"{label} of `{name}`"
    # A name that is no str is what the peers may well have as one: they wait under it.
    refuse_as(context, None if name is None else f"{label}.{name}".partition("\0")[0], shown, error, process_set)


def refuse_as(context: Context, wire_name: str | None, shown: str, error: Exception, process_set: int) -> NoReturn:
    """refuse() for any name: as the native core knows it, and as people read it."""
    if isinstance(error, (DuplicateNameError, NotAMemberError)):
        raise error
    # The native core says itself on which rank and in which operation.
    reason = re.sub(rf"^rank {context.rank}, (?:unnamed request|`.*?`): ", "", str(error))
    text = f"rank {context.rank}: {shown}: {reason}" + context.refuse(wire_name, process_set, reason)
    # Subclasses of ValueError may take other arguments than a text (UnicodeEncodeError).
    raise (type(error) if type(error) in (TypeError, NotImplementedError) else InvalidRequestError)(text) from error
