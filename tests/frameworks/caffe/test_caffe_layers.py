# SPDX-License-Identifier: Apache-2.0
"""What the layers compute: against OpenCV's importer of Caffe's nets, and against the rules in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import net_of

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
for module in ("google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

from horovod.caffe import CaffeError

Array = np.ndarray[Any, Any]


def inputs(*shapes: list[int]) -> str:
    """An Input layer with tops named a, b, ..."""
    tops = " ".join(f'top: "{name}"' for name, _ in zip("abc", shapes, strict=False))
    dims = " ".join(f"shape {{ {' '.join(f'dim: {dim}' for dim in shape)} }}" for shape in shapes)
    return f'layer {{ name: "in" type: "Input" {tops} input_param {{ {dims} }} }}\n'


def layer(kind: str, text: str = "", bottoms: str = "a", top: str = "y") -> str:
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    tops = " ".join(f'top: "{name}"' for name in top.split())
    return f'layer {{ name: "{kind}-{top[0]}" type: "{kind}" {names} {tops} {text} }}\n'


FILLED = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" }'
IMAGE = [2, 6, 13, 11]
# Each: the layers after the input "a"; the last top is y.
NETS = {
    "convolution": layer(
        "Convolution", f"convolution_param {{ num_output: 4 kernel_size: 3 stride: 2 pad: 1 {FILLED} }}"
    ),
    "convolution by axis": layer(
        "Convolution",
        "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 1 stride_h: 1 stride_w: 2 pad_h: 2 pad_w: 1 "
        f"{FILLED} }}",
    ),
    "convolution in groups": layer(
        "Convolution", f"convolution_param {{ num_output: 9 kernel_size: 3 group: 3 dilation: 2 {FILLED} }}"
    ),
    "max pooling": layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }"),
    "max pooling with pad": layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 1 }"),
    "mean pooling": layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }"),
    "mean pooling with pad": layer("Pooling", "pooling_param { pool: AVE kernel_size: 5 stride: 3 pad: 2 }"),
    "global pooling": layer("Pooling", "pooling_param { pool: AVE global_pooling: true }"),
    "lrn": layer("LRN", "lrn_param { local_size: 5 alpha: 0.3 beta: 0.75 }"),
    "inner product": layer("InnerProduct", f"inner_product_param {{ num_output: 7 {FILLED} }}"),
    "softmax": layer("Softmax"),
    "relu": layer("ReLU"),
    "leaky relu": layer("ReLU", "relu_param { negative_slope: 0.1 }"),
    "prelu": layer("PReLU", 'prelu_param { filler { type: "uniform" } }'),
    "elu": layer("ELU"),
    "sigmoid": layer("Sigmoid"),
    "tanh": layer("TanH"),
    "absolute value": layer("AbsVal"),
    "power": layer("Power", "power_param { power: 2 scale: 0.5 shift: 1 }"),
    "batch norm and scale": layer("BatchNorm", top="n")
    + layer("Scale", 'scale_param { bias_term: true filler { type: "uniform" } bias_filler { type: "uniform" } }', "n"),
    "eltwise and concat": layer("Power", "power_param { scale: 2 }", top="b")
    + layer("Eltwise", "eltwise_param { operation: SUM coeff: 1 coeff: -3 }", "ab", "c")
    + layer("Eltwise", "eltwise_param { operation: MAX }", "ac", "d")
    + layer("Concat", "", "abcd"),
    "slice": layer("Slice", "slice_param { axis: 1 slice_point: 2 }", top="b c") + layer("Concat", "", "cb"),
    "flatten": layer("Flatten"),
    "deconvolution": layer(
        "Deconvolution", f"convolution_param {{ num_output: 4 kernel_size: 3 stride: 2 pad: 1 {FILLED} }}"
    ),
    "dropout": layer("Dropout"),
}


def randomize(net: Any) -> None:
    """Statistics as after a training."""
    for one in net.layers:
        if one.proto.type == "BatchNorm":
            one.blobs[0].normal_()
            one.blobs[1].uniform_(1, 2)
            one.blobs[2].fill_(2)


@pytest.mark.parametrize("name", NETS)
def test_forward_is_what_opencv_computes_of_the_same_files(name: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("not run: this OpenCV reads no nets of Caffe any more")
    torch.manual_seed(1)
    net = net_of(tmp_path, f'name: "n"\n{inputs(IMAGE)}{NETS[name]}')
    randomize(net)
    image = np.random.default_rng(2).normal(size=IMAGE).astype(np.float32)
    got = net.forward({"a": image})["y"].detach().numpy()
    weights = str(tmp_path / "w.caffemodel")
    net.save(weights)
    other = cv2.dnn.readNetFromCaffe(str(tmp_path / "net.prototxt"), weights)
    other.setInput(image)
    expected = other.forward().reshape(got.shape)
    assert got.std() > 0.01 and np.abs(got - expected).max() < 1e-5


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


SCORES = np.random.default_rng(3).normal(size=(4, 3, 5)).astype(np.float32)
LABELS = np.random.default_rng(4).integers(0, 3, (4, 5)).astype(np.float32)
EACH = -np.log(np.take_along_axis(softmax(SCORES), LABELS[:, None].astype(int), 1))[:, 0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", EACH.mean()),
        ("loss_param { normalization: FULL }", EACH.mean()),
        ("loss_param { normalization: BATCH_SIZE }", EACH.sum() / 4),
        ("loss_param { normalize: false }", EACH.sum() / 4),
        ("loss_param { normalization: NONE }", EACH.sum()),
        ("loss_param { ignore_label: 1 }", EACH[LABELS != 1].mean()),
        ("loss_param { ignore_label: 1 normalization: FULL }", EACH[LABELS != 1].sum() / 20),
        ("loss_weight: 0.5", EACH.mean()),
    ],
)
def test_the_softmax_loss_divides_as_its_normalization_says(text: str, expected: float, tmp_path: Path) -> None:
    net = net_of(tmp_path, inputs([4, 3, 5], [4, 5]) + layer("SoftmaxWithLoss", text, "ab"))
    loss = net.forward({"a": SCORES, "b": LABELS})["y"]
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(net.objective()) == pytest.approx(float(expected) * (0.5 if "weight" in text else 1), rel=1e-5)


def test_the_softmax_loss_of_a_label_without_probability_is_that_of_the_least_float(tmp_path: Path) -> None:
    """Caffe takes the logarithm of FLT_MIN at least; the gradient is that of the probabilities as they are."""
    net = net_of(tmp_path, inputs([2, 2], [2]) + layer("SoftmaxWithLoss", "", "ab"), phase=0)
    scores = torch.tensor([[1e4, 0.0], [0.0, 1.0]], requires_grad=True)
    loss = net.forward({"a": scores, "b": np.array([1, 1])})["y"]
    assert float(loss.detach()) == pytest.approx((87.3365 + 0.3133) / 2, abs=1e-3)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.numpy() == pytest.approx(np.array([[0.5, -0.5], [0.1345, -0.1345]]), abs=1e-4)
    without = net.forward({"a": np.array([[np.inf, 0], [0, 1]]), "b": np.array([1, 1])})["y"]
    assert np.isnan(float(without)), "a net that has diverged is not hidden"


A, B = (np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32) for seed in (5, 6))
CLASSES = np.array([0, 2, 1, 2], np.float32)
PICKED = A[range(4), CLASSES.astype(int)]
SIGNED = np.maximum(0, 1 - np.where(np.arange(3) == CLASSES[:, None], 1, -1) * A)


@pytest.mark.parametrize(
    ("kind", "text", "second", "expected"),
    [
        ("EuclideanLoss", "", B, ((A - B) ** 2).sum() / 8),
        ("HingeLoss", "", CLASSES, SIGNED.sum() / 4),
        ("HingeLoss", "hinge_loss_param { norm: L2 }", CLASSES, (SIGNED**2).sum() / 4),
        ("MultinomialLogisticLoss", "", CLASSES, -np.log(np.maximum(PICKED, 1e-20)).mean()),
        ("SigmoidCrossEntropyLoss", "", B, (np.log1p(np.exp(A)) - A * B).sum() / 4),
    ],
)
def test_losses_follow_their_formulas(kind: str, text: str, second: Array, expected: float, tmp_path: Path) -> None:
    net = net_of(tmp_path, inputs([4, 3], list(second.shape)) + layer(kind, text, "ab"))
    assert float(net.forward({"a": A, "b": second})["y"]) == pytest.approx(float(expected), rel=1e-5)


def test_accuracy_counts_ties_against_the_label(tmp_path: Path) -> None:
    scores = np.array([[1, 1, 1], [0, 2, 1], [3, 2, 1], [0, 1, 2]], np.float32)
    labels = np.array([0, 1, 1, 0], np.float32)
    text = inputs([4, 3], [4]) + layer("Accuracy", "accuracy_param { top_k: 1 }", "ab", "y z")
    outputs = net_of(tmp_path, text).forward({"a": scores, "b": labels})
    assert float(outputs["y"]) == 0.25 and outputs["z"].tolist() == [0, 0.5, 0]
    text = inputs([4, 3], [4]) + layer("Accuracy", "accuracy_param { top_k: 2 ignore_label: 0 }", "ab")
    assert float(net_of(tmp_path, text).forward({"a": scores, "b": labels})["y"]) == 1


def test_a_label_that_is_no_class_is_an_error(tmp_path: Path) -> None:
    net = net_of(tmp_path, inputs([4, 3], [4]) + layer("SoftmaxWithLoss", "", "ab"))
    with pytest.raises(CaffeError, match=r":2: layer 'SoftmaxWithLoss-y' .*label 3: expected 0 to 2"):
        net.forward({"a": A, "b": [0, 1, 3, 0]})


def test_batch_norm_gathers_statistics_as_caffe_does(tmp_path: Path) -> None:
    text = inputs([4, 3, 2, 2]) + layer("BatchNorm", "batch_norm_param { moving_average_fraction: 0.9 }")
    net = net_of(tmp_path, text, phase=0)
    sums, random = [np.zeros(3), np.zeros(3), 0.0], np.random.default_rng(7)
    for _ in range(3):
        x = random.normal(2, 3, (4, 3, 2, 2)).astype(np.float32)
        y = net.forward({"a": x})["y"].numpy()
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        expected = (x - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
        assert np.abs(y - expected).max() < 1e-5
        for index, value in enumerate((mean, variance * 16 / 15, 1.0)):
            sums[index] = sums[index] * 0.9 + value
    for blob, value in zip(net.layers[1].blobs, sums, strict=True):
        assert np.allclose(blob.numpy(), value, rtol=1e-5)
    test = net_of(tmp_path, text, share=net)
    shown = test.forward({"a": x})["y"].numpy()
    mean, variance = (np.asarray(value)[:, None, None] / sums[2] for value in sums[:2])
    assert np.abs(shown - (x - mean) / np.sqrt(variance + 1e-5)).max() < 1e-5


@pytest.mark.parametrize("within", [False, True])
def test_lrn_follows_its_formula(within: bool, tmp_path: Path) -> None:
    """OpenCV's importer does not read k, nor does Caffe for WITHIN_CHANNEL."""
    region = "norm_region: WITHIN_CHANNEL" if within else "k: 2"
    net = net_of(tmp_path, inputs([2, 5, 4, 3]) + layer("LRN", f"lrn_param {{ local_size: 3 alpha: 0.5 {region} }}"))
    x = np.random.default_rng(9).normal(size=(2, 5, 4, 3)).astype(np.float32)
    squares = np.pad(x**2, [(0, 0), (0, 0), (1, 1), (1, 1)] if within else [(0, 0), (1, 1), (0, 0), (0, 0)])
    if within:
        total = sum(squares[:, :, i : i + 4, j : j + 3] for i in range(3) for j in range(3)) / 9
    else:
        total = sum(squares[:, i : i + 5] for i in range(3)) / 3
    expected = x / ((1 if within else 2) + 0.5 * total) ** 0.75
    assert np.abs(net.forward({"a": x})["y"].numpy() - expected).max() < 1e-6


