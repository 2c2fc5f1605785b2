# SPDX-License-Identifier: Apache-2.0
"""LevelDB: read by several ranks at once, written by the tools, and left as it is.

The folder `leveldb` was written by Debian's libleveldb 1.23, by its C functions, as Caffe writes: in blocks of 64 KiB,
with Snappy. It has 30 records, number i with pixels i and label i % 7; the last ones are in its log only.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caffe import digits_lmdb, net_of
from support.world import WorldPool

for module in ("torch", "google.protobuf", "lmdb", "plyvel" if sys.version_info < (3, 13) else "plyvel_next"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

RECORDS = 30
NET = """layer {{ name: "d" type: "Data" top: "x" top: "label" transform_param {{ crop_size: 1 }}
  data_param {{ source: "{folder}" backend: LEVELDB batch_size: {batch} {more} }} }}"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).parent / "leveldb", tmp_path / "db"))


def numbers(net: Any, batches: int) -> list[int]:
    """Of the records in the next batches."""
    found = []
    for _ in range(batches):
        outputs = net.forward()
        found += [int(value) for value in outputs["x"].flatten()]
        assert outputs["label"].tolist() == [number % 7 for number in found[-len(outputs["label"]) :]]
    net.close()
    return found


def test_a_database_of_another_program_is_read_round_and_round(database: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in database.iterdir()}
    net = net_of(tmp_path, NET.format(folder=database, batch=20, more=""))
    assert numbers(net, 4) == [index % RECORDS for index in range(80)]
    assert {file.name: file.read_bytes() for file in database.iterdir()} == before


def read_by_rank(text: str, batches: int) -> list[int]:
    """Runs in a rank."""
    from horovod.caffe.replicas import Replicas

    with tempfile.TemporaryDirectory() as folder:
        return numbers(net_of(Path(folder), text, replicas=Replicas.of_this_job(), seed=3), batches)


@pytest.mark.parametrize("more", ["", "rand_skip: 9"])
def test_the_ranks_of_a_host_read_one_database_together(more: str, database: Path, worlds: WorldPool) -> None:
    ranks = worlds(2).run(read_by_rank, NET.format(folder=database, batch=5, more=more), 7)
    first = ranks[0][0]
    assert bool(first) == bool(more)
    for rank, got in enumerate(ranks):
        assert got == [(first + rank + 2 * index) % RECORDS for index in range(35)]


def test_the_tools_write_and_read_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")
    from horovod.caffe.files import read_blob
    from horovod.caffe.tools import compute_image_mean, convert_imageset

    pixels = [np.random.default_rng(seed).integers(0, 256, (5, 4, 3), np.uint8) for seed in range(3)]
    for index, image in enumerate(pixels):
        cv2.imwrite(str(tmp_path / f"{index}.png"), image)
    (tmp_path / "list").write_text("0.png 7\n1.png 8\n2.png 9\n")
    database, mean = str(tmp_path / "db"), str(tmp_path / "mean.binaryproto")
    arguments = ["--backend=leveldb", f"{tmp_path}/", str(tmp_path / "list"), database]
    assert convert_imageset.main(arguments) == 0
    assert convert_imageset.main(arguments) == 134, "a database is not overwritten"
    assert compute_image_mean.main(["--backend", "leveldb", database, mean]) == 0
    assert np.abs(read_blob(mean)[0] - np.mean(pixels, 0).transpose(2, 0, 1)).max() < 1e-4
    assert compute_image_mean.main(["--backend=levledb", database, mean]) == 134
    assert "expected lmdb or leveldb\nhint: did you mean 'leveldb'?" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "more", "expected"),
    [
        (lambda folder: (folder / "CURRENT").unlink(), "", "is not a LevelDB: it has no file CURRENT"),
        (lambda folder: next(folder.glob("MANIFEST*")).write_bytes(b"x" * 50), "", "cannot be read as a LevelDB"),
        (shutil.rmtree, "", "there is no such folder"),
        (lambda folder: None, "shuffle: true", "shuffle needs backend: LMDB"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error(
    change: Any, more: str, expected: str, database: Path, tmp_path: Path
) -> None:
    from horovod.caffe import CaffeError

    change(database)
    with pytest.raises(CaffeError, match=rf"net.prototxt:1: layer 'd' \(Data\): .*{expected}"):
        net_of(tmp_path, NET.format(folder=database, batch=2, more=more))


def test_the_other_module_takes_plyvels_place(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.caffe.data import leveldb

    other = leveldb._plyvel()
    monkeypatch.setitem(sys.modules, "plyvel", None)
    monkeypatch.setitem(sys.modules, "plyvel_next", other)
    assert numbers(net_of(tmp_path, NET.format(folder=database, batch=3, more="")), 2) == list(range(6))


def test_without_plyvel_the_error_names_it(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.caffe import CaffeError

    for name in ("plyvel", "plyvel_next"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CaffeError, match=r"plyvel, which is not installed .*\nhint: pip install plyvel"):
        net_of(tmp_path, NET.format(folder=database, batch=2, more=""))
    lmdb = digits_lmdb(tmp_path / "lmdb", 2)
    with pytest.raises(CaffeError, match=r"is not a LevelDB: .*\nhint: it is an LMDB: set backend: LMDB"):
        net_of(tmp_path, NET.format(folder=lmdb, batch=2, more=""))
