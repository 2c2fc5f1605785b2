# SPDX-License-Identifier: Apache-2.0
"""Makes a database of MNIST's files: convert_mnist_data [--backend=lmdb] IMAGES LABELS DATABASE."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from horovod.caffe.data.databases import backend_flag, write_database
from horovod.caffe.errors import CaffeError
from horovod.caffe.flags import Flags, guarded
from horovod.caffe.log import Log
from horovod.caffe.schema import message

__all__ = ["main"]

_IMAGES, _LABELS = 2051, 2049  # the files' magic numbers


def records(images: bytes, labels: bytes) -> Iterator[tuple[bytes, Any]]:
    """Keys and Datum messages of two IDX files."""
    try:
        kind, count, height, width = struct.unpack_from(">4I", images)
        label_kind, label_count = struct.unpack_from(">2I", labels)
    except struct.error as error:
        raise CaffeError(f"the files are too short for MNIST's form: {error}") from error
    size = height * width
    if kind != _IMAGES or label_kind != _LABELS or count != label_count:
        raise CaffeError(f"these are not MNIST's image and label files: {kind}, {label_kind}, {count}, {label_count}")
    if len(images) != 16 + count * size or len(labels) != 8 + count:
        raise CaffeError("the files are cut off")
    datum = message("Datum")(channels=1, height=height, width=width)
    for index in range(count):
        datum.data, datum.label = images[16 + index * size : 16 + (index + 1) * size], labels[8 + index]
        yield b"%08d" % index, datum


def _main(arguments: Sequence[str]) -> int:
    parser = Flags("convert_mnist_data [--backend=lmdb] IMAGES LABELS DATABASE")
    backend_flag(parser)
    for name in ("images", "labels", "database"):
        parser.add_argument(name)
    flags = parser.read(arguments)
    try:
        contents = [Path(path).read_bytes() for path in (flags.images, flags.labels)]
    except OSError as error:
        raise CaffeError(str(error)) from error
    count = write_database(flags.backend, flags.database, records(*contents))
    Log().info(f"Processed {count} files.")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns the exit status."""
    return guarded(_main, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
