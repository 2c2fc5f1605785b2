# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, which shows a page and runs JavaScript in it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import websocket

LIMIT_S = 90.0
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]


def until(attempt: Any) -> Any:
    """The first result that is not None."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(OSError, StopIteration):
            result = attempt()
            if result is not None:
                return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of {attempt.__name__} in {LIMIT_S} s")
        time.sleep(0.2)


class Page:
    """One page. `command` is one of the browser's protocol."""

    def __init__(self, address: str) -> None:
        self._connection = websocket.create_connection(address, suppress_origin=True, timeout=LIMIT_S)

    def command(self, method: str, **parameters: Any) -> Any:
        self._connection.send(json.dumps({"id": 1, "method": method, "params": parameters}))
        while (answer := json.loads(self._connection.recv())).get("id") != 1:
            pass
        return answer["result"]

    def evaluate(self, code: str) -> Any:
        """The value of JavaScript; None if it raises."""
        result = self.command("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        return None if "exceptionDetails" in result else result["result"].get("value")


@contextlib.contextmanager
def shown(address: str, profile: str) -> Iterator[Page]:
    """`profile`: a new folder for the browser."""
    browser = subprocess.Popen(
        ["chromium", *FLAGS, f"--user-data-dir={profile}", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def port() -> int:
        return int((Path(profile) / "DevToolsActivePort").read_text().split()[0])

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{until(port)}/json") as answer:
            pages = json.load(answer)
        return next(one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page")  # type: ignore[no-any-return]

    try:
        yield Page(until(page))
    finally:
        browser.terminate()
        browser.wait(10)


def in_widths(page: Page, widths: Sequence[int]) -> Iterator[int]:
    """Shows the page in a window of each width, which it must fit."""
    until(lambda: page.evaluate("document.readyState === 'complete' || null"))
    for width in widths:
        page.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        until(lambda width=width: page.evaluate(f"innerWidth === {width} || null"))
        whole = page.evaluate("document.documentElement.scrollWidth")
        assert whole <= width, f"{whole} pixels in a window of {width}"
        yield width
