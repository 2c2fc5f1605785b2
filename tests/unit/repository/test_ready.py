# SPDX-License-Identifier: Apache-2.0
"""tools/ready names all that a machine lacks at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import ROOT

READY = ROOT / "tools/ready"


def said(folder: Path, programs: dict[str, str], **env: str) -> tuple[int, str]:
    """The answer on a machine that has only what a shell needs, and these programs."""
    for name in ("sh", "mktemp", "rm"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(["sh", READY], env={"PATH": str(folder), **env}, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_this_machine_has_all() -> None:
    assert subprocess.run([READY], capture_output=True, text=True).returncode == 0


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    code, text = said(tmp_path, {"apt-get": "exit 1"})
    assert code == 1 and text.endswith("hint: apt-get install python3 python3-venv g++\n"), text
    assert "  - python3: Python 3.10 or newer\n  - a C++20 compiler: g++ 11 or clang++ 14, or newer\n" in text


@pytest.mark.parametrize("compiler", ["g++", "clang++-14"])
def test_a_compiler_that_fails_is_named(tmp_path: Path, compiler: str) -> None:
    code, text = said(tmp_path, {"python3": "exit 0", compiler: "exit 1"})
    assert code == 1 and f"{compiler} is too old, or lacks its headers" in text and "Python" not in text, text


def test_a_python_without_venv_is_told_from_an_old_one(tmp_path: Path) -> None:
    without_venv = 'case "$2" in *ensurepip*) exit 1 ;; esac'
    code, text = said(tmp_path, {"python3": without_venv, "g++": "exit 0"})
    assert code == 1 and "  - Python's venv\n" in text, text


def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    old = 'case "$2" in *version_info*) exit 1 ;; *platform*) echo 3.9.2 ;; esac'
    code, text = said(tmp_path, {"snake": old, "g++": "exit 0"}, PYTHON="snake")
    assert code == 1 and "  - Python 3.10 or newer; snake is 3.9.2\n" in text, text


@pytest.mark.parametrize("given", ["env c++", "none -O2"])
def test_the_build_takes_the_arguments_of_a_compiler_and_another_one_if_it_is_missing(
    given: str, tmp_path: Path
) -> None:
    """As `ccache c++`, or the `python -m ziglang c++` of tools/wheels."""
    tools = Path(sys.executable).parent
    ninja = shutil.which("ninja", path=f"{tools}:{os.environ['PATH']}")
    cmake = shutil.which("cmake", path=f"{tools}:{os.environ['PATH']}")
    assert cmake and ninja
    command = [cmake, "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    done = subprocess.run(command, env={**os.environ, "CXX": given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
