# SPDX-License-Identifier: Apache-2.0
"""Whole public nets: what they compute is what OpenCV's importer of Caffe's nets computes of the same files.

HVD_TEST_CAFFE=FOLDER adds every deploy.prototxt below that folder, such as those of Caffe's own source. A .caffemodel
beside one has its weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import write
from support.examples import EXAMPLES
from support.public_nets import PUBLIC

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
for module in ("google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

from horovod.caffe import Net

CLOSE = 1e-4
SLOW, LARGE = pytest.mark.thorough, ("caffenet", "vgg16", "vgg19")
GIVEN = [str(path) for path in sorted(Path(os.environ.get("HVD_TEST_CAFFE") or os.devnull).rglob("deploy.prototxt"))]
INPUT = 'layer {{ name: "in" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}'


@pytest.fixture
def nets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module benchmarks/caffe_nets.py."""
    monkeypatch.syspath_prepend(str(EXAMPLES.parent / "benchmarks"))
    import caffe_nets

    return caffe_nets


def data(size: int) -> str:
    return INPUT.format(dims=f"dim: 1 dim: 3 dim: {size} dim: {size}")


def draw_weights(net: Any) -> None:
    """Weights with which the values neither grow nor fade, and statistics as after a training."""
    for one in net.layers:
        with torch.no_grad():
            if one.proto.type in ("Convolution", "InnerProduct"):
                one.blobs[0].normal_(0, (2 / one.blobs[0][0].numel()) ** 0.5)
                for bias in one.blobs[1:]:
                    bias.uniform_(-0.1, 0.1)
            elif one.proto.type == "BatchNorm":
                one.blobs[0].normal_(0, 0.1)
                one.blobs[1].uniform_(0.5, 1)
                one.blobs[2].fill_(1)


def assert_as_opencv(path: str, weights: str = "") -> Any:
    """`weights`: a file; without it, weights are drawn. Returns the net."""
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")

    torch.manual_seed(1)
    net = Net(path)
    if weights:
        assert net.load(weights) == []
    else:
        draw_weights(net)
        weights = f"{path}.caffemodel"
        net.save(weights)
    (name,) = net.layers[0].proto.top
    image = np.random.default_rng(2).normal(size=net.shapes[name]).astype(np.float32)
    with torch.no_grad():
        net.forward({name: image})
    other = cv2.dnn.readNetFromCaffe(path, weights)
    other.setInput(image)
    # The probabilities, and the scores before them: those may differ by a part of the largest one.
    tops = [*net.outputs, *(one.proto.bottom[0] for one in net.layers if one.proto.type == "Softmax")]
    expected = dict(zip(tops, other.forward(tops), strict=True))
    for top in tops:
        got = net.blobs[top].numpy()
        assert np.abs(got - expected[top].reshape(got.shape)).max() <= CLOSE * max(1.0, np.abs(got).max()), top
        assert got.std() > 1e-5
    return net


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in LARGE else ()) for name in PUBLIC])
def test_public_nets_are_what_opencv_computes(name: str, nets: Any, tmp_path: Path) -> None:
    author, size = PUBLIC[name]
    writer = nets.Writer(name, "data")
    author(writer)
    assert_as_opencv(write(tmp_path, "deploy.prototxt", writer.text(data(size), loss=False)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_the_benchmarks_nets_are_what_opencv_computes(name: str, nets: Any, tmp_path: Path) -> None:
    text, plain, size = nets.NETS[name]
    net = assert_as_opencv(write(tmp_path, "deploy.prototxt", text(data(size), loss=False)))
    trained = sum(one.tensor.numel() for one in net.parameters if one.tensor.requires_grad)
    assert trained == sum(one.numel() for one in plain().parameters())


if GIVEN:

    @pytest.mark.parametrize("path", GIVEN)
    def test_given_nets_are_what_opencv_computes(path: str, tmp_path: Path) -> None:
        weights = next(map(str, Path(path).parent.glob("*.caffemodel")), "")
        assert_as_opencv(write(tmp_path, "deploy.prototxt", Path(path).read_text(encoding="utf-8")), weights)
