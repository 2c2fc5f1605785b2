# SPDX-License-Identifier: Apache-2.0
"""Layers that bring data in: databases and HDF5 files, memory, constants, the caller's own values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from horovod.caffe.data.databases import open_database
from horovod.caffe.data.prefetch import Prefetch
from horovod.caffe.data.records import Lmdb, image_of
from horovod.caffe.data.shard import Shard, shuffled
from horovod.caffe.data.transform import Image, Transformer
from horovod.caffe.errors import CaffeError
from horovod.caffe.fillers import fill
from horovod.caffe.layers.base import Context, Layer, filler, layer
from horovod.core.wording import on_one_line

__all__ = ["Batches", "Input"]

_AHEAD = 4  # batches; Caffe's own default


class Batches(Layer):
    """A layer whose batches a thread makes ahead. Subclasses open their source in open(), and make one in batch()."""

    bottoms: ClassVar[tuple[int, int | None]] = (0, 0)
    tops: ClassVar[tuple[int, int | None]] = (1, 2)
    ahead = _AHEAD

    def setup(self, bottoms: list[Tensor]) -> None:
        self.top_shapes = self.open()
        self._prefetch = Prefetch(self.batch, self.ahead)

    def open(self) -> list[tuple[int, ...]]:
        """Opens the source; returns the tops' shapes."""
        raise NotImplementedError

    def batch(self) -> list[Image]:
        """The next tops. Runs in a thread."""
        raise NotImplementedError

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        if self.context.building:
            return [torch.empty(shape, device="meta") for shape in self.top_shapes]
        return [torch.from_numpy(values).to(torch.get_default_dtype()) for values in next(self._prefetch)]

    def close(self) -> None:
        self._prefetch.close()

    def size_of_batch(self, param: Any) -> int:
        if param.batch_size < 1:
            raise CaffeError("batch_size must be at least 1")
        return int(param.batch_size)

    def transformer(self) -> Transformer:
        """The layer's transformation, with random numbers that differ from rank to rank."""
        seed = (self.context.seed, self.context.replicas.rank, self.context.phase)
        return Transformer(self.proto.transform_param, self.training, seed)

    def skipped(self, rand_skip: int) -> int:
        """How many records are left out at the start: the same number on all ranks."""
        return int(np.random.default_rng(self.context.seed).integers(rand_skip)) if rand_skip else 0


@layer("Data")
class Data(Batches):
    """Images and labels from a database. Tops: the images, and the labels if wanted."""

    def open(self) -> list[tuple[int, ...]]:
        param = self.proto.data_param
        if not param.source:
            raise CaffeError("data_param.source is missing")
        if param.shuffle and param.backend == param.LEVELDB:
            raise CaffeError("shuffle needs backend: LMDB, because a LevelDB is read in its own order")
        self.count, self.ahead = self.size_of_batch(param), param.prefetch
        self.records = open_database(param.DB.Name(param.backend).lower(), param.source)
        self.transform = self.transformer()
        size = len(self.records) if isinstance(self.records, Lmdb) else None
        order = shuffled(size, self.context.seed) if size and param.shuffle else None
        self.shard = Shard(size, self.context.replicas, order, self.skipped(param.rand_skip))
        transformation = self.proto.transform_param
        forced = transformation.force_color or param.force_encoded_color
        self.is_color = True if forced else False if transformation.force_gray else None
        shape = self.transform.size(image_of(self.records[0], self.is_color, param.source).shape)
        return [(self.count, *shape), (self.count,)][: len(self.proto.top)]

    def batch(self) -> list[Image]:
        images = np.empty(self.top_shapes[0], np.float32)
        labels = np.empty(self.count, np.float32)
        for place in range(self.count):
            index = next(self.shard)
            datum = self.records[index]
            name = f"{self.records.path}: record {index}"
            image = self.transform(image_of(datum, self.is_color, name))
            if image.shape != images.shape[1:]:
                raise CaffeError(
                    f"{on_one_line(name)} has shape {list(image.shape)}, and the first one {list(images.shape[1:])}"
                )
            images[place], labels[place] = image, datum.label
        return [images, labels][: len(self.proto.top)]

    def close(self) -> None:
        super().close()
        self.records.close()


@layer("HDF5Data")
class HDF5Data(Batches):
    """Data sets, named as the tops, from the HDF5 files that a text file lists."""

    tops = (1, None)

    def open(self) -> list[tuple[int, ...]]:
        param = self.proto.hdf5_data_param
        self.count = self.size_of_batch(param)
        self.files = lines_of(param.source)
        sizes = []
        for path in self.files:
            with hdf5(path) as file:
                missing = [name for name in self.proto.top if name not in file]
                if missing:
                    raise CaffeError(
                        f"{on_one_line(path)}: has no data set {missing[0]!r}; there are {', '.join(file)}"
                    )
                shapes = [file[name].shape for name in self.proto.top]
            if len({shape[0] for shape in shapes}) != 1:
                raise CaffeError(f"{on_one_line(path)}: the data sets differ in length: {shapes}")
            sizes.append(shapes[0][0])
        self.starts = np.cumsum([0, *sizes])
        order = self._order if param.shuffle else None
        self.shard = Shard(int(self.starts[-1]), self.context.replicas, order)
        self.loaded: tuple[int, list[Image]] = (-1, [])
        return [(self.count, *shape[1:]) for shape in shapes]

    def _order(self, epoch: int) -> Any:
        """Files in another order each time, and their rows."""
        random = np.random.default_rng((self.context.seed, epoch))
        pieces = [np.arange(a, b) for a, b in zip(self.starts, self.starts[1:], strict=False)]
        return np.concatenate([random.permutation(pieces[index]) for index in random.permutation(len(pieces))])

    def batch(self) -> list[Image]:
        tops = [np.empty(shape, np.float32) for shape in self.top_shapes]
        for place in range(self.count):
            index = next(self.shard)
            number = int(np.searchsorted(self.starts, index, "right")) - 1
            for top, values in zip(tops, self._load(number), strict=True):
                top[place] = values[index - self.starts[number]]
        return tops

    def _load(self, number: int) -> list[Image]:
        if self.loaded[0] != number:
            with hdf5(self.files[number]) as file:
                self.loaded = (number, [np.asarray(file[name], np.float32) for name in self.proto.top])
        return self.loaded[1]


