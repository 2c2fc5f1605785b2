# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror has the layout and the numbers of horovod.h: a C program compiled against the header says so."""

import ctypes
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.core import native

HEADERS = Path(__file__).resolve().parents[3] / "native" / "include"
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


# For each pointer of horovod.h: in a process of its own, which is to live on, as a world of one rank.
NULLS = r"""
import ctypes, json, re, sys
from ctypes import c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_uint8, c_void_p
import numpy as np
import horovod.core as hvd
from horovod.core import context, native

text = re.sub(r"/\*.*?\*/", "", open(sys.argv[1]).read(), flags=re.S)
found = re.findall(r"HVD_EXPORT ([\w\s]+\*?) ?(hvd_\w+)\(([^)]*)\);", text)
assert len(found) > 40
hvd.init()
pointer, library = context.current().pointer, ctypes.CDLL(str(native.library_path()))
array, shape = np.ones(3, np.float32), (c_int64 * 1)(3)
tensor = native.Tensor(array.ctypes.data, array.ctypes.data, shape, 1, native.FLOAT32)
request = native.Request(size=ctypes.sizeof(native.Request), ntensors=1, tensor_size=ctypes.sizeof(native.Tensor),
    op=1, prescale=1.0, postscale=1.0, name=b"x", tensors=ctypes.pointer(tensor))
status, room = native.Status(), ctypes.create_string_buffer(4096)
entry = c_void_p()
assert native.library().hvd_prepare(pointer, ctypes.addressof(request), ctypes.addressof(entry), None) == 0
result = native.Result(size=ctypes.sizeof(native.Result))
options = native.Options(size=ctypes.sizeof(native.Options))
mpi = native.Mpi(size=ctypes.sizeof(native.Mpi))
one = (c_void_p * 1)(array.ctypes.data)
ranks = (c_int32 * 1)(0)
of_kind = {"hvd_context*": pointer, "hvd_entry*": entry.value, "hvd_status*": ctypes.addressof(status),
    "const hvd_request*": ctypes.addressof(request), "const hvd_options*": ctypes.addressof(options),
    "hvd_result*": ctypes.addressof(result), "const hvd_mpi*": ctypes.addressof(mpi), "const int32_t*":
    ctypes.addressof(ranks), "const void* const*": ctypes.addressof(one), "void* const*": ctypes.addressof(one)}
numbers = {"uint32_t": c_uint32, "int32_t": c_int32, "int64_t": c_int64, "hvd_handle": c_uint64, "int": c_int}
# Without a limit of time, or what would end this process or its context.
SKIPPED = {"hvd_stop": "context", "hvd_free": "context", "hvd_abort": "context", "hvd_hold": "context",
    "hvd_release_entry": "entry", "hvd_limit_time": "", "hvd_stack_source": "", "hvd_fail_at_exit": ""}
may_be_null = {("hvd_refuse", "name"), ("hvd_refuse", "why"), ("hvd_cuda_version", "*"), ("hvd_nccl_version", "*"),
    ("hvd_statistics", "buffer"), ("hvd_fault_point", "*"), ("hvd_device_of", "address")}
missed = []
for kind, name, given in found:
    parameters = [re.fullmatch(r"\s*(.*?)(\w+)\s*", one).groups() for one in given.split(",") if one.strip() != "void"]
    parameters = [(of.strip(), what) for of, what in parameters]
    function = getattr(library, name)
    function.restype = c_int
    for of, what in parameters:
        if "*" not in of or of == "hvd_status*" or what in ("user", "stream"):
            continue
        if name in SKIPPED and what != SKIPPED[name]:
            continue
        values, types = [], []
        for other, its in parameters:
            types.append(c_void_p if "*" in other else numbers[other])
            if "*" in other:
                values.append(None if its == what else of_kind.get(other, ctypes.addressof(room)))
            else:
                values.append(1)
        function.argtypes = types
        print(name, what, flush=True)
        code = function(*values)
        if kind.strip() == "int" and code == 0 and not {(name, what), (name, "*")} & may_be_null:
            missed.append((name, what))
# Lists that are missing though they are said to have members.
for ntensors, nsplits, cut in ((2, 0, "tensors"), (1, 1, "splits"), (1, 0, "shape")):
    bad = native.Request.from_buffer_copy(request)
    mine = native.Tensor.from_buffer_copy(tensor)
    bad.tensors, bad.ntensors, bad.nsplits = ctypes.pointer(mine), ntensors, nsplits
    if cut == "tensors": bad.tensors = None
    if cut == "shape": mine.shape = None
    at = ctypes.addressof
    if native.library().hvd_prepare(pointer, at(bad), at(entry), at(status)) != native.INVALID_ARGUMENT:
        missed.append(cut)
for field in ("settings", "links", "host_of_rank"):
    bad = native.Options(size=ctypes.sizeof(native.Options), world_size=1, host_of_rank=ranks)
    if field == "host_of_rank": bad.host_of_rank = None
    else: setattr(bad, "n" + field, 2)
    if native.library().hvd_start(ctypes.addressof(bad), ctypes.addressof(entry), None) != native.INVALID_ARGUMENT:
        missed.append(field)
# One address for a request of two tensors.
pair = (native.Tensor * 2)(tensor, tensor)
bad = native.Request.from_buffer_copy(request)
bad.tensors, bad.ntensors = pair, 2
assert native.library().hvd_prepare(pointer, ctypes.addressof(bad), ctypes.addressof(entry), None) == native.OK
if native.library().hvd_run_entry(pointer, entry, array.ctypes.data, array.ctypes.data, 1000, room, None) == native.OK:
    missed.append("run_entry of two tensors")
assert not missed, missed
assert hvd.allreduce(array).tolist() == [1.0] * 3
print("alive")
"""


def test_a_pointer_that_is_missing_is_an_error_and_never_a_crash() -> None:
    header = str(HEADERS / "horovod" / "horovod.h")
    done = subprocess.run([sys.executable, "-c", NULLS, header], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), (done.stdout[-200:], done.stderr)


def test_the_build_is_told_apart_by_its_sources() -> None:
    """A checksum of what it was made of, that a change of any file changes: __version__ is equal for years."""
    assert re.fullmatch("[0-9a-f]{12}", native.build_id())
    root = Path(__file__).resolve().parents[3]
    files = [*(root / "native").rglob("*.cc"), *(root / "native").rglob("*.h"), *(root / "src/horovod").rglob("*.py")]
    names = sorted(path.relative_to(root).as_posix() for path in files)
    lines = [f"{name} {hashlib.sha256((root / name).read_bytes()).hexdigest()}\n" for name in names]
    assert native.build_id() == hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