def test_layers_in_place_leave_earlier_readers_alone(tmp_path: Path) -> None:
    text = (
        inputs([2, 4])
        + layer("InnerProduct", f"inner_product_param {{ num_output: 3 {FILLED} }}", top="h")
        + layer("Power", "power_param { power: 2 }", "h", "t")  # its backward reads h
        + layer("ReLU", "", "h", "h")
        + layer("Eltwise", "", "ht")
    )
    net = net_of(tmp_path, text)
    x = np.random.default_rng(8).normal(size=(2, 4)).astype(np.float32)
    got = net.forward({"a": x})["y"]
    weight, bias = (blob.detach().numpy() for blob in net.layers[1].blobs)
    hidden = x @ weight.T + bias
    assert np.abs(got.detach().numpy() - (hidden**2 + np.maximum(hidden, 0))).max() < 1e-5
    got.sum().backward()
    slope = (2 * hidden + (hidden > 0)).T @ x
    assert np.abs(net.layers[1].blobs[0].grad.numpy() - slope).max() < 1e-5


def test_what_layers_that_are_not_in_place_have_read_is_seen_unchanged(tmp_path: Path) -> None:
    text = (
        inputs([2, 4, 3, 3])
        + layer("BatchNorm", "", top="b")
        + layer("Scale", "scale_param { filler { value: 3 } }", "b", "s")
        + layer("Convolution", f"convolution_param {{ num_output: 3 kernel_size: 1 {FILLED} }}", "s", "h")
        + layer("ReLU", "", "h")
    )
    net = net_of(tmp_path, text)
    net.layers[1].blobs[1].data.fill_(1)
    net.layers[1].blobs[2].data.fill_(1)
    x = np.random.default_rng(8).normal(size=(2, 4, 3, 3)).astype(np.float32)
    net.forward({"a": x})
    np.testing.assert_allclose(net.blobs["b"].detach(), x, rtol=1e-4)
    np.testing.assert_allclose(net.blobs["s"].detach(), 3 * x, rtol=1e-4)
    assert float(net.blobs["h"].detach().min()) < 0 and float(net.blobs["y"].detach().min()) == 0


