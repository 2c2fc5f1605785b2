# SPDX-License-Identifier: Apache-2.0
"""Weights, solver states and mean files, binary and HDF5. A file is written beside its place and then renamed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from horovod.caffe.errors import CaffeError
from horovod.caffe.schema import message
from horovod.caffe.upgrade import upgrade_net
from horovod.core.wording import on_one_line
from horovod.world.files.whole import replacement

__all__ = [
    "State",
    "array_of",
    "blob_of",
    "listed",
    "read_blob",
    "read_state",
    "read_weights",
    "replacing",
    "write_state",
    "write_weights",
]

Array = np.ndarray[Any, np.dtype[np.float32]]
Weights = dict[str, list[Array]]
_LITTLE_BYTES = 1 << 20
_PACKED_DATA = bytes([5 << 3 | 2])  # field 5, followed by its length


@dataclass
class State:
    """The contents of a .solverstate. `history`: one array for each parameter, two with AdaDelta and Adam."""

    iteration: int
    learned_net: str
    history: list[Array]
    current_step: int = 0
    minimum_loss: float = float(np.float32(1e38))
    iteration_of_last_event: int = 0


def is_hdf5(path: str) -> bool:
    """Caffe goes by the name."""
    return path.endswith(".h5")


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """A name of a file or folder to write, which becomes `path` once it is complete. Raises CaffeError with the cause.

    Nothing is left of what could not be written in full.
    """
    try:
        with replacement(path) as partial:
            yield partial
    except OSError as error:
        raise CaffeError(f"{on_one_line(path)}: cannot be written: {error.strerror or error}{_room(path)}") from error


def _room(path: str) -> str:
    """A note that the disk is full, or "". LMDB reports a full disk as an input/output error."""
    with suppress(OSError):
        free_bytes = shutil.disk_usage(os.path.dirname(path) or ".").free
        return f"; the disk is full: {free_bytes} bytes are left" if free_bytes < _LITTLE_BYTES else ""
    return ""


def _read_binary(path: str, kind: str) -> Any:
    parsed = message(kind)()
    try:
        parsed.ParseFromString(Path(path).read_bytes())
    except OSError as error:
        raise CaffeError(f"{on_one_line(path)}: cannot be read: {error}") from error
    except DecodeError as error:
        raise CaffeError(f"{on_one_line(path)}: is not a binary {kind} of Caffe: {error}") from error
    return parsed


def array_of(blob: Any, path: str = "blob") -> Array:
    """A BlobProto's values. An old blob without `shape` has four axes."""
    legacy = [blob.num, blob.channels, blob.height, blob.width]
    shape = list(blob.shape.dim) if blob.HasField("shape") else legacy
    values = np.array(blob.double_data, np.float32) if blob.double_data else _floats(blob.data)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise CaffeError(f"{on_one_line(path)}: a blob of shape {shape} has {values.size} values")
    return values.reshape(shape)


def _floats(values: Any) -> Array:
    """A repeated field of floats, by its bytes: one by one, the 60 million of an AlexNet would take many seconds."""
    alone = message("BlobProto")()
    alone.data.MergeFrom(values)
    count = len(values)
    return np.frombuffer(alone.SerializeToString(), "<f4", count, _size(alone) - 4 * count).astype(np.float32)


def _size(parsed: Any) -> int:
    size: int = parsed.ByteSize()
    return size


def blob_of(values: Array) -> Any:
    """The values as a BlobProto."""
    blob = message("BlobProto")()
    if values.size:
        content = np.ascontiguousarray(values, "<f4").tobytes()
        length, size = len(content), b""
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        blob.MergeFromString(_PACKED_DATA + size + bytes([length]) + content)
    blob.shape.dim.extend(values.shape)
    return blob


def listed(text: str) -> list[str]:
    """The files that a flag or a field names, separated by commas or blanks."""
    return [name for name in re.split(r"[,\s]+", text) if name]


def read_blob(path: str) -> Array:
    """A binary BlobProto, such as a mean file."""
    return array_of(_read_binary(path, "BlobProto"), path)


def read_weights(path: str) -> Weights:
    """The blobs of each layer that has some, by the layer's name."""
    if is_hdf5(path):
        with _hdf5(path, "r") as file:
            if "data" not in file:
                raise CaffeError(f"{on_one_line(path)}: has no group `data`: it is not a .caffemodel.h5")
            return {name: _numbered(group) for name, group in file["data"].items() if len(group)}
    net = _read_binary(path, "NetParameter")
    upgrade_net(net)
    return {layer.name: [array_of(blob, path) for blob in layer.blobs] for layer in net.layer if layer.blobs}


def write_weights(path: str, net: Any, weights: Sequence[list[Array]]) -> None:
    """Writes `net`, a NetParameter, with these blobs, a list for each layer."""
    with replacing(path) as partial:
        if is_hdf5(path):
            with _hdf5(partial, "w") as file:
                data = file.create_group("data")
                for layer, blobs in zip(net.layer, weights, strict=True):
                    group = data.require_group(layer.name)
                    for index, blob in enumerate(blobs):
                        group[str(index)] = blob
            return
        complete = message("NetParameter")()
        complete.CopyFrom(net)
        for layer, blobs in zip(complete.layer, weights, strict=True):
            del layer.blobs[:]
            layer.blobs.extend(map(blob_of, blobs))
        Path(partial).write_bytes(complete.SerializeToString())


def read_state(path: str) -> State:
    """A .solverstate or .solverstate.h5."""
    if is_hdf5(path):
        with _hdf5(path, "r") as file:
            try:
                learned = np.asarray(file["learned_net"][()]).item() if "learned_net" in file else b""
                learned = learned.decode() if isinstance(learned, bytes) else str(learned)
                numbers = [int(np.asarray(file[name][()]).item()) for name in ("iter", "current_step")]
                return State(numbers[0], learned, _numbered(file["history"]), numbers[1])
            except KeyError as error:
                raise CaffeError(f"{on_one_line(path)}: is not a .solverstate.h5: {error}") from error
    state = _read_binary(path, "SolverState")
    history = [array_of(blob, path) for blob in state.history]
    return State(state.iter, state.learned_net, history, state.current_step, state.minimum_loss, state.iter_last_event)


def write_state(path: str, state: State) -> None:
    """Writes a .solverstate or .solverstate.h5."""
    with replacing(path) as partial:
        if is_hdf5(path):
            with _hdf5(partial, "w") as file:
                file["iter"] = np.int32(state.iteration)
                file["current_step"] = np.int32(state.current_step)
                file["learned_net"] = np.bytes_(state.learned_net)
                group = file.create_group("history")
                for index, values in enumerate(state.history):
                    group[str(index)] = values
            return
        proto = message("SolverState")(
            iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step
        )
        if state.iteration_of_last_event:
            proto.minimum_loss, proto.iter_last_event = state.minimum_loss, state.iteration_of_last_event
        proto.history.extend(map(blob_of, state.history))
        Path(partial).write_bytes(proto.SerializeToString())


def _numbered(group: Any) -> list[Array]:
    """Datasets named "0", "1", ... of a group."""
    names: Sequence[str] = sorted(group, key=int)
    return [np.asarray(group[name], np.float32) for name in names]


@contextmanager
def _hdf5(path: str, mode: str) -> Iterator[Any]:
    import h5py  # only those who use such files need it

    try:
        with h5py.File(path, mode) as file:
            yield file
    except OSError as error:
        raise CaffeError(f"{on_one_line(path)}: cannot be opened as HDF5: {error}") from error
