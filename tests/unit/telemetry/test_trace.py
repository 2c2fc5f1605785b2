# SPDX-License-Identifier: Apache-2.0
"""python -m horovod.trace: what it says of a timeline, also of a torn or a foreign file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from horovod.trace.__main__ import main
from horovod.trace.ranks import _bytes_of
from horovod.trace.reader import Reader
from horovod.trace.summary import summarize
from horovod.trace.waits import Arrivals, Call

FIRST = {"name": "horovod", "ph": "M", "pid": 0, "args": {"session": "s", "start_monotonic_us": 1.0}}


def named(rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}}


def of_rank(rank: int, events: Iterable[tuple[str, int, float, str, str]]) -> list[dict[str, Any]]:
    """Its rows: 1 and 2 are tensors, 3 is the script. Events: phase, row, milliseconds, name, detail."""
    head = [{"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}]
    head += [named(rank, 1, "allreduce.a"), named(rank, 2, "allreduce.b"), named(rank, 3, "script, thread 1")]
    made = []
    for phase, tid, at_ms, name, detail in events:
        event = {"ph": phase, "pid": rank, "tid": tid, "ts": at_ms * 1000, "name": name}
        made.append({**event, **({"args": {"tensor": detail}} if detail else {})})
    return [*head, *made]


def call(tid: int, begin: float, ready: float, end: float, shape: str = "float32 [1024]") -> list[Any]:
    return [
        ("B", tid, begin, "NEGOTIATE_ALLREDUCE", ""),
        ("E", tid, ready, "NEGOTIATE_ALLREDUCE", ""),
        ("B", tid, ready, "ALLREDUCE", ""),
        ("B", tid, ready, "QUEUE", ""),
        ("E", tid, ready + 1, "QUEUE", ""),
        ("B", tid, ready + 1, "SHM_ALLREDUCE", ""),
        ("E", tid, end, "SHM_ALLREDUCE", ""),
        ("E", tid, end, "ALLREDUCE", shape),
    ]


def wait(tensor: str, begin: float, end: float) -> list[Any]:
    return [("B", 3, begin, "WAIT", tensor), ("E", 3, end, "WAIT", "")]


def in_order(events: list[Any]) -> list[Any]:
    return sorted(events, key=lambda event: event[2])


def written(path: Path, events: Iterable[dict[str, Any]]) -> Path:
    path.write_text("[\n" + ",\n".join(json.dumps(event) for event in [FIRST, *events]) + "\n]\n")
    return path


def two_ranks(path: Path, slower_ms: float = 0.0) -> Path:
    """Three steps of 100 ms: rank 1 is 20 ms late with each; rank 0 is blocked from 30 ms after its call on."""
    ranks: list[list[Any]] = [[], []]
    for step in range(3):
        at = 100.0 * step + 1000
        ready, end = at + 20, at + 60 + slower_ms
        ranks[0] += call(1, at, ready, end) + wait("allreduce.a", at + 10, end)
        ranks[1] += call(1, ready, ready, end)
    return written(path, [*of_rank(0, in_order(ranks[0])), *of_rank(1, in_order(ranks[1]))])


def test_steps_communication_exposure_and_the_late_rank_are_counted(tmp_path: Path) -> None:
    summary = summarize(Reader(str(two_ranks(tmp_path / "t.json"))))
    assert summary["duration_s"] == 0.26 and summary["is_complete"]
    assert summary["steps"] == {"count": 3, "median_ms": 100.0, "shortest_ms": 100.0, "longest_ms": 100.0}
    first, second = summary["ranks"]
    assert first["communication_s"] == pytest.approx(0.18) and second["communication_s"] == pytest.approx(0.12)
    assert (first["exposed_s"], first["hidden_s"]) == (pytest.approx(0.15), pytest.approx(0.03))
    assert (first["exposed_for_ranks_s"], first["exposed_for_data_s"]) == (pytest.approx(0.03), pytest.approx(0.12))
    assert second["exposed_s"] is None
    assert (second["last_times"], second["others_waited_s"], second["longest_wait_s"]) == (3, 0.06, 0.02)
    assert (first["waited_s"], first["last_times"]) == (0.06, 0)
    (tensor,) = summary["tensors"]
    assert (tensor["name"], tensor["times"], tensor["exposed_s"]) == ("allreduce.a", 3, 0.15)
    (operation,) = summary["operations"]
    assert (operation["times"], operation["bytes"], operation["queued_s"]) == (3, 3 * 4096, 0.003)
    assert operation["data_s"] == pytest.approx(0.117)
    assert summary["sizes"] == [{"up_to_bytes": 4096, "label": "4 KiB", "times": 3, "bytes": 3 * 4096}]
    assert [bar["for_data_ms"] for bar in summary["bars"]] == [20.0, 20.0], "the mean of both ranks"


def test_the_text_names_the_late_rank_and_two_runs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = two_ranks(tmp_path / "one.json"), two_ranks(tmp_path / "two.json", 10)
    assert main(["summary", str(one), str(two)]) == 0
    text = capsys.readouterr().out
    assert f"{one}: 2 ranks, 0.260 s" in text and "steps: 3, median 100.000 ms" in text
    assert "rank 1 was late most: 100% of all waiting was for it" in text
    assert re.search(r"exposed_for_data_s +0.12 +0.15 +\+25.0%", text)
    assert main(["summary", str(one), str(two), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [timeline["duration_s"] for timeline in found["timelines"]] == [0.26, 0.27]
    rows = {row["what"]: row["percent"] for row in found["difference"]}
    assert rows["exposed_s"] == 20.0 and rows["ranks"] == 0.0


def test_a_summary_takes_one_file_or_two_wherever_the_flags_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(two_ranks(tmp_path / "t.json"))
    assert main(["summary", path, "--json", path]) == 0
    assert len(json.loads(capsys.readouterr().out)["timelines"]) == 2
    for words, said in (
        (["summary", path, path, path], "error: summary takes one timeline, or two to compare: 3 were given\n"),
        (["summary", path, "--no"], "error: unrecognized arguments: --no\n"),
        (["export", path, "folder", "more"], "error: unrecognized arguments: more\n"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert capsys.readouterr().err.endswith(said)


def test_a_file_of_a_killed_job_says_what_was_going_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_ranks(tmp_path / "t.json")
    lines = path.read_text().splitlines()
    ends = [number for number, line in enumerate(lines) if '"SHM_ALLREDUCE"' in line and '"E"' in line]
    path.write_text("\n".join(lines[: ends[-1]]) + '\n{"ph": "E", "pid": 1, "tid')
    assert main(["summary", str(path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"1 +ALLREDUCE +allreduce.a +0.0 ms|1 +ALLREDUCE +allreduce.a", text)
    assert "the file is not complete: the job was killed, or still runs; 1 torn lines were left out" in text


def test_a_reader_of_the_beginning_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m horovod.trace summary {two_ranks(tmp_path / 't.json')} --json | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "flags, target, name",
    [
        ("", "/dev/full", "standard output"),
        ("--json", "/dev/full", "standard output"),
        ("--html /dev/full", "/dev/null", "/dev/full"),
    ],
)
def test_a_full_disk_names_the_file(tmp_path: Path, flags: str, target: str, name: str) -> None:
    command = f"exec {sys.executable} -m horovod.trace summary {two_ranks(tmp_path / 't.json')} {flags} > {target}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"horovod.trace: cannot write {name}: No space left on device\n")


@pytest.mark.parametrize(
    "content, expected",
    [
        ("", "is empty: no rank has written an event\nhint: "),
        ("[\n{}\n]\n", "is not a timeline of Horovod\nhint: horovodrun --timeline-filename FILE writes one"),
        ('{"traceEvents": []}', "is not a timeline of Horovod"),
        ("\0\xff" * 1000, "is not a timeline of Horovod"),
        ("[\n" + json.dumps(FIRST) + "\n]\n", "has no events\nhint: "),
        (None, "No such file or directory"),
    ],
)
def test_other_files_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, expected: str
) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content, errors="surrogateescape")
    assert main(["summary", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"horovod.trace: {path}") and expected in said.err and said.out == ""


def test_files_without_waits_say_that_the_exposed_time_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t.json", of_rank(0, call(1, 0.5, 1, 3) + call(1, 5, 6, 8)))
    assert main(["summary", str(path)]) == 0
    assert "exposed time is not known: this file has no WAIT events" in capsys.readouterr().out


def test_lost_events_do_not_confuse_the_rest(tmp_path: Path) -> None:
    events = call(1, 1, 2, 4)[1:] + call(1, 5, 6, 8) + call(2, 9, 10, 12)[:-3]
    lost = {"ph": "i", "pid": 0, "tid": 0, "ts": 9000, "name": "EVENTS_LOST", "s": "p", "args": {"events": 7}}
    summary = summarize(Reader(str(written(tmp_path / "t.json", [*of_rank(0, events), lost]))))
    assert summary["lost_events"] == 7
    assert summary["operations"][0]["times"] == 2
    assert [one["event"] for one in summary["unfinished"]] == ["ALLREDUCE"]


def test_equal_names_in_two_process_sets_do_not_meet() -> None:
    arrivals = Arrivals([0, 1, 2, 3])
    for rank, begun, ready in ((0, 0.0, 50.0), (1, 49.0, 50.0), (2, 1000.0, 1090.0), (3, 1080.0, 1090.0)):
        arrivals.ready(rank, "ALLREDUCE", "g", begun, ready)
    arrivals.finish()
    assert [arrivals.by_rank[rank].waited_us for rank in range(4)] == [49.0, 0.0, 80.0, 0.0]
    assert [arrivals.by_rank[rank].times for rank in range(4)] == [0, 1, 0, 1]


def hanging(path: Path, since_ms: float, *, joined: bool = False, before: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Of three ranks, those in `before` warm up, the last of them late; then rank 0 waits alone."""
    events: list[list[Any]] = [call(1, 1000 + 10.0 * rank, 1020, 1030) if rank in before else [] for rank in range(3)]
    events[0] += [("B", 2, 2000, "NEGOTIATE_ALLREDUCE", ""), *wait("allreduce.b", 2000, 2000 + since_ms)]
    if joined:
        events[1].append(("B", 4, 1500, "NEGOTIATE_ALLREDUCE", ""))
    rows = [event for rank in range(3) for event in of_rank(rank, events[rank])]
    return written(path, [named(1, 4, "join"), *rows])


