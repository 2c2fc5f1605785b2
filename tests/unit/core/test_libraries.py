# SPDX-License-Identifier: Apache-2.0
"""What our libraries show to a process that loads them, and that the check of a wheel sees what is wrong with one."""

from __future__ import annotations

import platform
import runpy
import subprocess
from pathlib import Path

import pytest

from horovod.core import native

CHECK = runpy.run_path(str(Path(__file__).resolve().parents[3] / "tools" / "check_wheel.py"))
GOOD = "int hvd_answer(void) { return 42; }"
PROCESSOR = platform.machine()


def faults_of(folder: Path, source: str, *options: str) -> list[str]:
    library = folder / "libtried.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), *options]
    subprocess.run(command, input=source, text=True, check=True)
    return [str(fault) for fault in CHECK["faults_of_library"](library, PROCESSOR)]


@pytest.mark.parametrize("name", CHECK["LIBRARIES"])
def test_an_installed_library_exports_the_c_interface_alone(name: str) -> None:
    library = Path(native.__file__).resolve().parents[1] / name
    faults = CHECK["faults_of_library"](library, PROCESSOR)
    assert [fault for fault in faults if "exports" in fault or "Python" in fault or "processor" in fault] == []


def test_the_check_passes_a_good_library(tmp_path: Path) -> None:
    assert faults_of(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("source", "options", "fault"),
    [
        (GOOD + "int other(void) { return 1; }", (), "exports other"),
        ("static int unused;", ("-w",), "exports nothing"),
        ("void PyErr_Clear(void); void hvd_clear(void) { PyErr_Clear(); }", (), "uses Python's PyErr_Clear"),
        (GOOD, ("-Wl,--no-as-needed", "-lstdc++"), "needs libstdc++.so.6"),
        (GOOD, ("-Wl,-rpath,/where/it/was/built",), "looks for libraries in /where/it/was/built"),
        (GOOD, ("-Wl,-z,execstack",), "wants a stack that can be executed"),
        ("char hvd_large[9 << 20] = {1};", (), "is it stripped?"),
    ],
)
def test_the_check_names_what_is_wrong(tmp_path: Path, source: str, options: tuple[str, ...], fault: str) -> None:
    faults = faults_of(tmp_path, source, *options)
    assert len(faults) == 1, faults
    assert fault in faults[0]


def test_the_extension_uses_what_every_python_has_and_exports_its_start(tmp_path: Path) -> None:
    source = tmp_path / "_calls.abi3.so"
    lines = "void PyErr_Clear(void), PyList_Sort(void); void {}(void) {{ PyErr_Clear(); PyList_Sort(); }}"
    for start, found in (("PyInit__calls", []), ("other", ["exports other"])):
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(source)]
        subprocess.run(command, input=lines.format(start), text=True, check=True)
        faults = CHECK["faults_of_library"](source, PROCESSOR)
        assert faults == [f"_calls.abi3.so {fault}" for fault in [*found, "uses Python's PyList_Sort"]]


def test_the_check_names_another_processor_and_another_name(tmp_path: Path) -> None:
    faults_of(tmp_path, GOOD)
    other = "aarch64" if PROCESSOR == "x86_64" else "x86_64"
    (fault,) = CHECK["faults_of_library"](tmp_path / "libtried.so", other)
    assert "is for another processor" in fault
    (fault,) = CHECK["faults_of_wheel"](Path("hvd-0.1-cp311-cp311-manylinux_2_28_x86_64.whl"))
    assert "py3-none-manylinux_2_28" in fault
