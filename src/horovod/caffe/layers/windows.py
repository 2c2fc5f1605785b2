# SPDX-License-Identifier: Apache-2.0
"""WindowData: windows of images, some with objects and some without, as R-CNN trains on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horovod.caffe.data.transform import Image, Transformer, opencv
from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import layer
from horovod.caffe.layers.data import Batches, lines_of
from horovod.caffe.layers.images import load_image

__all__ = ["WindowData", "read_windows"]


@dataclass(frozen=True)
class Window:
    """A part of an image file: corners, its class, and how much of an object it covers."""

    path: str
    label: int
    overlap: float
    box: tuple[int, int, int, int]  # left, top, right, bottom; the last two are inside


def read_windows(source: str, root: str) -> list[Window]:
    """The windows of a file: for each image `# index`, path, channels, height, width, a count, and the windows."""
    words = iter(" ".join(lines_of(source)).split())
    found = []
    try:
        for word in words:
            if word != "#":
                raise ValueError(f"expected #, got {word!r}")
            next(words)  # the image's number
            path = root + next(words)
            for _ in range(3):  # channels, height, width: the image itself tells them
                next(words)
            for _ in range(int(next(words))):
                label, overlap = int(next(words)), float(next(words))
                box = (int(next(words)), int(next(words)), int(next(words)), int(next(words)))
                found.append(Window(path, label, overlap, box))
    except (ValueError, StopIteration) as error:
        raise CaffeError(f"{source}: is not a file of windows: {error or 'it ends too early'}") from error
    return found


@layer("WindowData")
class WindowData(Batches):
    """Tops: the windows, resized to crop_size, and their classes; 0 is the background."""

    tops = (2, 2)

    def open(self) -> list[tuple[int, ...]]:
        param = self.proto.window_data_param
        self.count = self.size_of_batch(param)
        transformation = self.proto.transform_param
        self.crop = transformation.crop_size
        if not self.crop:
            raise CaffeError("transform_param.crop_size is missing")
        if param.crop_mode not in ("warp", "square"):
            raise CaffeError(f"crop_mode: expected warp or square, got {param.crop_mode!r}")
        windows = read_windows(param.source, param.root_folder)
        self.objects = [one for one in windows if one.overlap >= param.fg_threshold]
        self.background = [one for one in windows if one.overlap < param.bg_threshold]
        self.wanted = int(self.count * param.fg_fraction)
        if (self.wanted and not self.objects) or (self.wanted < self.count and not self.background):
            found = f"{len(self.objects)} of objects and {len(self.background)} of background"
            raise CaffeError(f"{param.source}: has too few windows: {found}")
        self.transform: Transformer = self.transformer()
        channels = load_image(windows[0].path).shape[0]
        return [(self.count, channels, self.crop, self.crop), (self.count,)]

    def batch(self) -> list[Image]:
        random = self.transform.random
        images = np.zeros(self.top_shapes[0], np.float32)
        labels = np.zeros(self.count, np.float32)
        for place in range(self.count):
            is_object = place >= self.count - self.wanted
            windows = self.objects if is_object else self.background
            window = windows[int(random.integers(len(windows)))]
            self._fill(images[place], window, bool(self.transform.mirror and random.integers(2)))
            labels[place] = window.label if is_object else 0
        return [images, labels]

    def _fill(self, target: Image, window: Window, mirrored: bool) -> None:
        """Puts the window, with its context, into the zeros of `target`."""
        image = load_image(window.path)
        left, top, right, bottom, size, (row, column) = self._place(window, image, mirrored)
        part = np.ascontiguousarray(image[:, top : bottom + 1, left : right + 1].transpose(1, 2, 0))
        resized = opencv().resize(part, size).transpose(2, 0, 1).astype(np.float32)
        if mirrored:
            resized = resized[:, :, ::-1]
        rows, columns = slice(row, row + size[1]), slice(column, column + size[0])
        mean = self.transform.mean
        if mean is not None and mean.shape[1] > 1:
            offset = (mean.shape[1] - self.crop) // 2
            resized = resized - mean[:, offset:, offset:][:, rows, columns]
        elif mean is not None:
            resized = resized - mean
        target[:, rows, columns] = resized * np.float32(self.transform.scale)

    def _place(
        self, window: Window, image: Image, mirrored: bool
    ) -> tuple[int, int, int, int, tuple[int, int], tuple[int, int]]:
        """The box to cut out, the size to scale it to, and its place in the crop."""
        param, crop = self.proto.window_data_param, self.crop
        left, top, right, bottom = window.box
        if not param.context_pad and param.crop_mode == "warp":
            return left, top, right, bottom, (crop, crop), (0, 0)
        # The box grows so that it has context_pad pixels of context around it once it is resized.
        scale = crop / (crop - 2 * param.context_pad)
        half_height, half_width = (bottom - top + 1) / 2, (right - left + 1) / 2
        middle = left + half_width, top + half_height
        if param.crop_mode == "square":
            half_height = half_width = max(half_height, half_width)
        edges = [
            round(middle[0] - half_width * scale),
            round(middle[1] - half_height * scale),
            round(middle[0] + half_width * scale),
            round(middle[1] + half_height * scale),
        ]
        whole_width, whole_height = edges[2] - edges[0] + 1, edges[3] - edges[1] + 1
        inside = [
            max(0, edges[0]),
            max(0, edges[1]),
            min(image.shape[2] - 1, edges[2]),
            min(image.shape[1] - 1, edges[3]),
        ]
        by_width, by_height = crop / whole_width, crop / whole_height
        width = round((inside[2] - inside[0] + 1) * by_width)
        height = round((inside[3] - inside[1] + 1) * by_height)
        outside = edges[2] - inside[2] if mirrored else inside[0] - edges[0]
        row, column = round((inside[1] - edges[1]) * by_height), round(outside * by_width)
        size = min(width, crop - column), min(height, crop - row)
        return inside[0], inside[1], inside[2], inside[3], size, (row, column)