@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("shape { dim: 0 dim: -1 dim: 2 }", (2, 6, 2)),
        ("shape { dim: -1 } axis: 1", (2, 12)),
        ("shape { dim: 3 dim: 1 } axis: -3 num_axes: 1", (2, 3, 1, 4)),
        ("shape { dim: 1 } axis: -1", (2, 3, 4, 1)),
        ("shape { dim: 1 } axis: 4", "axis 4 and num_axes -1 do not fit 3 axes"),
        ("shape { dim: 1 } axis: -5", "axis -5 and num_axes -1 do not fit 3 axes"),
        ("shape { dim: 1 dim: 0 } axis: 2", "a 0 copies an axis that the bottom does not have"),
        ("shape { dim: 5 }", r"\[2, 3, 4\] cannot become \[5\]"),
    ],
)
def test_reshape_counts_axes_from_both_ends(param: str, shape: tuple[int, ...] | str, tmp_path: Path) -> None:
    text = inputs([2, 3, 4]) + layer("Reshape", f"reshape_param {{ {param} }}")
    if isinstance(shape, str):
        with pytest.raises(CaffeError, match=shape):
            net_of(tmp_path, text)
        return
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(net_of(tmp_path, text).forward({"a": x})["y"], x.reshape(shape))


def test_layers_in_place_save_a_pass_over_the_data(tmp_path: Path) -> None:
    """BatchNorm also scales and shifts, and ReLU takes its bottom's memory."""
    scale = "scale_param { bias_term: true filler { value: 3 } bias_filler { value: -1 } }"
    text = (
        inputs([2, 4, 3, 3])
        + layer("BatchNorm", top="n")
        + layer("Scale", scale, "n", "n")
        + layer("ReLU", "", "n", "n")
        + layer("Power", "", "n")
    )
    net = net_of(tmp_path, text)
    randomize(net)
    norm, scaled, relu = net.layers[1:4]
    assert (norm.scale, scaled.fused, relu.overwrites) == (scaled, True, True)
    x = np.random.default_rng(8).normal(size=(2, 4, 3, 3)).astype(np.float32)
    mean, variance = (blob.detach().numpy()[:, None, None] / 2 for blob in norm.blobs[:2])
    expected = np.maximum(3 * (x - mean) / np.sqrt(variance + 1e-5) - 1, 0)
    np.testing.assert_allclose(net.forward({"a": x})["y"].detach(), expected, atol=1e-5)


