# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror has the layout and the numbers of horovod.h: a C program compiled against the header says so."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from horovod.core import native

HEADERS = Path(__file__).resolve().parents[2] / "native" / "include"
STRUCTS = {
    "hvd_setting": native.Setting,
    "hvd_status": native.Status,
    "hvd_link": native.Link,
    "hvd_options": native.Options,
    "hvd_tensor": native.Tensor,
    "hvd_request": native.Request,
    "hvd_result": native.Result,
}
CODES = [
    "OK",
    "PENDING",
    "INVALID_ARGUMENT",
    "DUPLICATE_NAME",
    "MISMATCH",
    "RANK_LOST",
    "RANK_LEFT",
    "ABORTED",
    "NOT_RUNNING",
    "UNAVAILABLE",
    "OUT_OF_MEMORY",
    "WOULD_DEADLOCK",
    "FORKED",
    "INTERNAL",
]
DTYPES = [name.upper() for name in native.DTYPE_NAMES]
KINDS = [name.upper() for name in native.KIND_NAMES]


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Every size, offset and number of the header, by name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not run: no C compiler")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    numbers = [*CODES, *DTYPES, *KINDS, *(name.upper() for name in native.OP_NAMES), "SYNC", "ABI_VERSION"]
    lines += [f'printf("HVD_{name} %d\\n", (int)HVD_{name});' for name in numbers]
    folder = tmp_path_factory.mktemp("layout")
    source = folder / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "horovod/horovod.h"\nint main(void) {\n'
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    program = folder / "layout"
    subprocess.run(
        [compiler, "-std=c99", "-Wall", "-Werror", f"-I{HEADERS}", "-o", str(program), str(source)], check=True
    )
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: int(line.split()[1]) for line in output.splitlines()}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_has_the_size_and_offsets_of_the_header(header: dict[str, int], name: str) -> None:
    struct = STRUCTS[name]
    seen = {field: getattr(struct, field).offset for field, *_ in struct._fields_}
    expected = {field: header[f"{name}.{field}"] for field in seen}
    assert seen == expected
    assert ctypes.sizeof(struct) == header[name]


def test_numbers_are_those_of_the_header(header: dict[str, int]) -> None:
    for code in CODES:
        assert getattr(native, code) == header[f"HVD_{code}"], code
    for number, name in enumerate(DTYPES):
        assert number == getattr(native, name) == header[f"HVD_{name}"], name
    for number, name in enumerate(KINDS):
        assert number == getattr(native, name) == header[f"HVD_{name}"], name
    for name in native.OP_NAMES:
        assert getattr(native, name) == header[f"HVD_{name.upper()}"], name
    assert header["HVD_SYNC"] == native.SYNC
    assert header["HVD_ABI_VERSION"] == native.ABI_VERSION


def test_a_missing_library_is_named_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "libhorovod.so"
    monkeypatch.setattr(native, "library_path", lambda: missing)
    with pytest.raises(ImportError, match=r"libhorovod\.so does not exist\nhint: "):
        native.library.__wrapped__()


def test_a_library_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = tmp_path / "libhorovod.so"
    text.write_text("no library")
    monkeypatch.setattr(native, "library_path", lambda: text)
    with pytest.raises(ImportError, match="cannot be opened"):
        native.library.__wrapped__()