def test_a_wait_that_has_no_end_counts_for_the_ranks_that_never_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hanging(tmp_path / "t.json", 8000)
    summary = summarize(Reader(str(path)))
    assert summary["not_called"] == [{"operation": "ALLREDUCE", "tensor": "allreduce.b", "ranks": [1, 2]}]
    first, second, third = summary["ranks"]
    assert (first["waited_s"], first["others_waited_s"]) == (8.02, 0)
    assert (second["others_waited_s"], second["longest_wait_s"], second["last_times"]) == (4.0, 8.0, 1)
    assert third["others_waited_s"] == 4.03, "it was late before"
    assert main(["summary", str(path)]) == 0
    text = capsys.readouterr().out
    assert "ranks 1, 2 have not called allreduce.b (allreduce)" in text
    assert "rank 2 was late most: 50% of all waiting was for it" in text


def test_the_rank_that_a_hanging_job_waits_for_is_the_late_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(hanging(tmp_path / "t.json", 8000, joined=True))]) == 0
    text = capsys.readouterr().out
    assert "rank 2 has not called allreduce.b (allreduce)" in text, "rank 1 takes part by join"
    assert "rank 2 was late most: 100% of all waiting was for it" in text


def test_a_short_wait_at_the_end_blames_no_rank(tmp_path: Path) -> None:
    assert summarize(Reader(str(hanging(tmp_path / "t.json", 20))))["not_called"] == []


