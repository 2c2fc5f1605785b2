# SPDX-License-Identifier: Apache-2.0
"""Writes the mean image of an LMDB: compute_image_mean [--backend=lmdb] DATABASE [FILE]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from horovod.caffe.data.records import Lmdb, image_of
from horovod.caffe.errors import CaffeError
from horovod.caffe.files import blob_of
from horovod.caffe.flags import Flags, guarded
from horovod.caffe.log import Log, number
from horovod.caffe.tools.convert_mnist_data import check_backend

__all__ = ["main"]


def _main(arguments: Sequence[str]) -> int:
    parser = Flags("compute_image_mean [--backend=lmdb] DATABASE [FILE]")
    parser.flag("backend", "lmdb", "the kind of database; lmdb is the only one")
    parser.add_argument("database")
    parser.add_argument("file", nargs="?")
    flags = parser.read(arguments)
    check_backend(flags.backend)
    log, records = Log(), Lmdb(flags.database)
    log.info("Starting iteration")
    total = image_of(records[0]).astype(np.float64)
    for index in range(1, len(records)):
        image = image_of(records[index])
        if image.shape != total.shape:
            raise CaffeError(f"record {index} has shape {list(image.shape)}, and the first one {list(total.shape)}")
        total += image
    log.info(f"Processed {len(records)} files.")
    mean = (total / len(records)).astype(np.float32)
    if flags.file:
        log.info(f"Write to {flags.file}")
        try:
            Path(flags.file).write_bytes(blob_of(mean[None]).SerializeToString())
        except OSError as error:
            raise CaffeError(str(error)) from error
    log.info(f"Number of channels: {len(mean)}")
    for channel, values in enumerate(mean):
        log.info(f"mean_value channel [{channel}]: {number(float(values.mean()))}")
    records.close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns the exit status."""
    return guarded(_main, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