def test_a_dropout_ratio_of_zero_drops_nothing(tmp_path: Path) -> None:
    net = net_of(tmp_path, inputs([2, 4]) + layer("Dropout", "dropout_param { dropout_ratio: 0 }"), phase=0)
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(net.forward({"a": x})["y"], x)


def test_layers_share_weights_by_the_names_of_their_param(tmp_path: Path) -> None:
    shared = f'param {{ name: "w" lr_mult: 3 }} inner_product_param {{ num_output: 4 bias_term: false {FILLED} }}'
    text = inputs([2, 4]) + layer("InnerProduct", shared, "a", "h") + layer("InnerProduct", shared, "h")
    net = net_of(tmp_path, text)
    assert [one.name for one in net.parameters] == ["InnerProduct-h.0"] and net.parameters[0].lr_mult == 3
    assert net.layers[1].blobs[0] is net.layers[2].blobs[0]


def test_an_lstm_keeps_its_state_until_cont_is_zero(tmp_path: Path) -> None:
    torch.manual_seed(2)
    text = inputs([3, 2, 4], [3, 2]) + layer(
        "LSTM", 'recurrent_param { num_output: 5 weight_filler { type: "xavier" } }', "ab"
    )
    net = net_of(tmp_path, text)
    theirs = torch.nn.LSTM(4, 5)
    order = [0, 1, 3, 2]  # Caffe's gates: input, forget, output, new; torch has new before output
    with torch.no_grad():
        for mine, name in ((0, "weight_ih_l0"), (2, "weight_hh_l0"), (1, "bias_ih_l0")):
            pieces = net.layers[1].blobs[mine].chunk(4)
            getattr(theirs, name).copy_(torch.cat([pieces[index] for index in order]))
        theirs.bias_hh_l0.zero_()
        x, ones = torch.randn(3, 2, 4), torch.ones(3, 2)
        first, state = theirs(x)
        second, _ = theirs(x, state)
        fresh = ones.clone()
        fresh[0] = 0
        for cont, expected in ((ones, first), (ones, second), (fresh, first)):
            got = net.forward({"a": x, "b": cont})["y"]
            assert (got - expected).abs().max() < 1e-6


