# SPDX-License-Identifier: Apache-2.0
"""A net: the layers of a prototxt, their weights, and one pass through them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from horovod.caffe.errors import CaffeError
from horovod.caffe.files import Array, read_weights, write_weights
from horovod.caffe.fillers import fill
from horovod.caffe.graph import Graph
from horovod.caffe.layers import create
from horovod.caffe.layers.base import TEST, TRAIN, Context, Layer, located
from horovod.caffe.layers.data import Input
from horovod.caffe.phases import NetState, filtered
from horovod.caffe.prototxt import Origin, read_text
from horovod.caffe.replicas import Replicas
from horovod.caffe.schema import message
from horovod.caffe.upgrade import upgrade_net
from horovod.core.wording import on_one_line

__all__ = ["TEST", "TRAIN", "Net", "Parameter", "read_net"]


def read_net(path: str) -> tuple[Any, Origin]:
    """A prototxt of a net, in today's form, and where its parts stand. Raises CaffeError."""
    proto, origin = read_text(path, "NetParameter")
    try:
        upgrade_net(proto)
    except CaffeError as error:
        raise origin.error(str(error)) from error
    return proto, origin


@dataclass
class Parameter:
    """A blob of weights that this net owns."""

    name: str
    tensor: Tensor
    lr_mult: float
    decay_mult: float


