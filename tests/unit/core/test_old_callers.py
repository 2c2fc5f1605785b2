# SPDX-License-Identifier: Apache-2.0
"""The promise of horovod.h about struct sizes, kept for a program with layouts of its own, older and newer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from horovod.core import native


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not run: no C compiler")
    program = tmp_path_factory.mktemp("caller") / "caller"
    library = native.library_path()
    source = Path(__file__).with_name("old_caller.c")
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(source), str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}"], check=True)
    return program


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("old", "allreduce 6 8\nallgather 1 2 4\n"),
        ("new", "allreduce 6 8\nallgather 1 2 4\nrows 2\n"),
    ],
)
def test_a_caller_of_another_version_is_served(caller: Path, layout: str, said: str) -> None:
    ended = subprocess.run([caller, layout], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, said)


def test_a_field_that_this_library_does_not_have_is_refused(caller: Path) -> None:
    ended = subprocess.run([caller, "future"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "submit: code 2: hvd_tensor sets a field that this library does not have\nhint:" in ended.stdout


def test_a_shim_asks_the_library_for_widths_and_rows() -> None:
    library = native.library()
    assert tuple(library.hvd_dtype_bytes(dtype) for dtype in range(len(native.DTYPE_NAMES))) == native.DTYPE_BYTES
    assert library.hvd_dtype_bytes(len(native.DTYPE_NAMES)) == 0
    assert [library.hvd_rows_of_member(7, 3, member) for member in range(3)] == [3, 2, 2]
