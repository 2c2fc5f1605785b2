# SPDX-License-Identifier: Apache-2.0
"""Messages between launcher and agent are cut from their stream as they were sent, and nothing else is one."""

from __future__ import annotations

import pytest

from horovod.launcher.host.lines import LineError, LineReader, line


def test_messages_come_whole_however_their_bytes_are_cut() -> None:
    sent = [{"event": "output", "text": "a\nb\udcff", "rank": 1}, {"event": "done"}]
    stream = b"".join(line(**message) for message in sent)
    for size in (1, 3, len(stream)):
        reader = LineReader("event")
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [message for piece in pieces for message in reader.feed(piece)] == sent


@pytest.mark.parametrize(
    "bad", [b"hello\n", b"[]\n", b"{}\n", b'{"event": 3}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"]
)
def test_what_is_no_message_is_an_error(bad: bytes) -> None:
    with pytest.raises(LineError, match="a line"):
        LineReader("event").feed(bad)


def test_a_line_without_end_is_an_error_before_it_fills_the_memory() -> None:
    reader = LineReader("event", limit_bytes=1000)
    assert reader.feed(b"x" * 1000) == []
    with pytest.raises(LineError, match="more than 1000 bytes"):
        reader.feed(b"x")
