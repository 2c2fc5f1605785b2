# SPDX-License-Identifier: Apache-2.0
"""Where data come from and what is done to them: crops, means, HDF5, image files, windows, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import digits_lmdb, net_of, write

for module in ("torch", "google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

import h5py

from horovod.caffe import CaffeError
from horovod.caffe.data.records import write_lmdb
from horovod.caffe.data.transform import Transformer
from horovod.caffe.files import blob_of
from horovod.caffe.schema import message

Array = np.ndarray[Any, Any]


def transformer(training: bool = False, **settings: Any) -> Any:
    return Transformer(message("TransformationParameter")(**settings), training, 3)


IMAGE = np.random.default_rng(1).integers(0, 256, (3, 8, 9)).astype(np.uint8)


def test_a_test_crops_the_centre_and_subtracts_before_it_scales(tmp_path: Path) -> None:
    mean = np.random.default_rng(2).normal(100, 20, (1, 3, 8, 9)).astype(np.float32)
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob_of(mean).SerializeToString())
    window = np.s_[:, 1:6, 2:7]
    got = transformer(crop_size=5, mean_file=str(path), scale=0.5)(IMAGE)
    assert np.allclose(got, (IMAGE[window] - mean[0][window]) * 0.5)
    got = transformer(mean_value=[1, 2, 3])(IMAGE)
    assert np.array_equal(got, IMAGE - np.array([1, 2, 3], np.float32)[:, None, None])


def test_training_crops_and_mirrors_at_random() -> None:
    change = transformer(training=True, crop_size=5, mirror=True)
    seen = {change(IMAGE).tobytes() for _ in range(300)}
    windows = [IMAGE[:, a : a + 5, b : b + 5].astype(np.float32) for a in range(4) for b in range(5)]
    expected = {np.ascontiguousarray(one).tobytes() for window in windows for one in (window, window[:, :, ::-1])}
    assert seen <= expected and len(seen) > 30


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"crop_size": 9}, "crop_size 9 is larger than an image of 8 x 9"),
        ({"mean_value": [1, 2]}, "expected 1 or 3 mean_value, got 2"),
    ],
)
def test_a_transformation_that_does_not_fit_is_an_error(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(CaffeError, match=expected):
        transformer(**settings)(IMAGE)


DATA = 'layer {{ name: "d" type: "{kind}" {tops} {text} }}'


def data_net(folder: Path, kind: str, text: str, tops: str = "x label", phase: int = 1) -> Any:
    names = " ".join(f'top: "{name}"' for name in tops.split())
    return net_of(folder, DATA.format(kind=kind, tops=names, text=text), phase, seed=4)


@pytest.mark.parametrize("shuffle", [False, True])
def test_hdf5_files_are_read_in_turn(shuffle: bool, tmp_path: Path) -> None:
    for number, rows in enumerate((3, 4)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(rows, dtype=np.float64)[:, None] + 10 * number
            file["label"] = np.arange(rows) + 10 * number
    listed = write(tmp_path, "list", f"{tmp_path}/0.h5\n{tmp_path}/1.h5\n")
    text = f'hdf5_data_param {{ source: "{listed}" batch_size: 7 shuffle: {str(shuffle).lower()} }}'
    net = data_net(tmp_path, "HDF5Data", text)
    epochs = []
    for _ in range(2):
        outputs = net.forward()
        assert outputs["x"].flatten().tolist() == outputs["label"].tolist()
        epochs.append(outputs["label"].tolist())
    net.close()
    assert all(sorted(epoch) == [0, 1, 2, 10, 11, 12, 13] for epoch in epochs)
    assert (epochs[0] == epochs[1]) == (not shuffle) and (epochs[0] == sorted(epochs[0])) == (not shuffle)


def test_image_files_are_resized_and_labelled(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")
    pixels = IMAGE.transpose(1, 2, 0)
    cv2.imwrite(str(tmp_path / "a b.png"), pixels)
    listed = write(tmp_path, "list", "a b.png 5\n")
    text = f'image_data_param {{ source: "{listed}" root_folder: "{tmp_path}/" batch_size: 2 %s }}'
    outputs = data_net(tmp_path, "ImageData", text % "").forward()
    assert outputs["label"].tolist() == [5, 5] and np.array_equal(outputs["x"][1].numpy(), IMAGE)
    outputs = data_net(tmp_path, "ImageData", text % "new_height: 4 new_width: 5 is_color: false").forward()
    gray = cv2.resize(cv2.imread(str(tmp_path / "a b.png"), cv2.IMREAD_GRAYSCALE), (5, 4))
    assert np.array_equal(outputs["x"][0, 0].numpy(), gray)


def test_windows_are_cut_out_with_their_classes(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")
    cv2.imwrite(str(tmp_path / "a.png"), IMAGE.transpose(1, 2, 0))
    windows = "# 0\na.png\n3\n8\n9\n2\n4 0.9 2 1 5 4\n4 0.1 0 4 3 7\n"
    source = write(tmp_path, "windows", windows)
    text = f'transform_param {{ crop_size: 4 }} window_data_param {{ source: "{source}" root_folder: "{tmp_path}/" '
    outputs = data_net(tmp_path, "WindowData", text + "batch_size: 4 fg_fraction: 0.25 }").forward()
    assert outputs["label"].tolist() == [0, 0, 0, 4], "the objects come last"
    assert np.array_equal(outputs["x"][3].numpy(), IMAGE[:, 1:5, 2:6])
    assert np.array_equal(outputs["x"][0].numpy(), IMAGE[:, 4:8, 0:4])
    padded = data_net(tmp_path, "WindowData", text + "batch_size: 1 fg_fraction: 0 context_pad: 1 }").forward()["x"][0]
    assert padded.shape == (3, 4, 4) and not padded[:, -1].any() and not padded[:, :, 0].any(), "outside is zero"
    assert padded[:, 1, 2].all()


def test_a_program_gives_its_own_data(tmp_path: Path) -> None:
    text = "memory_data_param { batch_size: 2 channels: 1 height: 1 width: 1 }"
    net = data_net(tmp_path, "MemoryData", text)
    with pytest.raises(CaffeError, match=r"has no data: call set_data\(\)"):
        net.forward()
    net.layers[0].set_data(np.arange(4).reshape(4, 1, 1, 1), [5, 6, 7, 8])
    assert [net.forward()["label"].tolist() for _ in range(3)] == [[5, 6], [7, 8], [5, 6]]
    with pytest.raises(CaffeError, match="expected a multiple of 2 images"):
        net.layers[0].set_data(np.zeros((3, 1, 1, 1)), [1, 2, 3])


def test_constants_are_filled_once_and_others_each_time(tmp_path: Path) -> None:
    text = 'dummy_data_param { shape { dim: 2 } data_filler { value: 3 } data_filler { type: "uniform" } }'
    net = data_net(tmp_path, "DummyData", text)
    first, second = ({name: value.tolist() for name, value in net.forward().items()} for _ in range(2))
    assert first["x"] == second["x"] == [3, 3] and first["label"] != second["label"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'source: "{folder}/db" batch_size: 1',
            r"is not a LevelDB: it has no file CURRENT\nhint: it is an LMDB: set backend: LMDB",
        ),
        ('source: "{folder}/db" backend: LMDB', "batch_size must be at least 1"),
        ('source: "{folder}/none" backend: LMDB batch_size: 1', "there is no such folder"),
        ('source: "{folder}" backend: LMDB batch_size: 1', "is not an LMDB: it has no file data.mdb"),
        ("backend: LMDB batch_size: 1", "source is missing"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error(text: str, expected: str, tmp_path: Path) -> None:
    digits_lmdb(tmp_path / "db", 2)
    with pytest.raises(CaffeError, match=rf"net.prototxt:1: layer 'd' \(Data\): .*{expected}"):
        data_net(tmp_path, "Data", f"data_param {{ {text.format(folder=tmp_path)} }}")


def test_a_record_that_is_broken_is_named_when_its_batch_is_due(tmp_path: Path) -> None:
    good = message("Datum")(channels=1, height=2, width=2, data=b"abcd", label=1)
    short = message("Datum")(channels=1, height=2, width=2, data=b"abc", label=1)
    write_lmdb(str(tmp_path / "db"), [(b"0", good), (b"1", good), (b"2", short)])
    net = data_net(tmp_path, "Data", f'data_param {{ source: "{tmp_path}/db" backend: LMDB batch_size: 2 }}')
    assert net.forward()["label"].tolist() == [1, 1]
    with pytest.raises(CaffeError, match=r"record 2: a Datum of shape \[1, 2, 2\] has 3 values"):
        net.forward()
    net.close()