def hdf5(path: str) -> Any:
    """An open file, to be used in a `with`."""
    import h5py  # only those who use such files need it

    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise CaffeError(f"{on_one_line(path)}: cannot be opened as HDF5: {error}") from error


def lines_of(path: str) -> list[str]:
    """The lines of a text file that are not empty."""
    if not path:
        raise CaffeError("source is missing")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CaffeError(f"{on_one_line(path)}: cannot be read: {error}") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise CaffeError(f"{on_one_line(path)}: has no lines")
    return found


@layer("MemoryData")
class MemoryData(Layer):
    """Images and labels that the program gives with set_data(), batch after batch, round and round."""

    bottoms, tops = (0, 0), (2, 2)

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.memory_data_param
        self.shape = (param.batch_size, param.channels, param.height, param.width)
        if min(self.shape) < 1:
            raise CaffeError("batch_size, channels, height and width must be at least 1")
        self.data: Tensor | None = None
        self.place = 0

    def set_data(self, data: Any, labels: Any) -> None:
        """`data`: (n, channels, height, width), with n a multiple of batch_size; `labels`: n numbers."""
        data = torch.as_tensor(data, dtype=torch.get_default_dtype())
        if data.shape[1:] != self.shape[1:] or len(data) % self.shape[0] or not len(data):
            self.fail(
                f"expected a multiple of {self.shape[0]} images of {list(self.shape[1:])}, got {list(data.shape)}"
            )
        self.data, self.labels, self.place = (
            data,
            torch.as_tensor(labels, dtype=torch.get_default_dtype()).reshape(-1),
            0,
        )
        if len(self.labels) != len(data):
            self.fail(f"expected {len(data)} labels, got {len(self.labels)}")

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        if self.context.building:
            return [torch.empty(self.shape, device="meta"), torch.empty(self.shape[0], device="meta")]
        if self.data is None:
            raise CaffeError("has no data: call set_data() of this layer first")
        rows = slice(self.place, self.place + self.shape[0])
        self.place = rows.stop % len(self.data)
        return [self.data[rows], self.labels[rows]]


@layer("DummyData")
class DummyData(Layer):
    """Tops filled by fillers: constants once, others in each pass."""

    bottoms, tops = (0, 0), (1, None)

    def setup(self, bottoms: list[Tensor]) -> None:
        param, count = self.proto.dummy_data_param, len(self.proto.top)
        if param.shape:
            shapes = [list(shape.dim) for shape in param.shape]
        else:
            rows = (param.num, param.channels, param.height, param.width)
            if len({len(row) for row in rows}) != 1:
                raise CaffeError("expected as many num as channels, height and width")
            shapes = [list(shape) for shape in zip(*rows, strict=True)]
        fillers = list(param.data_filler) or [filler()]
        if len(shapes) not in (1, count) or len(fillers) not in (1, count):
            raise CaffeError(f"expected 1 or {count} shapes and fillers, got {len(shapes)} and {len(fillers)}")
        self.shapes = shapes * count if len(shapes) == 1 else shapes
        self.how = fillers * count if len(fillers) == 1 else fillers
        self.constants: dict[int, Tensor] = {}

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        if self.context.building:
            return [torch.empty(shape, device="meta") for shape in self.shapes]
        return [self._filled(index) for index in range(len(self.shapes))]

    def _filled(self, index: int) -> Tensor:
        if index in self.constants:
            return self.constants[index]
        values = torch.empty(self.shapes[index])
        fill(values, self.how[index])
        if self.how[index].type == "constant":
            self.constants[index] = values
        return values


@layer("Input")
class Input(Layer):
    """The arrays that the caller gives to Net.forward(); zeros before the first call."""

    bottoms, tops = (0, 0), (1, None)

    def __init__(self, proto: Any, context: Context) -> None:
        super().__init__(proto, context)
        self.values: dict[str, Tensor] = {}

    def setup(self, bottoms: list[Tensor]) -> None:
        shapes = [list(shape.dim) for shape in self.proto.input_param.shape]
        if len(shapes) not in (1, len(self.proto.top)):
            raise CaffeError(f"expected a shape for each of {len(self.proto.top)} tops, got {len(shapes)}")
        self.shapes = shapes * len(self.proto.top) if len(shapes) == 1 else shapes

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        if self.context.building:
            return [torch.empty(shape, device="meta") for shape in self.shapes]
        for name, shape in zip(self.proto.top, self.shapes, strict=True):
            self.values.setdefault(name, torch.zeros(shape))
        return [self.values[name] for name in self.proto.top]