def test_pooling_gives_the_places_of_the_largest_values(tmp_path: Path) -> None:
    net = net_of(
        tmp_path, inputs([1, 1, 2, 4]) + layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", top="y m")
    )
    outputs = net.forward({"a": np.array([[[[1, 5, 2, 0], [3, 4, 9, 1]]]], np.float32)})
    assert outputs["y"].flatten().tolist() == [5, 9] and outputs["m"].flatten().tolist() == [1, 6]


@pytest.mark.parametrize(("kind", "expected"), [("MAX", [[1, 2], [3, 4]]), ("AVE", [[1 / 9, 3 / 9], [4 / 9, 10 / 9]])])
def test_pooling_with_a_wide_pad_begins_no_window_behind_the_image(
    kind: str, expected: list[list[float]], tmp_path: Path
) -> None:
    text = f"pooling_param {{ pool: {kind} kernel_size: 3 stride: 2 pad: 2 }}"
    net = net_of(tmp_path, inputs([1, 1, 2, 2]) + layer("Pooling", text))
    image = np.array([[[[1, 2], [3, 4]]]], np.float32)
    np.testing.assert_allclose(net.forward({"a": image})["y"].numpy()[0, 0], expected, rtol=1e-6)


def test_a_convolution_may_have_a_pad_at_one_axis(tmp_path: Path) -> None:
    text = layer("Convolution", f"convolution_param {{ num_output: 4 kernel_size: 3 pad_w: 2 {FILLED} }}")
    assert net_of(tmp_path, inputs(IMAGE) + text).shapes["y"] == (2, 4, 11, 13)


def test_pooling_follows_an_image_of_another_size(tmp_path: Path) -> None:
    for text in ("global_pooling: true", "pool: AVE global_pooling: true", "pool: AVE kernel_size: 2 stride: 2"):
        net = net_of(tmp_path, inputs([1, 1, 2, 2]) + layer("Pooling", f"pooling_param {{ {text} }}"))
        image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
        assert net.forward({"a": image})["y"].shape == ((1, 1, 1, 1) if "global" in text else (1, 1, 2, 2)), text


def test_stochastic_pooling_picks_values_in_proportion(tmp_path: Path) -> None:
    text = inputs([1, 1, 2, 2]) + layer("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }")
    x = np.array([[[[1, 0], [0, 3]]]], np.float32)
    assert float(net_of(tmp_path, text).forward({"a": x})["y"]) == 2.5, "the mean weighted by the values"
    torch.manual_seed(3)
    net = net_of(tmp_path, text, phase=0)
    picked = [float(net.forward({"a": x})["y"]) for _ in range(400)]
    assert set(picked) == {1.0, 3.0} and 0.65 < picked.count(3.0) / 400 < 0.85
