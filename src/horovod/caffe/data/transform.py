# SPDX-License-Identifier: Apache-2.0
"""TransformationParameter: crop, subtract the mean, scale, mirror; and images decoded as OpenCV does it, in BGR."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.caffe.errors import CaffeError
from horovod.caffe.files import read_blob
from horovod.core.wording import on_one_line

__all__ = ["Transformer", "decode", "opencv"]

Image = np.ndarray[Any, Any]


def opencv() -> Any:
    """OpenCV's module. Raises CaffeError if it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise CaffeError(
            f"images are decoded by OpenCV, which is not installed ({error})\nhint: pip install 'hvd[caffe]'"
        ) from error
    return cv2


def decode(content: bytes, is_color: bool | None, name: str) -> Image:
    """A JPEG or PNG file's pixels as (channels, height, width). None: as many channels as the file has."""
    cv2 = opencv()
    flag = cv2.IMREAD_UNCHANGED if is_color is None else cv2.IMREAD_COLOR if is_color else cv2.IMREAD_GRAYSCALE
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flag)
    if pixels is None:
        raise CaffeError(f"{on_one_line(name)}: is not an image that OpenCV can decode")
    return channels_first(pixels)


def channels_first(pixels: Image) -> Image:
    """(height, width) or (height, width, channels) as (channels, height, width)."""
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


class Transformer:
    """Applies a TransformationParameter to images (channels, height, width). Not for several threads at once."""

    def __init__(self, param: Any, training: bool, seed: Any) -> None:
        self.training, self.scale, self.mirror, self.crop = training, param.scale, param.mirror, param.crop_size
        self.random = np.random.default_rng(seed)
        self.mean: Image | None = None
        if param.HasField("mean_file"):
            if param.mean_value:
                raise CaffeError("transform_param has both mean_file and mean_value; expected one of them")
            mean = read_blob(param.mean_file)
            self.mean = mean.reshape(mean.shape[-3:])
        elif param.mean_value:
            self.mean = np.array(param.mean_value, np.float32)[:, None, None]

    def size(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that an image of this shape gets."""
        return (shape[0], self.crop, self.crop) if self.crop else shape

    def __call__(self, image: Image) -> Image:
        mean = self._mean_for(image.shape)
        if self.crop:
            spare = [size - self.crop for size in image.shape[1:]]
            if min(spare) < 0:
                raise CaffeError(
                    f"crop_size {self.crop} is larger than an image of {image.shape[1]} x {image.shape[2]}"
                )
            top, left = (int(self.random.integers(n + 1)) if self.training else n // 2 for n in spare)
            window = np.s_[:, top : top + self.crop, left : left + self.crop]
            image = image[window]
            if mean is not None and mean.shape[1] > 1:
                mean = mean[window]
        result = image.astype(np.float32)
        if mean is not None:
            result -= mean
        if self.scale != 1:
            result *= np.float32(self.scale)
        return result[:, :, ::-1] if self.mirror and self.random.integers(2) else result

    def _mean_for(self, shape: tuple[int, ...]) -> Image | None:
        mean = self.mean
        if mean is None or mean.shape == shape:
            return mean
        if mean.shape[1:] != (1, 1):
            raise CaffeError(f"the mean file's image has shape {list(mean.shape)}, and a record {list(shape)}")
        if mean.shape[0] not in (1, shape[0]):
            raise CaffeError(f"expected 1 or {shape[0]} mean_value, got {mean.shape[0]}")
        return mean
