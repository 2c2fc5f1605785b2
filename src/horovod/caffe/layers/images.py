# SPDX-License-Identifier: Apache-2.0
"""ImageData: image files that a text file lists, each with its label."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from horovod.caffe.data.shard import Shard, shuffled
from horovod.caffe.data.transform import Image, channels_first, decode, opencv
from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import layer
from horovod.caffe.layers.data import Batches, lines_of
from horovod.core.wording import on_one_line

__all__ = ["ImageData", "load_image"]


def load_image(path: str, is_color: bool = True, height: int = 0, width: int = 0) -> Image:
    """An image file as (channels, height, width) in BGR, resized if both sizes are given."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CaffeError(f"{on_one_line(path)}: cannot be read: {error}") from error
    image = decode(content, is_color, path)
    if not (height and width):
        return image
    resized = opencv().resize(np.ascontiguousarray(image.transpose(1, 2, 0)), (width, height))
    return channels_first(resized)


@layer("ImageData")
class ImageData(Batches):
    """Tops: the images, and the labels if wanted."""

    def open(self) -> list[tuple[int, ...]]:
        param = self.proto.image_data_param
        if bool(param.new_height) != bool(param.new_width):
            raise CaffeError("expected both new_height and new_width, or none of them")
        self.count = self.size_of_batch(param)
        self.files = [self._split(line, number) for number, line in enumerate(lines_of(param.source), 1)]
        self.transform = self.transformer()
        order = shuffled(len(self.files), self.context.seed) if param.shuffle else None
        self.shard = Shard(len(self.files), self.context.replicas, order, self.skipped(param.rand_skip))
        shape = self.transform.size(self._load(0).shape)
        return [(self.count, *shape), (self.count,)][: len(self.proto.top)]

    def _split(self, line: str, number: int) -> tuple[str, float]:
        path, _, label = line.rpartition(" ")
        try:
            return path, float(label)
        except ValueError as error:
            source = self.proto.image_data_param.source
            raise CaffeError(f"{source}:{number}: expected a file and a number, got {line!r}") from error

    def _load(self, index: int) -> Image:
        param = self.proto.image_data_param
        return load_image(
            f"{param.root_folder}{self.files[index][0]}", param.is_color, param.new_height, param.new_width
        )

    def batch(self) -> list[Image]:
        images = np.empty(self.top_shapes[0], np.float32)
        labels = np.empty(self.count, np.float32)
        for place in range(self.count):
            index = next(self.shard)
            image = self.transform(self._load(index))
            if image.shape != images.shape[1:]:
                path, shape = self.files[index][0], list(image.shape)
                raise CaffeError(f"{on_one_line(path)} has shape {shape}, and the first image {list(images.shape[1:])}")
            images[place], labels[place] = image, self.files[index][1]
        return [images, labels][: len(self.proto.top)]