class Net:
    """A net in one phase.

    `proto`: a NetParameter, or the path of a prototxt. `share`: a net whose weights are used for layers of equal names.
    Raises CaffeError, with the layer's line, for a net that cannot work. Not for several threads at once.
    """

    def __init__(
        self,
        proto: Any,
        state: NetState | int = TEST,
        *,
        origin: Origin | None = None,
        replicas: Replicas | None = None,
        seed: int | None = None,
        share: Net | None = None,
    ) -> None:
        if isinstance(proto, str):
            proto, origin = read_net(proto)
        if isinstance(state, int):
            state = NetState.of(proto.state, phase=state)
        origin = origin or Origin(proto.name or "net")
        self.context = Context(
            state.phase, origin, replicas or Replicas(), random.getrandbits(31) if seed is None else seed
        )
        try:
            self.proto = filtered(proto, state)
        except CaffeError as error:
            raise origin.error(str(error)) from error
        if not self.proto.layer:
            raise origin.error("the net has no layers in this phase")
        self.layers: list[Layer] = []
        self.parameters: list[Parameter] = []
        self.blobs: dict[str, Tensor] = {}
        self._owners: dict[str, Parameter] = {}
        self._graph = Graph(self.proto.layer, self.context)
        self.outputs = self._graph.outputs
        self._weights: list[list[float]] = []
        self._build(share)
        self._graph.optimize(self.layers)

    def _build(self, share: Net | None) -> None:
        self.context.building = True
        shared = share.weighted if share else {}
        for proto in self.proto.layer:
            layer = create(proto, self.context)
            try:
                bottoms = [self.blobs[name] for name in proto.bottom]
                layer.setup(bottoms)
                tops = layer.forward(bottoms)
                self._check_name(layer)
                self._fill_blobs(layer, shared.get(proto.name))
            except CaffeError as error:
                raise located(error, proto, self.context) from error
            except (RuntimeError, IndexError) as error:  # shapes that do not fit, as torch says it
                raise located(CaffeError(str(error)), proto, self.context) from error
            self.blobs.update(zip(proto.top, tops, strict=True))
            given = list(proto.loss_weight)
            if given and len(given) != len(proto.top):
                layer.fail(f"expected a loss_weight for each of {len(proto.top)} tops, got {len(given)}")
            self._weights.append(given or [layer.default_loss_weight(index) for index in range(len(proto.top))])
            self.layers.append(layer)
        self.shapes = {name: tuple(blob.shape) for name, blob in self.blobs.items()}
        self.blobs.clear()
        self.context.building = False

    @property
    def weighted(self) -> dict[str, Layer]:
        """The layers that have weights, by name."""
        return {layer.name: layer for layer in self.layers if layer.blobs}

    def _check_name(self, layer: Layer) -> None:
        """Layers may share a name, as in Caffe, if only one of them has weights, which files hold by name."""
        if layer.blobs and layer.name in self.weighted:
            raise CaffeError(
                "another layer with weights has this name, and files hold weights by name\nhint: give each its own name"
            )

    def _fill_blobs(self, layer: Layer, twin: Layer | None) -> None:
        specs = list(layer.proto.param)
        if len(specs) > len(layer.blobs):
            raise CaffeError(f"has {len(specs)} param, and only {len(layer.blobs)} blobs")
        specs += [message("ParamSpec")() for _ in range(len(layer.blobs) - len(specs))]
        for index, (blob, spec) in enumerate(zip(layer.blobs, specs, strict=True)):
            name = f"{layer.name}.{index}"
            if twin is not None and index < len(twin.blobs):
                if twin.blobs[index].shape != blob.shape:
                    theirs, ours = list(twin.blobs[index].shape), list(blob.shape)
                    raise CaffeError(f"blob {index} has shape {ours}, and {theirs} in the train net")
                layer.blobs[index] = twin.blobs[index]
            elif spec.name in self._owners:
                layer.blobs[index] = self._shared(self._owners[spec.name], blob, spec)
            else:
                values = torch.empty(blob.shape)
                fill(values, layer.fillers[index])
                lr_mult = spec.lr_mult if layer.learns else 0.0
                layer.blobs[index] = values.requires_grad_(lr_mult != 0)
                self.parameters.append(Parameter(name, layer.blobs[index], lr_mult, spec.decay_mult))
                if spec.name:
                    self._owners[spec.name] = self.parameters[-1]

    def _shared(self, owner: Parameter, blob: Tensor, spec: Any) -> Tensor:
        for field in ("lr_mult", "decay_mult"):
            if spec.HasField(field) and getattr(spec, field) != getattr(owner, field):
                raise CaffeError(f"param {spec.name!r}: {field} differs from that of {owner.name}, which shares it")
        if owner.tensor.shape == blob.shape:
            return owner.tensor
        if spec.share_mode == spec.STRICT or owner.tensor.numel() != blob.numel():
            shapes = f"{list(blob.shape)} here, {list(owner.tensor.shape)} in {owner.name}"
            raise CaffeError(f"param {spec.name!r}: the shapes differ: {shapes}")
        return owner.tensor.view(blob.shape)

    def forward(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """One pass. `inputs`: values for the tops of Input layers. Returns the outputs by name.

        `blobs` has all blobs afterwards, and `objective()` the loss. Raises CaffeError for data that do not fit.
        """
        self._set_inputs(inputs or {})
        self.blobs.clear()
        self._losses: list[tuple[Tensor, float, float]] = []
        for index, layer in enumerate(self.layers):
            tops = self.run(layer, [self.blobs[name] for name in layer.proto.bottom])
            self._losses += self._weighted(index, tops)
            self.blobs.update(zip(layer.proto.top, tops, strict=True))
        return {name: self.blobs[name] for name in self.outputs}

    def run(self, layer: Layer, bottoms: list[Tensor]) -> list[Tensor]:
        """The tops of one layer."""
        for index, wanted in enumerate(layer.proto.propagate_down):
            if not wanted:
                bottoms[index] = bottoms[index].detach()
        try:
            return list(layer.forward(bottoms))
        except CaffeError as error:
            raise located(error, layer.proto, self.context) from error

    def _set_inputs(self, inputs: Mapping[str, Any]) -> None:
        layers = {name: layer for layer in self.layers if isinstance(layer, Input) for name in layer.proto.top}
        for name, value in inputs.items():
            if name not in layers:
                known = ", ".join(map(repr, layers)) or "none"
                raise CaffeError(f"{self.context.origin.path}: no Input layer has the top {name!r}; there are {known}")
            layers[name].values[name] = torch.as_tensor(value, dtype=torch.get_default_dtype())

    def _weighted(self, index: int, tops: list[Tensor]) -> Iterator[tuple[Tensor, float, float]]:
        """(sum, weight, share) of each top that counts."""
        layer, weights = self.layers[index], self._weights[index]
        for top, weight in zip(tops, weights, strict=True):
            if weight:
                # With several ranks the gradients are summed: a mean must be one over all of them.
                share = 1 / self.context.replicas.size if layer.is_mean else 1.0
                yield top.sum(), weight, share

    def objective(self) -> Tensor:
        """The loss of the last pass: this rank's share, of which the sum over the ranks is the loss."""
        return _sum([total * (weight * share) for total, weight, share in self._losses])

    def loss(self) -> Tensor:
        """The loss of the last pass, of this rank's batch alone."""
        return _sum([total * weight for total, weight, _ in self._losses])

    def loss_weight(self, output: str) -> float:
        """The weight of an output in the loss."""
        found = 0.0
        for layer, weights in zip(self.layers, self._weights, strict=True):
            found = dict(zip(layer.proto.top, weights, strict=True)).get(output, found)
        return found

    def count(self, name: str) -> int:
        """How many values a blob has."""
        return math.prod(self.shapes[name])

    def times(self, output: str) -> float:
        """The factor for an output before ranks take its mean, so that a loss that is a sum stays a sum."""
        layer = next(layer for layer in reversed(self.layers) if output in layer.proto.top)
        return 1.0 if layer.is_mean else float(self.context.replicas.size)

    def load(self, path: str) -> list[str]:
        """Copies the weights of layers with equal names; returns the names of the file's layers that are not here."""
        found = read_weights(path)
        layers = {layer.name: layer for layer in self.layers} | self.weighted
        for name, blobs in found.items():
            if name in layers:
                self._copy(layers[name], blobs, path)
        return [name for name in found if name not in layers]

    def _copy(self, layer: Layer, blobs: list[Array], path: str) -> None:
        if len(blobs) != len(layer.blobs):
            layer.fail(f"has {len(layer.blobs)} blobs, and {len(blobs)} in {on_one_line(path)}")
        for index, (target, values) in enumerate(zip(layer.blobs, blobs, strict=True)):
            # Old files have four axes, filled up with ones in front.
            legacy = values.ndim == 4 and (1,) * (4 - target.ndim) + tuple(target.shape) == values.shape
            if values.shape != tuple(target.shape) and not legacy:
                shapes = f"{list(target.shape)} here, {list(values.shape)} in {on_one_line(path)}"
                layer.fail(
                    f"blob {index}: the shapes differ: {shapes}\nhint: give the layer a new name to start afresh"
                )
            with torch.no_grad():
                target.copy_(torch.from_numpy(values.reshape(target.shape)))

    def save(self, path: str) -> None:
        """Writes a .caffemodel, or HDF5 if the name ends with .h5."""
        blobs = [[blob.detach().float().numpy() for blob in layer.blobs] for layer in self.layers]
        write_weights(path, self.proto, blobs)

    def share_weights(self) -> None:
        """Gives all ranks the weights of rank 0. All ranks call it."""
        self.context.replicas.share([(one.name, one.tensor.detach()) for one in self.parameters])

    def close(self) -> None:
        """Ends the threads of data layers."""
        for layer in self.layers:
            layer.close()


def _sum(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).sum() if losses else torch.zeros(())
