# SPDX-License-Identifier: Apache-2.0
"""The answer to one HTTP request. Anyone who reaches the port may ask; there is nothing to ask for but the text."""

from __future__ import annotations

import io
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from horovod.metrics.text import OPEN_METRICS, PLAIN

__all__ = ["LONGEST_REQUEST", "answer_to"]

LONGEST_REQUEST = 16 << 10  # bytes

# The text in OpenMetrics if True, otherwise in the older format.
Text = Callable[[bool], str]


def answer_to(request: bytes, text: Text) -> bytes:
    """The bytes that answer these, which are what a client has sent up to the empty line."""
    return _Handler(request, text).answer


class _Handler(BaseHTTPRequestHandler):
    """Reads from memory and writes to memory: exporter.py has the socket, with limits for time and size."""

    error_content_type = PLAIN
    error_message_format = "Error code: %(code)d, %(message)s\n"

    def __init__(self, request: bytes, text: Text) -> None:
        self._request, self._text = request, text
        nowhere: Any = None
        super().__init__(nowhere, ("", 0), nowhere)

    def setup(self) -> None:
        self.rfile = io.BufferedReader(io.BytesIO(self._request))
        self.wfile = io.BytesIO()

    def finish(self) -> None:
        self.answer: bytes = self.wfile.getvalue()  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._send(HTTPStatus.NOT_FOUND, PLAIN, "the metrics are at /metrics\n")
            return
        is_open = "application/openmetrics-text" in (self.headers["Accept"] or "")
        self._send(HTTPStatus.OK, OPEN_METRICS if is_open else PLAIN, self._text(is_open))

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "horovod"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: stderr is the rank's own."""

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
