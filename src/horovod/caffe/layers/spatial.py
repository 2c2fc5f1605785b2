# SPDX-License-Identifier: Apache-2.0
"""Layers that slide a window over the image: convolution, its transpose, pooling, im2col, crop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import Layer, canonical_axis, layer

__all__ = ["Convolution", "Pooling"]


def extents(param: Any, name: str, axes: int, default: int | None) -> list[int]:
    """`name`, given once, once for each axis, or as name_h and name_w (kernel_size as kernel_h and kernel_w)."""
    values = list(getattr(param, name))
    short = name.removesuffix("_size")
    by_axis = [axis for axis in (f"{short}_h", f"{short}_w") if _has(param, axis)]
    if by_axis:
        if axes != 2 or values or (len(by_axis) != 2 and name != "pad"):  # no pad is one of 0
            raise CaffeError(f"expected either {name} or both {short}_h and {short}_w, for two spatial axes")
        return [getattr(param, f"{short}_h"), getattr(param, f"{short}_w")]
    if not values:
        if default is None:
            raise CaffeError(f"{name} is missing")
        values = [default]
    if len(values) not in (1, axes):
        raise CaffeError(f"{name}: expected 1 or {axes} values, got {len(values)}")
    return values * axes if len(values) == 1 else values


def _has(param: Any, name: str) -> bool:
    return name in param.DESCRIPTOR.fields_by_name and bool(param.HasField(name))


class _Window(Layer):
    """The window of a convolution or of im2col."""

    bottoms = tops = (1, None)

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.convolution_param
        if canonical_axis(param.axis, bottoms[0].ndim) != 1:
            raise CaffeError("convolution_param.axis: only 1, the channels, is supported")
        axes = bottoms[0].ndim - 2
        if axes not in (1, 2, 3):
            raise CaffeError(f"expected a bottom of 3 to 5 axes, got shape {list(bottoms[0].shape)}")
        if len(self.proto.bottom) != len(self.proto.top):
            raise CaffeError("expected as many tops as bottoms")
        self.axes = axes
        self.kernel = extents(param, "kernel_size", axes, None)
        self.stride = extents(param, "stride", axes, 1)
        self.pad = extents(param, "pad", axes, 0)
        self.dilation = extents(param, "dilation", axes, 1)
        if min(*self.kernel, *self.stride, *self.dilation) < 1:
            raise CaffeError("kernel_size, stride and dilation must be at least 1")

    def declare_weights(self, shape: list[int], outputs: int) -> None:
        param = self.proto.convolution_param
        self.add_blob(shape, param.weight_filler)
        if param.bias_term:
            self.add_blob([outputs], param.bias_filler)


@layer("Convolution")
class Convolution(_Window):
    """Blobs: weights (outputs, inputs / group, kernel...), then the bias."""

    fresh = True

    def setup(self, bottoms: list[Tensor]) -> None:
        super().setup(bottoms)
        param, inputs = self.proto.convolution_param, bottoms[0].shape[1]
        self.group = check_group(param, inputs)
        self.declare_weights([param.num_output, inputs // self.group, *self.kernel], param.num_output)
        self.convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[self.axes]

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        weight, bias = self.blobs[0], self.blobs[1] if len(self.blobs) > 1 else None
        return [self.convolve(one, weight, bias, self.stride, self.pad, self.dilation, self.group) for one in bottoms]


@layer("Deconvolution")
class Deconvolution(_Window):
    """Blobs: weights (inputs, outputs / group, kernel...), then the bias."""

    fresh = True

    def setup(self, bottoms: list[Tensor]) -> None:
        super().setup(bottoms)
        param, inputs = self.proto.convolution_param, bottoms[0].shape[1]
        self.group = check_group(param, inputs)
        self.declare_weights([inputs, param.num_output // self.group, *self.kernel], param.num_output)
        self.convolve = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[self.axes]

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        weight, bias = self.blobs[0], self.blobs[1] if len(self.blobs) > 1 else None
        return [
            self.convolve(one, weight, bias, self.stride, self.pad, 0, self.group, self.dilation) for one in bottoms
        ]


def check_group(param: Any, inputs: int) -> int:
    """The number of groups, which must divide inputs and outputs."""
    if param.num_output < 1:
        raise CaffeError("num_output must be at least 1")
    if param.group < 1 or inputs % param.group or param.num_output % param.group:
        raise CaffeError(f"group {param.group} must divide {inputs} inputs and {param.num_output} outputs")
    return int(param.group)


@layer("Im2col")
class Im2col(_Window):
    """The windows of the image as channels: (N, C * kernel, height, width of the convolution's output)."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        if self.axes != 2:
            raise CaffeError("Im2col needs a bottom of four axes")
        return [self._columns(one) for one in bottoms]

    def _columns(self, image: Tensor) -> Tensor:
        sizes = zip(image.shape[2:], self.kernel, self.stride, self.pad, self.dilation, strict=True)
        height, width = ((size + 2 * pad - (step * (k - 1) + 1)) // stride + 1 for size, k, stride, pad, step in sizes)
        columns = F.unfold(image, self.kernel, self.dilation, self.pad, self.stride)
        return columns.view(image.shape[0], -1, height, width)


@layer("Pooling")
class Pooling(Layer):
    """MAX, AVE or STOCHASTIC, with sizes rounded up unless round_mode says FLOOR. A second top of MAX gets indices."""

    tops = (1, 2)

    def setup(self, bottoms: list[Tensor]) -> None:
        param, shape = self.proto.pooling_param, bottoms[0].shape
        if len(shape) != 4:
            raise CaffeError(f"expected a bottom of four axes, got shape {list(shape)}")
        self.method = param.pool
        if len(self.proto.top) == 2 and self.method != param.MAX:
            raise CaffeError("only MAX has a second top")
        self.ceil = param.round_mode == param.CEIL
        if param.global_pooling:
            if any(param.HasField(name) for name in ("kernel_size", "kernel_h", "kernel_w")):
                raise CaffeError("global_pooling has no kernel size: it is the whole image")
            self.kernel, self.stride, self.pad = list(shape[2:]), [1, 1], [0, 0]
        else:
            self.kernel = pair(param, "kernel_size", "kernel_h", "kernel_w")
            self.stride = pair(param, "stride", "stride_h", "stride_w")
            self.pad = pair(param, "pad", "pad_h", "pad_w")
        if min(*self.kernel, *self.stride) < 1:
            raise CaffeError("kernel_size and stride must be at least 1")
        if any(pad >= kernel for pad, kernel in zip(self.pad, self.kernel, strict=True)):
            raise CaffeError("pad must be less than kernel_size")

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        image, pad, param = bottoms[0], self.pad, self.proto.pooling_param
        size = list(image.shape[2:])
        if param.global_pooling:
            self.kernel = size
        if self.method == param.STOCHASTIC:
            return [self._stochastic(image)]
        if any(2 * p > k for p, k in zip(pad, self.kernel, strict=True)):  # torch allows half the kernel
            if len(self.proto.top) == 2:
                raise CaffeError("a second top needs a pad of at most half the kernel")
            value = float("-inf") if self.method == param.MAX else 0.0
            image, pad = F.pad(image, (pad[1], pad[1], pad[0], pad[0]), value=value), [0, 0]
            height, width = self._counts(size)
            return [self._pooled(image, pad)[0][:, :, :height, :width]]
        return self._pooled(image, pad)

    def _pooled(self, image: Tensor, pad: list[int]) -> list[Tensor]:
        param = self.proto.pooling_param
        if self.method == param.AVE:
            if self.kernel == list(image.shape[2:]) and pad == [0, 0]:
                return [image.mean((2, 3), keepdim=True)]
            return [F.avg_pool2d(image, self.kernel, self.stride, pad, self.ceil, count_include_pad=True)]
        if len(self.proto.top) == 1:
            return [F.max_pool2d(image, self.kernel, self.stride, pad, ceil_mode=self.ceil)]
        top, indices = F.max_pool2d(image, self.kernel, self.stride, pad, ceil_mode=self.ceil, return_indices=True)
        return [top, indices.to(image.dtype)]

    def _counts(self, size: list[int]) -> list[int]:
        """How many windows there are along each axis: none begins behind the image and its first pad."""
        counts = []
        for length, k, stride, pad in zip(size, self.kernel, self.stride, self.pad, strict=True):
            steps = length + 2 * pad - k
            last = -(-steps // stride) if self.ceil else steps // stride
            counts.append(last if last * stride >= length + pad else last + 1)
        return counts

    def _stochastic(self, image: Tensor) -> Tensor:
        """Training picks a value of the window with a probability in proportion to it; testing takes the mean so."""
        sizes = zip(image.shape[2:], self.kernel, self.stride, strict=True)
        counts = [-(-(size - k) // stride) + 1 if self.ceil else (size - k) // stride + 1 for size, k, stride in sizes]
        ends = [(n - 1) * stride + k for n, stride, k in zip(counts, self.stride, self.kernel, strict=True)]
        image = F.pad(image, (0, max(0, ends[1] - image.shape[3]), 0, max(0, ends[0] - image.shape[2])))
        windows = image.unfold(2, self.kernel[0], self.stride[0]).unfold(3, self.kernel[1], self.stride[1]).flatten(4)
        weights = windows.clamp(min=0)
        total = weights.sum(-1, keepdim=True)
        if not self.training:
            return (windows * weights).sum(-1) / total.squeeze(-1).clamp(min=torch.finfo(image.dtype).tiny)
        threshold = torch.rand_like(total) * total
        chosen = (weights.cumsum(-1) < threshold).sum(-1, keepdim=True).clamp(max=windows.shape[-1] - 1)
        return windows.gather(-1, chosen).squeeze(-1)


def pair(param: Any, both: str, height: str, width: str) -> list[int]:
    """A size for both axes, or one for each."""
    if param.HasField(height) or param.HasField(width):
        if param.HasField(both) or not (param.HasField(height) and param.HasField(width)):
            raise CaffeError(f"expected either {both} or both {height} and {width}")
        return [getattr(param, height), getattr(param, width)]
    if both == "kernel_size" and not param.HasField(both):
        raise CaffeError("kernel_size is missing")
    return [getattr(param, both)] * 2


@layer("SPP")
class SpatialPyramid(Layer):
    """Pools over 1, 2 x 2, 4 x 4, ... bins; the results stand side by side."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        image, param = bottoms[0], self.proto.spp_param
        levels = []
        for level in range(param.pyramid_height):
            bins = 2**level
            kernel = [-(-size // bins) for size in image.shape[2:]]
            pad = [(k * bins - size + 1) // 2 for k, size in zip(kernel, image.shape[2:], strict=True)]
            if any(2 * p > k for p, k in zip(pad, kernel, strict=True)):
                raise CaffeError(
                    f"pyramid_height {param.pyramid_height} is too large for an image of {image.shape[2:]}"
                )
            if param.pool == param.AVE:
                pooled = F.avg_pool2d(image, kernel, kernel, pad, ceil_mode=True)
            else:
                pooled = F.max_pool2d(image, kernel, kernel, pad, ceil_mode=True)
            levels.append(pooled.flatten(1))
        return [torch.cat(levels, 1)]


@layer("Crop")
class Crop(Layer):
    """Cuts the first bottom to the size of the second, from `axis` on."""

    bottoms = (2, 2)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        image, reference = bottoms
        param = self.proto.crop_param
        start = canonical_axis(param.axis, image.ndim)
        offsets = list(param.offset) or [0]
        if len(offsets) not in (1, image.ndim - start):
            raise CaffeError(f"offset: expected 1 or {image.ndim - start} values, got {len(offsets)}")
        for axis in range(start, image.ndim):
            offset = offsets[axis - start] if len(offsets) > 1 else offsets[0]
            if offset + reference.shape[axis] > image.shape[axis]:
                raise CaffeError(f"axis {axis}: {reference.shape[axis]} from {offset} on exceeds {image.shape[axis]}")
            image = image.narrow(axis, offset, reference.shape[axis])
        return [image]