def test_ranks_outside_of_the_process_set_are_not_missing() -> None:
    arrivals = Arrivals([0, 1, 2])
    for rank in (0, 1):
        arrivals.ready(rank, "ALLREDUCE", "g", 10.0 * rank, 20.0)
    waits = [Call(0, "ALLREDUCE", "g", 100.0), Call(0, "SEND", "s", 100.0)]
    assert arrivals.unfinished(waits, 9e6) == {("ALLREDUCE", "g"): [1]}
    arrivals.ready(1, "ALLREDUCE", "g", 150.0, 200.0)
    assert arrivals.unfinished(waits, 9e6) == {}, "the call was ready, and the file lacks the end of the wait"


@pytest.mark.parametrize(
    "detail, size",
    [
        ("float32 [2, 3]", 24),
        ("bfloat16 []", 2),
        ("bool [0, 5]", 0),
        ("float32 [2] and 3 more", None),
        ("allreduce.a", None),
        ("", None),
    ],
)
def test_sizes_are_read_from_dtype_and_shape(detail: str, size: int | None) -> None:
    assert _bytes_of(detail) == size


def test_the_page_has_its_pictures_and_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_ranks(tmp_path / "<t>&.json")
    page = tmp_path / "page.html"
    assert main(["summary", str(path), "--html", str(page)]) == 0
    assert f"the page is {page}" in capsys.readouterr().out
    text = page.read_text()
    assert not re.search(r"https?:|//|<script|<link|<img|src=|href|@import|url\(", text.replace(str(tmp_path), ""))
    assert "<t>" not in text and "&lt;t&gt;&amp;.json" in text
    for heading in ("Steps", "One step", "Waiting by rank", "Sizes of the tensors", "All numbers"):
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<svg") == text.count("</svg>") == 1 + 2 * 3
    assert "rank 1: script blocked" in text and "up to 4 KiB" in text
    assert main(["summary", str(path), "--html", str(tmp_path / "no" / "page.html")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_an_exported_file_has_whole_spans_of_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_ranks(tmp_path / "t.json")
    assert main(["export", str(path), str(tmp_path / "ranks")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "ranks" / f"rank.{rank}.json") for rank in (0, 1)]
    made = json.loads((tmp_path / "ranks" / "rank.1.json").read_text())
    assert made["distributedInfo"]["rank"] == 1
    spans = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 3 * 4 and {span["pid"] for span in spans} == {1}
    assert {span["args"]["tensor"] for span in spans} == {"allreduce.a"}
    data = next(span for span in spans if span["name"] == "SHM_ALLREDUCE")
    assert (data["ts"], data["dur"]) == (1021000.0, 39000.0)
