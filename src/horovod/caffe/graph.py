# SPDX-License-Identifier: Apache-2.0
"""The readers of each blob of a net. A layer in place gives its blob a new version, which later layers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.caffe.errors import nearest
from horovod.caffe.layers.base import Context, Layer
from horovod.caffe.layers.neuron import ReLU
from horovod.caffe.layers.normalization import BatchNorm
from horovod.caffe.layers.weights import Scale

__all__ = ["Graph"]

Version = tuple[int, int]  # the layer's index, and which of its tops


class Graph:
    """The versions of all blobs, with their readers, in the order of the layers."""

    def __init__(self, layers: Sequence[Any], context: Context) -> None:
        self.readers: dict[Version, list[int]] = {}
        self.inputs: list[list[Version]] = []
        current: dict[str, Version] = {}
        for index, proto in enumerate(layers):
            self.inputs.append([self._read(current, index, name, proto, context) for name in proto.bottom])
            for position, name in enumerate(proto.top):
                if name in current and name not in proto.bottom:
                    raise context.origin.error(
                        f"layer {proto.name!r}: top {name!r} is another layer's already", "name", proto.name
                    )
                current[name] = (index, position)
                self.readers[index, position] = []
        self.outputs = sorted(name for name, version in current.items() if not self.readers[version])

    def _read(self, current: dict[str, Version], index: int, name: str, proto: Any, context: Context) -> Version:
        if name not in current:
            raise context.origin.error(
                f"layer {proto.name!r}: no layer before it has the top {name!r}{nearest(name, current)}",
                "name",
                proto.name,
            )
        self.readers[current[name]].append(index)
        return current[name]

    def optimize(self, layers: Sequence[Layer]) -> None:
        """Lets BatchNorm do the work of the Scale after it, and ReLU take its bottom's memory, if both are in place.

        Otherwise the bottom is a blob of its own, whose values can be seen in Net.blobs.
        """
        for index, one in enumerate(layers):
            if list(one.proto.bottom) != list(one.proto.top) or not self.inputs[index]:
                continue
            version = self.inputs[index][0]
            before, alone = layers[version[0]], self.readers[version] == [index]
            if isinstance(one, ReLU) and alone and before.fresh:
                one.overwrites = True
            elif isinstance(one, Scale) and alone and isinstance(before, BatchNorm) and _fits(one):
                before.scale, one.fused = one, True


def _fits(scale: Scale) -> bool:
    param = scale.proto.scale_param
    return len(scale.proto.bottom) == 1 and scale.axis == 1 and param.num_axes == 1
