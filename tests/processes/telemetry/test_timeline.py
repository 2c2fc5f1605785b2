# SPDX-License-Identifier: Apache-2.0
"""The timeline: one JSON file of all ranks on one clock, valid at every moment, with the phases of each tensor."""

from __future__ import annotations

import collections
import fcntl
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.jobs import Job
from support.patience import be_late
from support.world import WorldPool

import horovod.core as hvd
from horovod.trace.reader import Reader
from horovod.trace.summary import summarize


def load(path: Path) -> list[dict[str, Any]]:
    """The events; fails where an end has no beginning, or a row's time runs backwards."""
    events = json.loads(path.read_text())
    open_ones: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
    last: dict[tuple[int, int], float] = {}
    for event in events:
        row = event["pid"], event.get("tid", 0)
        if event["ph"] == "M":
            continue
        assert event["ts"] >= last.get(row, 0), event
        last[row] = event["ts"]
        if event["ph"] == "B":
            open_ones[row].append(event["name"])
        elif event["ph"] == "E":
            assert open_ones[row].pop() == event["name"], event
    return events


def phases(events: list[dict[str, Any]], rank: int, tensor: str) -> list[str]:
    (row,) = [
        e["tid"] for e in events if (e["pid"], e["name"], e.get("args")) == (rank, "thread_name", {"name": tensor})
    ]
    return [e["ph"] + " " + e["name"] for e in events if e["pid"] == rank and e.get("tid") == row and e["ph"] in "BE"]


def work(path: str, other: str) -> None:
    hvd.init()
    for step in range(3):
        if step == 1:
            hvd.start_timeline(path, mark_cycles=True)
        hvd.allreduce(np.ones((4, 2), np.float32), name='a"\\\n' + "ü" * 100)
        hvd.allgather(np.ones(hvd.rank()), name="rows")
        handles = [hvd.allreduce_async(np.ones(5), name=f"fused.{i}") for i in range(20)]
        hvd.barrier()
        for handle in handles:
            hvd.synchronize(handle)
    hvd.start_timeline(other)
    hvd.broadcast(np.ones(3), 0, name="second")
    hvd.stop_timeline()
    hvd.broadcast(np.ones(3), 0, name="third")
    hvd.shutdown()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_rank_shows_the_phases_of_every_tensor(worlds: WorldPool, tmp_path: Path, transport: str) -> None:
    path, other = tmp_path / "timeline.json", tmp_path / "other.json"
    path.write_text("of an earlier job" * 1000)
    worlds(3, {"HOROVOD_TRANSPORT": transport}).run(work, str(path), str(other))
    events = load(path)
    label = transport.upper()
    for rank in range(3):
        operation = ["B ALLREDUCE", "B QUEUE", "E QUEUE", f"B {label}_ALLREDUCE", f"E {label}_ALLREDUCE", "E ALLREDUCE"]
        negotiation = ["B NEGOTIATE_ALLREDUCE", "E NEGOTIATE_ALLREDUCE"]
        assert phases(events, rank, "allreduce.fused.7") == 2 * (negotiation + operation)
        gather = phases(events, rank, "allgather.rows")
        assert gather[:4] == ["B NEGOTIATE_ALLGATHER", "E NEGOTIATE_ALLGATHER", "B ALLGATHER", "B QUEUE"]
        assert any(e["pid"] == rank and e["name"] == "CYCLE_START" for e in events)
        ends = [e for e in events if e["pid"] == rank and e["ph"] == "E" and e["name"] == "ALLREDUCE"]
        assert {"tensor": "float32 [4, 2]"} in [e.get("args") for e in ends]
    names = {e["args"]["name"] for e in events if e["name"] in ("thread_name", "process_name")}
    assert {"rank 0", "rank 1", "rank 2", "barrier.noname.0"} & names >= {"rank 0", "rank 1", "rank 2"}
    assert any(name.startswith('allreduce.a"\\\nüü') for name in names), names
    # One clock: a reduction ends on no rank before it has begun on all.
    begun = [e["ts"] for e in events if e["ph"] == "B" and e["name"] == "NEGOTIATE_ALLGATHER"]
    ended = [e["ts"] for e in events if e["ph"] == "E" and e["name"] == "ALLGATHER"]
    assert max(sorted(begun)[:3]) < min(ended) and len(begun) == len(ended) == 6
    text = other.read_text()
    assert "broadcast.second" in text and "third" not in text and "fused" not in text
    assert {e["pid"] for e in load(other) if e["ph"] == "B"} == {0, 1, 2}


