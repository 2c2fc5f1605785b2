# SPDX-License-Identifier: Apache-2.0
"""The base of all layers, and the registry of types.

A net is built on tensors without memory (torch's device `meta`): setup() declares the blobs for the bottoms' shapes,
and forward() then gives the tops' shapes. So a layer describes itself once, and forward() may not depend on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from horovod.caffe.errors import CaffeError, nearest
from horovod.caffe.fillers import check_filler
from horovod.caffe.prototxt import Origin
from horovod.caffe.replicas import Replicas
from horovod.caffe.schema import message

__all__ = [
    "TEST",
    "TRAIN",
    "Context",
    "Layer",
    "canonical_axis",
    "create",
    "filler",
    "layer",
    "located",
    "types",
]

TRAIN = 0
"""The phase of a net that is trained."""
TEST = 1
"""The phase of a net that is tested, or only run forward."""


@dataclass
class Context:
    """The facts about a net that its layers need."""

    phase: int
    origin: Origin
    replicas: Replicas = field(default_factory=Replicas)
    seed: int = 0  # the same on all ranks
    building: bool = False  # forward() only has to tell the shapes


class Layer:
    """One layer. `blobs`: its weights, in the order of Caffe's files; `fillers`: their start values."""

    bottoms: ClassVar[tuple[int, int | None]] = (1, 1)  # the least and the most; None: any number
    tops: ClassVar[tuple[int, int | None]] = (1, 1)
    learns: ClassVar[bool] = True  # False: the blobs are statistics
    fresh: ClassVar[bool] = False  # its tops have memory of their own, and its backward does not read them
    # A loss that is a mean over the batch. Each rank's gradient of it is divided by the number of ranks.
    is_mean: bool = True

    def __init__(self, proto: Any, context: Context) -> None:
        self.proto = proto
        self.name: str = proto.name
        self.context = context
        self.training = context.phase == TRAIN
        self.blobs: list[Tensor] = []
        self.fillers: list[Any] = []
        self.overwrites = False  # set by the net: the top may take the bottom's memory, as no other layer reads it
        self.check_counts()

    def setup(self, bottoms: list[Tensor]) -> None:
        """Declares the blobs. `bottoms` have shapes and no memory."""

    def forward(self, bottoms: list[Tensor]) -> Sequence[Tensor]:
        """The tops."""
        raise NotImplementedError

    def add_blob(self, shape: Sequence[int], how: Any) -> None:
        """Declares the next blob, filled by the FillerParameter `how`."""
        check_filler(how)
        self.blobs.append(torch.empty(tuple(shape), device="meta"))
        self.fillers.append(how)

    def close(self) -> None:
        """Ends what the layer has started: threads, open files."""

    def default_loss_weight(self, index: int) -> float:
        """The weight of a top in the net's loss, if the file gives none."""
        return 0.0

    def check_counts(self) -> None:
        for word, names, (least, most) in (
            ("bottom", self.proto.bottom, self.bottoms),
            ("top", self.proto.top, self.tops),
        ):
            if len(names) < least or (most is not None and len(names) > most):
                expected = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
                self.fail(f"expected {expected} {word}(s), got {len(names)}")

    def fail(self, text: str) -> None:
        """Raises CaffeError that names this layer and its line."""
        raise self.context.origin.error(f"layer {self.name!r} ({self.proto.type}): {text}", "name", self.name)


_types: dict[str, type[Layer]] = {}


def layer(*names: str) -> Callable[[type[Layer]], type[Layer]]:
    """Registers the class under these types."""

    def register(cls: type[Layer]) -> type[Layer]:
        _types.update(dict.fromkeys(names, cls))
        return cls

    return register


def types() -> list[str]:
    """All types that can be used."""
    return sorted(_types)


def create(proto: Any, context: Context) -> Layer:
    """The layer for a LayerParameter. Raises CaffeError for a type that is not known."""
    cls = _types.get(proto.type)
    if cls is None:
        raise context.origin.error(
            f"layer {proto.name!r}: unknown type {proto.type!r}{nearest(proto.type, _types)}", "type", proto.type
        )
    try:
        return cls(proto, context)
    except CaffeError as error:
        raise located(error, proto, context) from error


def located(error: CaffeError, proto: Any, context: Context) -> CaffeError:
    """The error with the layer's name and line, if it does not name its file yet."""
    if error.located:
        return error
    return context.origin.error(f"layer {proto.name!r} ({proto.type}): {error}", "name", proto.name)


def filler(value: float = 0.0) -> Any:
    """A constant FillerParameter."""
    return message("FillerParameter")(value=value)


def canonical_axis(axis: int, dims: int) -> int:
    """A negative axis counts from the end. Raises CaffeError if there is no such axis."""
    if not -dims <= axis < dims:
        raise CaffeError(f"axis {axis} does not exist: the bottom has {dims} axes")
    return axis % dims
