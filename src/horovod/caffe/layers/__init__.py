# SPDX-License-Identifier: Apache-2.0
"""The layers: one registry of types, and a file for each kind."""

from horovod.caffe.layers import (
    data,
    images,
    losses,
    neuron,
    normalization,
    recurrent,
    shapes,
    spatial,
    weights,
    windows,
)
from horovod.caffe.layers.base import Context, Layer, create, layer, types

__all__ = [
    "Context",
    "Layer",
    "create",
    "data",
    "images",
    "layer",
    "losses",
    "neuron",
    "normalization",
    "recurrent",
    "shapes",
    "spatial",
    "types",
    "weights",
    "windows",
]