KILLED = """
import numpy as np
import horovod.core as hvd
hvd.init()
for step in range(10**9):
    hvd.allreduce(np.ones(3), name=f"x.{step % 50}")
    if step == 5000:
        print("running", flush=True)
"""


def test_a_killed_job_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLED)
    arguments = ["-np", "2", "--timeline-filename", str(tmp_path / "t.json"), "--timeline-mark-cycles"]
    with Job(tmp_path, *arguments, [sys.executable, "train.py"]) as job:
        job.wait_for_line("running", count=2)
        for _ in range(5):  # while it is written
            with open(tmp_path / "t.json") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # as the writers do: between two of their writes
                assert len(json.load(file)) > 2
        job.process.send_signal(signal.SIGKILL)
        job.assert_gone()
    # As viewers do: the kernel may end a writer between two pages, in the middle of a line.
    text = (tmp_path / "t.json").read_text()
    whole = text if text.endswith("\n]\n") else text[: text.rindex(",\n")] + "\n]"
    events = json.loads(whole)
    assert {0, 1} <= {event["pid"] for event in events} and len(events) > 5000


def test_a_timeline_that_cannot_be_written_is_an_error_that_names_it(worlds: WorldPool, tmp_path: Path) -> None:
    def start(path: str) -> str:
        hvd.init()
        try:
            hvd.start_timeline(path)
        except ValueError as error:
            return str(error)
        finally:
            hvd.shutdown()
        return ""

    for rank, text in enumerate(worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(start, str(tmp_path / "no" / "t.json"))):
        assert f"rank {rank}: cannot open the timeline {tmp_path}/no/t.json: No such file" in text, text


def waiting(path: str, pids: list[int]) -> dict[str, Any]:
    hvd.init()
    before = hvd.statistics()["arrivals"]
    hvd.start_timeline(path)
    for _ in range(5):
        if hvd.rank() == 1:
            be_late(0.02, pids)
        handle = hvd.allreduce_async(np.ones(3), name="late")
        hvd.synchronize(handle)
        hvd.barrier()
    if hvd.rank() == 1:
        be_late(0.05, pids)
    other = threading.Thread(target=lambda: hvd.allreduce(np.ones(3), name="n" * 90))
    other.start()
    other.join()
    hvd.barrier()
    hvd.stop_timeline()
    after = hvd.statistics()["arrivals"]
    hvd.shutdown()
    return {key: after[key] - before[key] for key in ("blocked_for_ranks_s", "blocked_for_data_s")}


def test_waits_of_the_script_are_events_and_hold_what_statistics_count(worlds: WorldPool, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    world = worlds(2, {"HOROVOD_TRANSPORT": "shm"})
    counted = world.run(waiting, str(path), world.run(os.getpid))
    events = load(path)
    waits = [e for e in events if e["name"] == "WAIT" and e["ph"] == "B" and e["pid"] == 0]
    assert [e["args"]["tensor"] for e in waits].count("allreduce.late") == 5
    assert all(e["args"].keys() == {"tensor"} for e in waits)
    rows = {e["args"]["name"]: e["tid"] for e in events if e["pid"] == 0 and e["name"] == "thread_name"}
    by_thread = {name: [e["args"]["tensor"] for e in waits if e["tid"] == tid] for name, tid in rows.items()}
    assert by_thread["script, thread 2"] == ["allreduce." + "n" * 54], "a name is cut"
    summary = summarize(Reader(str(path)))
    for rank, of in zip(summary["ranks"], counted, strict=True):
        # The statistics leave out a wait for a call of which they do not know when it was ready.
        assert rank["exposed_s"] > sum(of.values()) - 0.02
        assert rank["exposed_for_ranks_s"] + rank["exposed_for_data_s"] == pytest.approx(rank["exposed_s"], abs=0.001)
    assert summary["ranks"][0]["exposed_for_ranks_s"] > 0.05
    assert summary["ranks"][1]["last_times"] >= 5 and summary["ranks"][1]["others_waited_s"] > 0.05
    (late,) = [tensor for tensor in summary["tensors"] if tensor["name"] == "allreduce.late"]
    assert late["exposed_s"] > 0.05
