# SPDX-License-Identifier: Apache-2.0
"""docs/frameworks/caffe.md lists every layer of Caffe, and says truly whether it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "frameworks" / "caffe.md"
# The types of BVLC Caffe 1.0.
CAFFE = """AbsVal Accuracy ArgMax BatchNorm BatchReindex Bias BNLL Clip Concat ContrastiveLoss Convolution Crop Data
Deconvolution Dropout DummyData Eltwise ELU Embed EuclideanLoss Exp Filter Flatten HDF5Data HDF5Output HingeLoss Im2col
ImageData InfogainLoss InnerProduct Input Log LRN LSTM LSTMUnit MemoryData MultinomialLogisticLoss MVN Parameter Pooling
Power PReLU Python Reduction ReLU Reshape RNN Scale Sigmoid SigmoidCrossEntropyLoss Silence Slice Softmax
SoftmaxWithLoss Split SPP Swish TanH Threshold Tile WindowData"""


@pytest.mark.check
def test_the_page_lists_every_layer_truthfully() -> None:
    for module in ("torch", "google.protobuf"):
        pytest.importorskip(module, reason=f"not run: {module} is not installed")
    from horovod.caffe.layers import types

    rows = re.findall(r"^\| ([A-Z][\w, ()]+) \| (\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: answer for names, answer in rows for name in re.findall(r"\w+", names)}
    assert set(listed) == set(CAFFE.split()) | {"SoftmaxLoss"}
    assert sorted(name for name, answer in listed.items() if answer != "no") == types()
