# SPDX-License-Identifier: Apache-2.0
"""Writes the mean image of a database: compute_image_mean [--backend=lmdb] DATABASE [FILE]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from horovod.caffe.data.databases import backend_flag, open_database
from horovod.caffe.data.records import image_of
from horovod.caffe.errors import CaffeError
from horovod.caffe.files import blob_of, replacing
from horovod.caffe.flags import Flags, guarded
from horovod.caffe.log import Log, number

__all__ = ["main"]


def _main(arguments: Sequence[str]) -> int:
    parser = Flags("compute_image_mean [--backend=lmdb] DATABASE [FILE]")
    backend_flag(parser)
    parser.add_argument("database")
    parser.add_argument("file", nargs="?")
    flags = parser.read(arguments)
    log, records = Log(), open_database(flags.backend, flags.database)
    log.info("Starting iteration")
    total, count = np.zeros(image_of(records[0]).shape), 0
    for datum in records:
        image = image_of(datum)
        if image.shape != total.shape:
            raise CaffeError(f"record {count} has shape {list(image.shape)}, and the first one {list(total.shape)}")
        total += image
        count += 1
    log.info(f"Processed {count} files.")
    mean = (total / count).astype(np.float32)
    if flags.file:
        log.info(f"Write to {flags.file}")
        with replacing(flags.file) as partial:
            Path(partial).write_bytes(blob_of(mean[None]).SerializeToString())
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
