# SPDX-License-Identifier: Apache-2.0
"""Pages as headless Chromium sees them: the document after its scripts have run, and pictures of it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder on loopback; gives the address without a slash at its end."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def document(url: str, profile: Path) -> str:
    """The page's HTML once its scripts have run. `profile`: a folder for Chromium's own files."""
    return _run(url, profile, "--dump-dom")


def picture(url: str, file: Path, profile: Path, width: int, height: int, dark: bool = False) -> None:
    """Writes a PNG of the upper part of a page."""
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(url, profile, f"--screenshot={file}", f"--window-size={width},{height}", *theme)


def _run(url: str, profile: Path, *flags: str) -> str:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("not run: there is no chromium")
    command = [program, *_FLAGS, f"--user-data-dir={profile}", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
