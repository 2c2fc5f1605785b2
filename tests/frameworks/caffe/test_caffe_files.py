# SPDX-License-Identifier: Apache-2.0
"""Caffe's files: prototxt with errors that name a line, old forms, weights and states in both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import net_of, write

for module in ("torch", "google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

from google.protobuf import text_format

from horovod.caffe import CaffeError
from horovod.caffe.files import State, array_of, blob_of, read_blob, read_state, read_weights, write_state
from horovod.caffe.phases import NetState, filtered
from horovod.caffe.schema import message
from horovod.caffe.upgrade import upgrade_net

IP = (
    'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 '
    'weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }'
)
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'

WRONG = {
    "a field": ('layer {\n  nmae: "x" }', r":2:3: LayerParameter has no field 'nmae'\nhint: did you mean 'name'\?"),
    "a field of Intel Caffe": (
        "layer { transform_param {\n crop_h: 7 } }",
        r":2:2: TransformationParameter: Intel Caffe's field 'crop_h' is not supported\nhint: ",
    ),
    "a value": (
        "layer {\n pooling_param {\n  pool: MAXX } }",
        r":3:\d+: PoolMethod has no value 'MAXX'; expected one of MAX, AVE, STOCHASTIC\nhint: did you mean 'MAX'\?",
    ),
    "a type": (
        'layer { name: "a"\n type: "Convolutoin" }',
        r":2: layer 'a': unknown type 'Convolutoin'\nhint: did you mean 'Convolution'\?",
    ),
    "a form": ('layer { name: "a"', r":1:\d+: .*Expected"),
    "a bottom": (INPUT + IP.replace('bottom: "x"', 'bottom: "xx"'), r":2: layer 'ip': no layer before it has the top"),
    "no layers": ("", r"the net has no layers"),
    "a name of two layers with weights": (
        INPUT + IP + "\n" + IP.replace('"y"', '"z"'),
        r":2: layer 'ip' \(InnerProduct\): another layer with weights has this name",
    ),
    "a filler": (INPUT + IP.replace("xavier", "xaviar"), r":2: .*unknown filler 'xaviar'\nhint: did you mean 'xavier'"),
    "no outputs": (INPUT + IP.replace("num_output: 2", ""), r":2: .*num_output must be at least 1"),
    "too many weights": (
        INPUT + IP.replace("inner_product_param", "param {} param {} param {} inner_product_param"),
        r":2: .*has 3 param, and only 2 blobs",
    ),
    "a count of bottoms": (INPUT + IP.replace('bottom: "x"', ""), r":2: .*expected 1 bottom\(s\), got 0"),
}


@pytest.mark.slow("many broken files")
@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_the_file_the_line_and_the_nearest_name(case: str, tmp_path: Path) -> None:
    text, expected = WRONG[case]
    with pytest.raises(CaffeError, match=expected) as raised:
        net_of(tmp_path, text)
    assert str(raised.value).startswith(str(tmp_path / "net.prototxt"))


def test_layers_of_the_old_form_become_todays(tmp_path: Path) -> None:
    net = net_of(
        tmp_path,
        """
        input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
        layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2 weight_decay: 1
          weight_decay: 0 convolution_param { num_output: 4 kernel_size: 3 } include { phase: TEST } }
        layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
        layers { name: "train" type: EUCLIDEAN_LOSS bottom: "conv" bottom: "conv" include { phase: TRAIN } }
        layers { name: "sig" type: SIGMOID_CROSS_ENTROPY_LOSS bottom: "conv" bottom: "conv" top: "l" loss_weight: 3 }
        """,
    )
    assert [layer.proto.type for layer in net.layers] == ["Input", "Convolution", "ReLU", "SigmoidCrossEntropyLoss"]
    rates = [(one.name, one.lr_mult, one.decay_mult) for one in net.parameters]
    assert rates == [("conv.0", 1, 1), ("conv.1", 2, 0)]
    assert net.shapes["conv"] == (2, 4, 6, 6) and net.loss_weight("l") == 3


def test_an_old_data_layers_transformation_moves() -> None:
    net = message("NetParameter")()
    text_format.Parse('layers { name: "d" type: DATA data_param { scale: 0.5 mirror: true crop_size: 7 } }', net)
    upgrade_net(net)
    moved = net.layer[0].transform_param
    assert (moved.scale, moved.mirror, moved.crop_size) == (0.5, True, 7)
    assert not net.layer[0].data_param.HasField("scale")


@pytest.mark.parametrize(
    ("rule", "there"),
    [
        ("include { phase: TEST }", True),
        ("include { phase: TRAIN }", False),
        ("include { phase: TRAIN } include { phase: TEST }", True),
        ("exclude { phase: TEST }", False),
        ("include { min_level: 2 }", True),
        ("include { min_level: 4 }", False),
        ("include { max_level: 2 }", False),
        ('include { stage: "a" }', True),
        ('include { stage: "a" stage: "c" }', False),
        ('include { not_stage: "b" }', False),
    ],
)
def test_rules_say_whether_a_layer_is_there(rule: str, there: bool) -> None:
    net = message("NetParameter")()
    text_format.Parse(f'layer {{ name: "a" {rule} }}', net)
    assert bool(filtered(net, NetState(1, 3, ("a", "b"))).layer) == there


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_weights_are_written_and_read(tmp_path: Path, suffix: str) -> None:
    net = net_of(tmp_path, INPUT + IP)
    other = net_of(tmp_path, INPUT + IP)
    path = str(tmp_path / f"w.caffemodel{suffix}")
    net.save(path)
    assert not np.array_equal(net.layers[1].blobs[0].detach(), other.layers[1].blobs[0].detach())
    assert other.load(path) == []
    for mine, theirs in zip(net.layers[1].blobs, other.layers[1].blobs, strict=True):
        assert np.array_equal(mine.detach(), theirs.detach())
    assert [one.name for one in tmp_path.iterdir() if "part" in one.name] == []


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_layers_may_share_a_name_if_one_has_weights(tmp_path: Path, suffix: str) -> None:
    """As Caffe accepts it; the weights of the one go to a file and come back."""
    more = (
        'layer { name: "ip" type: "ReLU" bottom: "y" top: "r" } layer { name: "ip" type: "TanH" bottom: "r" top: "t" }'
    )
    first, second = (net_of(tmp_path, INPUT + IP + more) for _ in range(2))
    values = {"x": np.random.default_rng(0).normal(size=(2, 3))}
    expected = first.forward(values)["t"].detach().numpy()
    assert not np.array_equal(second.forward(values)["t"].detach().numpy(), expected)
    first.save(str(tmp_path / f"w.caffemodel{suffix}"))
    assert second.load(str(tmp_path / f"w.caffemodel{suffix}")) == []
    assert np.array_equal(second.forward(values)["t"].detach().numpy(), expected)
    tested = net_of(tmp_path, INPUT + IP + more, share=first)
    assert tested.layers[1].blobs[0] is first.layers[1].blobs[0], "a test net takes the weights by name, too"


def test_weights_match_by_name_and_shapes_must_agree(tmp_path: Path) -> None:
    net = net_of(tmp_path, INPUT + IP)
    path = str(tmp_path / "w.caffemodel")
    net.save(path)
    renamed = net_of(tmp_path, INPUT + IP.replace('"ip"', '"other"'))
    before = renamed.layers[1].blobs[0].detach().clone()
    assert renamed.load(path) == ["ip"] and np.array_equal(renamed.layers[1].blobs[0].detach(), before)
    wider = net_of(tmp_path, INPUT + IP.replace("num_output: 2", "num_output: 4"))
    with pytest.raises(CaffeError, match=r"blob 0: the shapes differ: \[4, 3\] here, \(2, 3\)|\[4, 3\] here, \[2, 3\]"):
        wider.load(path)


def test_weights_of_four_axes_are_read_as_old_files_have_them(tmp_path: Path) -> None:
    proto = message("NetParameter")()
    blobs = proto.layers.add(name="ip", type=message("V1LayerParameter").INNER_PRODUCT).blobs
    blobs.add(num=1, channels=1, height=2, width=3, data=range(6))
    blobs.add(num=1, channels=1, height=1, width=2, data=[7, 8])
    path = tmp_path / "old.caffemodel"
    path.write_bytes(proto.SerializeToString())
    net = net_of(tmp_path, INPUT + IP)
    net.load(str(path))
    assert net.layers[1].blobs[0].tolist() == [[0, 1, 2], [3, 4, 5]] and net.layers[1].blobs[1].tolist() == [7, 8]


def test_weights_of_a_net_whose_inputs_have_no_shapes_are_read(tmp_path: Path) -> None:
    proto = message("NetParameter")(input=["data"])
    proto.layer.add(name="ip", type="InnerProduct").blobs.add(num=1, channels=1, height=1, width=2, data=[7, 8])
    path = tmp_path / "shapeless.caffemodel"
    path.write_bytes(proto.SerializeToString())
    assert [blob.tolist() for blob in read_weights(str(path))["ip"]] == [[[[[7, 8]]]]]
    with pytest.raises(CaffeError, match="expected a shape for each of 1 tops, got 0"):
        net_of(tmp_path, 'input: "data"')


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_a_state_is_written_and_read(tmp_path: Path, suffix: str) -> None:
    history = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(2, np.float32)] * 6
    path = str(tmp_path / f"s.solverstate{suffix}")
    write_state(path, State(7, "a.caffemodel", history, 3))
    found = read_state(path)
    assert (found.iteration, found.learned_net, found.current_step) == (7, "a.caffemodel", 3)
    assert len(found.history) == 12, "in the order of the numbers: 10 comes after 9"
    assert all(np.array_equal(a, b) for a, b in zip(found.history, history, strict=True))


def test_a_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    text = write(tmp_path, "text", "no protobuf \xff at all")
    for read in (read_blob, read_weights, read_state):
        with pytest.raises(CaffeError, match="is not a binary"):
            read(text)
        with pytest.raises(CaffeError, match="cannot be read"):
            read(str(tmp_path / "missing"))
    with pytest.raises(CaffeError, match="cannot be opened as HDF5"):
        read_weights(write(tmp_path, "w.caffemodel.h5", "text"))


def test_a_written_blob_is_what_protobuf_writes() -> None:
    values = np.random.default_rng(1).normal(size=(3, 100)).astype(np.float32)
    slow: Any = message("BlobProto")()
    slow.shape.dim.extend(values.shape)
    slow.data.extend(values.ravel().tolist())
    assert blob_of(values) == slow and np.array_equal(array_of(slow), values)
