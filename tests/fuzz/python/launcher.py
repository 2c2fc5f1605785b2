# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: the lines between launcher and agent, the failure that ranks recorded, as the launcher tells it, and
what horovod.run exchanges. The first byte chooses which, and how the stream is cut or which exits were seen."""

import json

from horovod.launcher.function.exchange import _pieces
from horovod.launcher.host.lines import LineError, LineReader, line
from horovod.launcher.job.failure import Line, RankExit, describe_end, last_exception, report, root_cause
from horovod.world.channel import ChannelError

MEASURED = {
    "horovod/launcher/host/lines.py": ["LineReader", "line"],
    "horovod/launcher/function/exchange.py": ["_pieces", "_received"],
    "horovod/launcher/job/failure.py": [
        "root_cause",
        "report",
        "_happened",
        "last_words",
        "describe_end",
        "RankExit",
        "Cause",
    ],
}
LONGEST = 8192
EXITS = [
    [],
    [RankExit(0, 1, 5.0), RankExit(1, -9, 5.1)],
    [RankExit(1, 0, 4.0), RankExit(0, 1, 5.0), RankExit(2, -15, 6.0, asked=True)],
    [RankExit(2, -11, 1.0), RankExit(1, -64, 1.0)],
]


def run(data: bytes) -> None:
    choice, rest = data[:1] or b"\0", data[1:]
    if choice[0] >= 0xF0:
        _exchanged(rest, 1 + choice[0] % 16)
    elif choice[0] % 2:
        _failure(rest, EXITS[choice[0] // 2 % len(EXITS)])
    else:
        _lines(rest, 1 + choice[0] // 2)


def _lines(data: bytes, piece_bytes: int) -> None:
    kind = "event" if piece_bytes % 2 else "order"
    cut, whole = LineReader(kind), LineReader(kind)
    try:
        at_once = whole.feed(data)
    except LineError:
        at_once = None
    messages = []
    try:
        for start in range(0, len(data), piece_bytes):
            messages += cut.feed(data[start : start + piece_bytes])
    except LineError:
        assert at_once is None
        return
    assert at_once == messages or messages != messages  # NaN differs from itself
    for message in messages:
        assert LineReader(kind).feed(line(**message)) == [message] or message != json.loads(json.dumps(message))


class _Stream:
    """What a socket gives, at most `piece_bytes` at a time."""

    def __init__(self, data: bytes, piece_bytes: int) -> None:
        self.data, self.piece_bytes = data, piece_bytes

    def recv(self, count: int) -> bytes:
        piece, self.data = self.data[: min(count, self.piece_bytes)], self.data[min(count, self.piece_bytes) :]
        return piece


def _exchanged(data: bytes, piece_bytes: int) -> None:
    announced = int.from_bytes(data[:8], "big")
    try:
        got = b"".join(_pieces(_Stream(data, piece_bytes), "the peer"))
    except ChannelError:
        assert len(data) < 8 + announced
        return
    assert got == data[8 : 8 + announced] and len(got) == announced


def _failure(data: bytes, exits: list[RankExit]) -> None:
    assert all(describe_end(one, 1).startswith(f"rank {one.rank} (process 1) ") for one in exits)
    texts = [
        "Traceback (most recent call last):",
        '  File "train.py", line 1',
        *data.decode(errors="replace").split("\n"),
    ]
    assert last_exception([Line(text, 1.0) for text in texts], 1.0) in ["", *texts]
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return
    cause = root_cause(exits, record if isinstance(record, dict) else None)
    if cause is None:
        return
    for last_lines in ([], [Line("Traceback (most recent call last):", 1.0), Line("ValueError", 5.0)]):
        text = report(cause, exits, "host", last_lines)
        assert f"horovodrun: rank {cause.rank} on host host " in text
    assert isinstance(cause.exit_code, int)
    assert all(one.exit_code > 0 for one in exits if one.failed)
