# SPDX-License-Identifier: Apache-2.0
"""Makes a database of image files: convert_imageset [flags] ROOTFOLDER/ LISTFILE DATABASE.

As in Caffe, an image that cannot be read is named and left out.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from horovod.caffe.data.databases import backend_flag, write_database
from horovod.caffe.data.transform import opencv
from horovod.caffe.errors import CaffeError
from horovod.caffe.flags import Flags, guarded
from horovod.caffe.layers.data import lines_of
from horovod.caffe.layers.images import load_image
from horovod.caffe.log import Log
from horovod.caffe.schema import message
from horovod.core.wording import on_one_line

__all__ = ["main"]


def records(flags: argparse.Namespace, log: Log) -> Iterator[tuple[bytes, Any]]:
    """Keys and Datum messages of the files that the list names."""
    lines = lines_of(flags.listfile)
    if flags.shuffle:
        log.info("Shuffling data")
        random.shuffle(lines)
    log.info(f"A total of {len(lines)} images.")
    opencv()  # without it, no image can be read
    size: int | None = None
    left_out = 0
    for index, line in enumerate(lines):
        name, _, label = line.rpartition(" ")
        if not name or not label.lstrip("-").isdigit():
            raise CaffeError(f"{flags.listfile}: expected a file and a number, got {line!r}")
        datum = message("Datum")(label=int(label))
        path = flags.rootfolder + name
        try:
            image = load_image(path, not flags.gray, flags.resize_height, flags.resize_width)
        except CaffeError as error:
            log.error(str(error))
            left_out += 1
            continue
        if flags.encoded and not (flags.resize_height and flags.resize_width):
            datum.data, datum.encoded = Path(path).read_bytes(), True
        else:
            datum.channels, datum.height, datum.width = image.shape
            datum.data = image.tobytes()
            if flags.check_size and size not in (None, len(datum.data)):
                raise CaffeError(f"{on_one_line(path)}: has {len(datum.data)} bytes, and the images before it {size}")
            size = len(datum.data)
        yield f"{index:08d}_{name}".encode(), datum
    if left_out == len(lines):
        raise CaffeError(f"{flags.listfile}: none of its {left_out} images could be read")
    if left_out:
        log.warning(f"{left_out} of {len(lines)} images could not be read, and are left out")


def _main(arguments: Sequence[str]) -> int:
    parser = Flags("convert_imageset [flags] ROOTFOLDER/ LISTFILE DATABASE")
    parser.flag("gray", False, "read images as gray ones")
    parser.flag("shuffle", False, "write the images in random order")
    backend_flag(parser)
    parser.flag("resize_width", 0, "the width to resize to")
    parser.flag("resize_height", 0, "the height to resize to")
    parser.flag("check_size", False, "fail if the images' sizes differ")
    parser.flag("encoded", False, "store the files as they are, unless they are resized")
    for name in ("rootfolder", "listfile", "database"):
        parser.add_argument(name)
    flags = parser.read(arguments)
    log = Log()
    count = write_database(flags.backend, flags.database, records(flags, log))
    log.info(f"Processed {count} files.")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns the exit status."""
    return guarded(_main, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
