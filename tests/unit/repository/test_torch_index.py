# SPDX-License-Identifier: Apache-2.0
"""tools/torch-index: PyTorch without CUDA, if its index can be reached. The index is a folder that this test serves."""

from __future__ import annotations

import functools
import http.server
import runpy
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import ROOT

TOOL = str(ROOT / "tools/torch-index")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The address of an index that has PyTorch 2.13.0+cpu."""
    folder = tmp_path / "index" / "torch"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "torch-2.13.0+cpu-py3-none-any.whl", "w") as wheel:
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"),
            ("WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            wheel.writestr(f"torch-2.13.0+cpu.dist-info/{name}", text)
    handler = functools.partial(Quiet, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def said(url: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, TOOL, url], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.skipif(runpy.run_path(TOOL)["has_gpu"](), reason="hardware: this machine has a GPU")
def test_pip_takes_the_wheel_without_cuda_from_the_index(index: str, tmp_path: Path) -> None:
    options, warning = said(index)
    assert warning == ""
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--target", str(tmp_path / "to")]
    subprocess.run([*command, *options.split(), "torch==2.13.0"], check=True, capture_output=True)
    assert (tmp_path / "to" / "torch-2.13.0+cpu.dist-info").is_dir()


@pytest.mark.skipif(runpy.run_path(TOOL)["has_gpu"](), reason="hardware: this machine has a GPU")
def test_an_index_that_cannot_be_reached_is_told_before_the_large_download(index: str) -> None:
    options, warning = said(f"{index}/nothing")
    assert options == ""
    assert warning.startswith("PyTorch comes with CUDA, up to 3 GB: ")


def test_a_machine_with_a_gpu_gets_cuda(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tool = runpy.run_path(TOOL)
    monkeypatch.setitem(tool["main"].__globals__, "has_gpu", lambda: True)
    tool["main"]()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "this machine has a GPU" in printed.err
