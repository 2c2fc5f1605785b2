# SPDX-License-Identifier: Apache-2.0
"""AlexNet and ResNet-50 twice: as Caffe's files have them, and in plain PyTorch. For the benchmark, and for tests."""

from __future__ import annotations

from typing import Any

__all__ = ["NETS", "Writer", "alexnet", "plain_alexnet", "plain_resnet50", "resnet50"]


class Writer:
    """A net's text; each method adds a layer after the one before, and returns its top."""

    def __init__(self, name: str, top: str) -> None:
        self.lines, self.top = [f'name: "{name}"'], top

    def add(self, kind: str, name: str, text: str = "", bottoms: str = "", top: str = "") -> str:
        names = " ".join(f'bottom: "{bottom}"' for bottom in (bottoms or self.top).split())
        self.top = top or name
        self.lines.append(f'layer {{ name: "{name}" type: "{kind}" {names} top: "{self.top}" {text} }}')
        return self.top

    def convolution(self, name: str, text: str, bottom: str = "") -> str:
        filled = 'weight_filler { type: "xavier" }'
        return self.add("Convolution", name, f"convolution_param {{ {text} {filled} }}", bottom)

    def in_place(self, kind: str, name: str, text: str = "") -> str:
        return self.add(kind, name, text, top=self.top)

    def inner_product(self, name: str, outputs: int) -> str:
        filled = 'weight_filler { type: "xavier" }'
        return self.add("InnerProduct", name, f"inner_product_param {{ num_output: {outputs} {filled} }}")

    def text(self, data: str, loss: bool) -> str:
        end = [f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{self.top}" bottom: "label" top: "loss" }}']
        end = end if loss else [f'layer {{ name: "prob" type: "Softmax" bottom: "{self.top}" top: "prob" }}']
        return "\n".join([self.lines[0], data, *self.lines[1:], *end]) + "\n"


def alexnet(data: str, loss: bool = True) -> str:
    """AlexNet as BVLC's reference has it. `data`: a layer with the top data, and label if there is a loss."""
    net = Writer("AlexNet", "data")
    pool = "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"
    lrn = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"
    shapes = {
        1: "num_output: 96 kernel_size: 11 stride: 4",
        2: "num_output: 256 pad: 2 kernel_size: 5 group: 2",
        3: "num_output: 384 pad: 1 kernel_size: 3",
        4: "num_output: 384 pad: 1 kernel_size: 3 group: 2",
        5: "num_output: 256 pad: 1 kernel_size: 3 group: 2",
    }
    for number, shape in shapes.items():
        net.convolution(f"conv{number}", shape)
        net.in_place("ReLU", f"relu{number}")
        if number < 3:
            net.add("LRN", f"norm{number}", lrn)
        if number != 3 and number != 4:
            net.add("Pooling", f"pool{number}", pool)
    for number in (6, 7):
        net.inner_product(f"fc{number}", 4096)
        net.in_place("ReLU", f"relu{number}")
        net.in_place("Dropout", f"drop{number}", "dropout_param { dropout_ratio: 0.5 }")
    net.inner_product("fc8", 1000)
    return net.text(data, loss)


def resnet50(data: str, loss: bool = True) -> str:
    """ResNet-50 as its authors' Caffe files have it: the stride is in the first convolution of a block."""
    net = Writer("ResNet-50", "data")

    def unit(name: str, shape: str, bottom: str = "") -> str:
        net.convolution(name, f"{shape} bias_term: false", bottom)
        net.in_place("BatchNorm", f"bn_{name}")
        return net.in_place("Scale", f"scale_{name}", "scale_param { bias_term: true }")

    unit("conv1", "num_output: 64 kernel_size: 7 pad: 3 stride: 2")
    net.in_place("ReLU", "relu1")
    top = net.add("Pooling", "pool1", "pooling_param { kernel_size: 3 stride: 2 pool: MAX }")
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 2):
        for block in range(blocks):
            name, stride = f"{stage}{'abcdef'[block]}", 2 if block == 0 and stage > 2 else 1
            side = top
            if block == 0:
                side = unit(f"res{name}_1", f"num_output: {4 * width} kernel_size: 1 stride: {stride}", top)
            unit(f"res{name}_2a", f"num_output: {width} kernel_size: 1 stride: {stride}", top)
            net.in_place("ReLU", f"relu{name}_2a")
            unit(f"res{name}_2b", f"num_output: {width} kernel_size: 3 pad: 1")
            net.in_place("ReLU", f"relu{name}_2b")
            last = unit(f"res{name}_2c", f"num_output: {4 * width} kernel_size: 1")
            net.add("Eltwise", f"res{name}", bottoms=f"{side} {last}")
            top = net.in_place("ReLU", f"relu{name}")
    net.add("Pooling", "pool5", "pooling_param { global_pooling: true pool: AVE }")
    net.inner_product("fc1000", 1000)
    return net.text(data, loss)


def plain_alexnet() -> Any:
    """The same net of PyTorch's own modules."""
    from torch import nn

    def pooled() -> Any:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        *[nn.Conv2d(3, 96, 11, 4), nn.ReLU(True), nn.LocalResponseNorm(5, 1e-4), pooled()],
        *[nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(True), nn.LocalResponseNorm(5, 1e-4), pooled()],
        *[nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(True)],
        *[nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(True)],
        *[nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(True), pooled(), nn.Flatten()],
        *[nn.Linear(9216, 4096), nn.ReLU(True), nn.Dropout()],
        *[nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 1000)],
    )


def plain_resnet50() -> Any:
    """The same net of PyTorch's own modules."""
    from torch import nn

    def unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, width: int, stride: int, first: bool) -> None:
            super().__init__()
            self.side = nn.Sequential(*(unit(inputs, 4 * width, 1, stride) if first else []))
            self.main = nn.Sequential(
                *[*unit(inputs, width, 1, stride), nn.ReLU(True), *unit(width, width, 3), nn.ReLU(True)],
                *unit(width, 4 * width, 1),
            )
            self.relu = nn.ReLU(True)

        def forward(self, x: Any) -> Any:
            return self.relu(self.side(x) + self.main(x))

    layers, inputs = [*unit(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True)], 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            layers.append(Block(inputs, width, 2 if block == 0 and stage else 1, block == 0))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


# Each: Caffe's text, PyTorch's module, the images' size.
NETS = {"alexnet": (alexnet, plain_alexnet, 227), "resnet50": (resnet50, plain_resnet50, 224)}
