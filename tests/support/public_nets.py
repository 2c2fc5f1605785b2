# SPDX-License-Identifier: Apache-2.0
"""Public nets, written from their published architectures. Each function takes a Writer of benchmarks/caffe_nets.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["PUBLIC"]

MAX = "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"
LRN = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"


def _activated(net: Any, name: str, shape: str, bottom: str = "") -> str:
    top = net.convolution(name, shape, bottom)
    net.in_place("ReLU", f"relu_{name}")
    return str(top)


def _hidden(net: Any, name: str, outputs: int) -> None:
    net.inner_product(name, outputs)
    net.in_place("ReLU", f"relu_{name}")
    net.in_place("Dropout", f"drop_{name}")


def caffenet(net: Any) -> None:
    """BVLC's CaffeNet: AlexNet with each pooling before its normalization."""
    first = {1: "num_output: 96 kernel_size: 11 stride: 4", 2: "num_output: 256 pad: 2 kernel_size: 5"}
    for number, shape in first.items():
        _activated(net, f"conv{number}", f"{shape} group: {number}")
        net.add("Pooling", f"pool{number}", MAX)
        net.add("LRN", f"norm{number}", LRN)
    for number, (outputs, groups) in {3: (384, 1), 4: (384, 2), 5: (256, 2)}.items():
        _activated(net, f"conv{number}", f"num_output: {outputs} pad: 1 kernel_size: 3 group: {groups}")
    net.add("Pooling", "pool5", MAX)
    for name in ("fc6", "fc7"):
        _hidden(net, name, 4096)
    net.inner_product("fc8", 1000)


def _vgg(*stages: int) -> Callable[[Any], None]:
    def write(net: Any) -> None:
        for stage, (count, width) in enumerate(zip(stages, (64, 128, 256, 512, 512), strict=True), 1):
            for number in range(1, count + 1):
                _activated(net, f"conv{stage}_{number}", f"num_output: {width} pad: 1 kernel_size: 3")
            net.add("Pooling", f"pool{stage}", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }")
        for name in ("fc6", "fc7"):
            _hidden(net, name, 4096)
        net.inner_product("fc8", 1000)

    return write


# The widths of an inception: 1x1; 3x3 after its reduction; 5x5 after its reduction; after the pooling.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(net: Any) -> None:
    """BVLC's GoogLeNet, without the two side branches of its training."""
    _activated(net, "conv1/7x7_s2", "num_output: 64 pad: 3 kernel_size: 7 stride: 2")
    net.add("Pooling", "pool1/3x3_s2", MAX)
    net.add("LRN", "pool1/norm1", LRN)
    _activated(net, "conv2/3x3_reduce", "num_output: 64 kernel_size: 1")
    _activated(net, "conv2/3x3", "num_output: 192 kernel_size: 3 pad: 1")
    net.add("LRN", "conv2/norm2", LRN)
    net.add("Pooling", "pool2/3x3_s2", MAX)
    for name, widths in INCEPTIONS.items():
        _inception(net, f"inception_{name}/", net.top, *widths)
        if name in ("3b", "4e"):
            net.add("Pooling", f"pool{name[0]}/3x3_s2", MAX)
    net.add("Pooling", "pool5/7x7_s1", "pooling_param { pool: AVE kernel_size: 7 stride: 1 }")
    net.in_place("Dropout", "pool5/drop_7x7_s1", "dropout_param { dropout_ratio: 0.4 }")
    net.inner_product("loss3/classifier", 1000)


def _inception(net: Any, name: str, bottom: str, *widths: int) -> None:
    one, before3, three, before5, five, pooled = widths
    tops = [_activated(net, f"{name}1x1", f"num_output: {one} kernel_size: 1", bottom)]
    for size, before, width in ((3, before3, three), (5, before5, five)):
        _activated(net, f"{name}{size}x{size}_reduce", f"num_output: {before} kernel_size: 1", bottom)
        tops.append(
            _activated(net, f"{name}{size}x{size}", f"num_output: {width} kernel_size: {size} pad: {size // 2}")
        )
    net.add("Pooling", f"{name}pool", "pooling_param { pool: MAX kernel_size: 3 stride: 1 pad: 1 }", bottom)
    tops.append(_activated(net, f"{name}pool_proj", f"num_output: {pooled} kernel_size: 1"))
    net.add("Concat", f"{name}output", "", " ".join(tops))


def squeezenet(net: Any) -> None:
    """SqueezeNet 1.1."""
    _activated(net, "conv1", "num_output: 64 kernel_size: 3 stride: 2")
    net.add("Pooling", "pool1", MAX)
    for number, squeezed in zip(range(2, 10), (16, 16, 32, 32, 48, 48, 64, 64), strict=True):
        bottom = _activated(net, f"fire{number}/squeeze1x1", f"num_output: {squeezed} kernel_size: 1")
        expanded = f"num_output: {4 * squeezed}"
        small = _activated(net, f"fire{number}/expand1x1", f"{expanded} kernel_size: 1", bottom)
        large = _activated(net, f"fire{number}/expand3x3", f"{expanded} kernel_size: 3 pad: 1", bottom)
        net.add("Concat", f"fire{number}/concat", "", f"{small} {large}")
        if number in (3, 5):
            net.add("Pooling", f"pool{number}", MAX)
    net.in_place("Dropout", "drop9")
    _activated(net, "conv10", "num_output: 1000 kernel_size: 1")
    net.add("Pooling", "pool10", "pooling_param { pool: AVE global_pooling: true }")


# Each with the side of its images.
PUBLIC: dict[str, tuple[Callable[[Any], None], int]] = {
    "caffenet": (caffenet, 227),
    "googlenet": (googlenet, 224),
    "squeezenet": (squeezenet, 227),
    "vgg16": (_vgg(2, 2, 3, 3, 3), 224),
    "vgg19": (_vgg(2, 2, 4, 4, 4), 224),
}
