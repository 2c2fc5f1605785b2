# SPDX-License-Identifier: Apache-2.0
"""Checks that a wheel runs on every machine that its name promises; tools/wheels runs it for each wheel that it builds.

    python tools/check_wheel.py WHEEL    the faults, one a line; exit code 1 if there are any

auditwheel tells if the C library may be as old as the name says. The other checks are about Horovod's libraries: each
is for this processor, needs nothing but the C library, exports the C interface alone, and does not depend on Python.
The extension exports its start alone, and uses what every Python has.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = re.compile(r"hvd-[^-]+-py3-none-(?P<platform>manylinux_2_28_(?P<processor>x86_64|aarch64))\.whl")
MACHINES = {"x86_64": "X86-64", "aarch64": "AArch64"}  # as readelf calls them
EXTENSION = "_calls.abi3.so"
LIBRARIES = [f"core/{EXTENSION}", *(f"lib/libhorovod{part}.so" for part in ("", "_simulate", "_tensorflow"))]
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# The parts of the C library, and our own, which lies beside.
NEEDED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libhorovod.so"} | LOADERS
MOST_BYTES = 8 << 20  # with debug information it would be tens of MiB


def readelf(*arguments: str | Path) -> str:
    command = ["readelf", "--wide", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def in_every_python() -> set[str]:
    """List what native/shims/python/api.h declares: functions and data of CPython's limited interface."""
    api = Path(__file__).resolve().parents[1] / "native/shims/python/api.h"
    return set(re.findall(r"\b_?Py\w+", api.read_text()))


def faults_of_library(library: Path, processor: str) -> list[str]:
    """List the faults of one of Horovod's libraries, one sentence each."""
    faults = []
    machine = re.search(r"Machine:\s+(.*)", readelf("--file-header", library))
    if machine is None or MACHINES[processor] not in machine[1]:
        faults.append(f"is for another processor than {processor}: {machine and machine[1]}")
    dynamic = readelf("--dynamic", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    faults += [f"needs {name}" for name in sorted(needed - NEEDED)]
    paths = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic)
    faults += [f"looks for libraries in {path}" for path in paths if path != "$ORIGIN"]
    if "TEXTREL" in dynamic:
        faults.append("has relocations in its code")
    if re.search(r"GNU_STACK.*\bRWE\b", readelf("--program-headers", library)):
        faults.append("wants a stack that can be executed")
    # Number, value, size, type, binding, visibility, section, name; a version follows the name after an @.
    rows = [line.split() for line in readelf("--dyn-syms", library).splitlines() if re.match(r"\s*\d+:", line)]
    symbols = [(row[6], row[7].split("@")[0]) for row in rows if len(row) > 7]
    exported = {name for section, name in symbols if section != "UND"}
    extends = library.name == EXTENSION
    faults += [
        f"exports {name}"
        for name in sorted(exported)
        if not (name == "PyInit__calls" if extends else name.startswith("hvd_"))
    ]
    if not exported:
        faults.append("exports nothing")
    imported = {name for section, name in symbols if section == "UND"}
    known = in_every_python() if extends else set()
    faults += [f"uses Python's {name}" for name in sorted(imported - known) if re.match("_?Py", name)]
    if library.stat().st_size > MOST_BYTES:
        faults.append(f"has {library.stat().st_size} bytes, more than {MOST_BYTES}: is it stripped?")
    return [f"{library.name} {fault}" for fault in faults]


def faults_of_platform(wheel: Path, platform: str) -> list[str]:
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Its lines are broken anywhere.
    oldest = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_', " ".join(shown.split()))
    promised = tuple(map(int, platform.split("_")[1:3]))
    if oldest is None or tuple(map(int, oldest.groups())) > promised:
        return [f"is not {platform}:\n{shown}"]
    return []


def faults_of_wheel(wheel: Path) -> list[str]:
    name = NAME.fullmatch(wheel.name)
    if name is None:
        return [f"the name {wheel.name} is not that of a py3-none-manylinux_2_28 wheel"]
    faults = faults_of_platform(wheel, name["platform"])
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        native = sorted(member for member in archive.namelist() if ".so" in Path(member).name)
        if native != [f"horovod/{library}" for library in LIBRARIES]:
            faults.append(f"holds other libraries than {LIBRARIES}: {native}")
        for member in native:
            faults += faults_of_library(Path(archive.extract(member, folder)), name["processor"])
    return faults


if __name__ == "__main__":
    found = faults_of_wheel(Path(sys.argv[1]))
    print("\n".join(found))
    sys.exit(1 if found else 0)
