# SPDX-License-Identifier: Apache-2.0
"""Layers that join, cut and rearrange blobs, or reduce them."""

from __future__ import annotations

import torch
from torch import Tensor

from horovod.caffe.errors import CaffeError
from horovod.caffe.layers.base import Layer, canonical_axis, layer

__all__ = ["Concat", "Eltwise"]


@layer("Concat")
class Concat(Layer):
    """The bottoms side by side along an axis."""

    fresh = True
    bottoms = (1, None)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param = self.proto.concat_param
        axis = param.concat_dim if param.HasField("concat_dim") else canonical_axis(param.axis, bottoms[0].ndim)
        rest = [[*one.shape[:axis], *one.shape[axis + 1 :]] for one in bottoms]
        if any(shape != rest[0] for shape in rest):
            shapes = ", ".join(str(list(one.shape)) for one in bottoms)
            raise CaffeError(f"all axes but {axis} must be equal, got {shapes}")
        return [torch.cat(bottoms, axis)]


@layer("Slice")
class Slice(Layer):
    """Pieces of the bottom along an axis, cut at slice_point, or equal ones."""

    tops = (1, None)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param, count = bottoms[0], self.proto.slice_param, len(self.proto.top)
        axis = param.slice_dim if param.HasField("slice_dim") else canonical_axis(param.axis, x.ndim)
        size = x.shape[axis]
        points = list(param.slice_point)
        if not points:
            if size % count:
                raise CaffeError(f"axis {axis} has {size} values, which {count} tops cannot share equally")
            return list(x.split(size // count, axis))
        edges = [0, *points, size]
        if len(points) != count - 1 or any(a >= b for a, b in zip(edges, edges[1:], strict=False)):
            raise CaffeError(f"expected {count - 1} rising slice_point between 0 and {size}, got {points}")
        return list(x.split([b - a for a, b in zip(edges, edges[1:], strict=False)], axis))


@layer("Split")
class Split(Layer):
    """The bottom, several times."""

    tops = (1, None)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return bottoms * len(self.proto.top)


@layer("Silence")
class Silence(Layer):
    """Nothing: its bottoms are not outputs of the net."""

    bottoms, tops = (1, None), (0, 0)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return []


@layer("Flatten")
class Flatten(Layer):
    """Several axes as one."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param, dims = self.proto.flatten_param, bottoms[0].ndim
        return [bottoms[0].flatten(canonical_axis(param.axis, dims), canonical_axis(param.end_axis, dims))]


@layer("Reshape")
class Reshape(Layer):
    """Other axes for the same values. A 0 copies the bottom's axis, one -1 is computed."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param = bottoms[0], self.proto.reshape_param
        start = param.axis if param.axis >= 0 else x.ndim + param.axis + 1
        end = x.ndim if param.num_axes == -1 else start + param.num_axes
        if not 0 <= start <= end <= x.ndim:
            raise CaffeError(f"axis {param.axis} and num_axes {param.num_axes} do not fit {x.ndim} axes")
        middle = list(x.shape[start:end])
        dims = list(param.shape.dim)
        if any(dim == 0 and index >= len(middle) for index, dim in enumerate(dims)):
            raise CaffeError(f"shape {dims}: a 0 copies an axis that the bottom does not have")
        dims = [middle[index] if dim == 0 else dim for index, dim in enumerate(dims)]
        shape = [*x.shape[:start], *dims, *x.shape[end:]]
        try:
            return [x.reshape(shape)]
        except RuntimeError as error:
            raise CaffeError(f"{list(x.shape)} cannot become {shape}") from error


@layer("Tile")
class Tile(Layer):
    """The bottom repeated along an axis."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param = self.proto.tile_param
        if param.tiles < 1:
            raise CaffeError("tiles must be at least 1")
        times = [1] * bottoms[0].ndim
        times[canonical_axis(param.axis, bottoms[0].ndim)] = param.tiles
        return [bottoms[0].repeat(times)]


@layer("Eltwise")
class Eltwise(Layer):
    """The product, the (weighted) sum or the largest of the bottoms."""

    fresh = True
    bottoms = (2, None)

    def setup(self, bottoms: list[Tensor]) -> None:
        param = self.proto.eltwise_param
        if param.coeff and (len(param.coeff) != len(bottoms) or param.operation != param.SUM):
            raise CaffeError("coeff belongs to SUM, one for each bottom")
        if any(one.shape != bottoms[0].shape for one in bottoms):
            raise CaffeError(f"the bottoms' shapes differ: {', '.join(str(list(one.shape)) for one in bottoms)}")

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        param = self.proto.eltwise_param
        top = bottoms[0] * param.coeff[0] if param.coeff else bottoms[0]
        for index, other in enumerate(bottoms[1:], 1):
            if param.operation == param.PROD:
                top = top * other
            elif param.operation == param.MAX:
                top = torch.where(other > top, other, top)  # the first of equal ones gets the gradient
            else:
                top = top + other * param.coeff[index] if param.coeff else top + other
        return [top]


@layer("Reduction")
class Reduction(Layer):
    """SUM, ASUM, SUMSQ or MEAN of all axes from `axis` on, times coeff."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param = bottoms[0], self.proto.reduction_param
        axes = list(range(canonical_axis(param.axis, x.ndim), x.ndim))
        value = {param.SUM: x, param.MEAN: x, param.ASUM: x.abs(), param.SUMSQ: x * x}[param.operation]
        return [(value.mean(axes) if param.operation == param.MEAN else value.sum(axes)) * param.coeff]


@layer("BatchReindex")
class BatchReindex(Layer):
    """Rows of the first bottom, in the order that the second one says."""

    bottoms = (2, 2)

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        return [bottoms[0].index_select(0, bottoms[1].long().reshape(-1))]


@layer("ArgMax")
class ArgMax(Layer):
    """The places (or the values, with out_max_val) of the top_k largest values."""

    def forward(self, bottoms: list[Tensor]) -> list[Tensor]:
        x, param = bottoms[0], self.proto.argmax_param
        if param.HasField("axis"):
            values, places = x.topk(param.top_k, canonical_axis(param.axis, x.ndim))
            return [values if param.out_max_val else places.to(x.dtype)]
        values, places = x.flatten(1).topk(param.top_k, 1)
        rows = [places.to(x.dtype), values] if param.out_max_val else [places.to(x.dtype)]
        return [torch.stack(rows, 1)]
