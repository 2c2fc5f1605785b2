# SPDX-License-Identifier: Apache-2.0
"""Layers that multiply by weights or add them: InnerProduct, Embed, Scale, Bias, Parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import Layer, canonical_axis, filler, layer

__all__ = ["InnerProduct", "Scale"]


@layer("InnerProduct")
class InnerProduct(Layer):
    """Blobs: weights (outputs, inputs), or (inputs, outputs) with transpose; then the bias."""

    fresh = True

    def setup(self, bottoms: list[Tensor]) -> None:
        param, shape = self.proto.inner_product_param, bottoms[0].shape
        if param.num_output < 1:
            raise CaffeError("num_output must be at least 1")
        self.axis = canonical_axis(param.axis, len(shape))
        inputs = shape[self.axis :].numel()
        both = [param.num_output, inputs]
        self.add_blob(both[::-1] if param.transpose else both, param.weight_filler)
        if param.bias_term:
            self.add_blob([param.num_output], param.bias_filler)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        weight = self.blobs[0].t() if self.proto.inner_product_param.transpose else self.blobs[0]
        return [F.linear(bottoms[0].flatten(self.axis), weight, self.blobs[1] if len(self.blobs) > 1 else None)]


@layer("Embed")
class Embed(Layer):
    """Blobs: one row of num_output values for each of input_dim numbers; then the bias."""

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.embed_param
        if param.num_output < 1 or param.input_dim < 1:
            raise CaffeError("num_output and input_dim must be at least 1")
        self.add_blob([param.input_dim, param.num_output], param.weight_filler)
        if param.bias_term:
            self.add_blob([param.num_output], param.bias_filler)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        try:
            rows = F.embedding(bottoms[0].long(), self.blobs[0])
        except IndexError as error:
            raise CaffeError(f"an input is not between 0 and input_dim - 1 ({error})") from error
        return [rows + self.blobs[1] if len(self.blobs) > 1 else rows]


class _Aligned(Layer):
    """Applies a small tensor, a blob or the second bottom, to axes of the first bottom."""

    bottoms = (1, 2)

    def declare(self, bottoms: list[Tensor], param: Any, how: Any) -> None:
        dims = bottoms[0].ndim
        if len(bottoms) == 2:
            small = bottoms[1].shape
            self.axis = 0 if bottoms[1].ndim == 0 else canonical_axis(param.axis, dims)
        else:
            self.axis = canonical_axis(param.axis, dims)
            end = dims if param.num_axes == -1 else self.axis + param.num_axes
            if param.num_axes < -1 or end > dims:
                raise CaffeError(f"num_axes {param.num_axes} from axis {self.axis} on: the bottom has {dims} axes")
            small = bottoms[0].shape[self.axis : end]
            self.add_blob(small, how)
        if bottoms[0].shape[self.axis : self.axis + len(small)] != small:
            raise CaffeError(f"{list(small)} does not fit {list(bottoms[0].shape)} from axis {self.axis} on")
        self.small = small

    def aligned(self, small: Tensor, dims: int) -> Tensor:
        """`small` in a shape that broadcasts over the bottom."""
        return small.reshape(list(self.small) + [1] * (dims - self.axis - len(self.small)))


@layer("Scale")
class Scale(_Aligned):
    """Blobs: the factors, unless a second bottom has them; then the bias, with bias_term."""

    fresh = True
    fused = False  # the BatchNorm before it does the work

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.scale_param
        self.declare(bottoms, param, param.filler if param.HasField("filler") else filler(1))
        if param.bias_term:
            self.add_blob(self.small, param.bias_filler)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        if self.fused:
            return [bottoms[0]]
        dims = bottoms[0].ndim
        factor = self.aligned(bottoms[1] if len(bottoms) == 2 else self.blobs[0], dims)
        if self.proto.scale_param.bias_term:
            return [torch.addcmul(self.aligned(self.blobs[-1], dims), bottoms[0], factor)]
        return [bottoms[0] * factor]


@layer("Bias")
class Bias(_Aligned):
    """Blob: the values to add, unless a second bottom has them."""

    fresh = True

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.bias_param
        self.declare(bottoms, param, param.filler if param.HasField("filler") else filler(0))

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return [bottoms[0] + self.aligned(bottoms[1] if len(bottoms) == 2 else self.blobs[0], bottoms[0].ndim)]


@layer("Parameter")
class Parameter(Layer):
    """A blob of the given shape as a top."""

    bottoms = (0, 0)

    def setup(self, bottoms: list[Tensor]) -> None:
        self.add_blob(list(self.proto.parameter_param.shape.dim), filler(0))

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return [self.blobs[0]]
