# SPDX-License-Identifier: Apache-2.0
"""A timeline as files of PyTorch's profiler, one for each rank: what HolisticTraceAnalysis and similar tools load."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from horovod.trace.reader import Reader
from horovod.world.files.places import make_folder
from horovod.world.files.whole import named, open_in_place

__all__ = ["export"]


def export(reader: Reader, folder: Path) -> list[Path]:
    """Writes rank.<rank>.json into `folder`, and returns their paths. Raises OSError.

    A span is one complete event (phase X) of the category user_annotation, with the tensor as an argument. Spans that
    have no end in the file are left out.
    """
    with named(folder):
        return _written(reader, folder)


def _written(reader: Reader, folder: Path) -> list[Path]:
    make_folder(folder)
    ranks = reader.ranks()
    paths = {rank: folder / f"rank.{rank}.json" for rank in ranks}
    with contextlib.ExitStack() as stack:
        files = {rank: stack.enter_context(open(path, "w", opener=open_in_place)) for rank, path in paths.items()}
        for rank, file in files.items():
            # A place in the world: that of the file is all that is known.
            info = {"backend": "horovod", "rank": rank, "world_size": max(ranks) + 1}
            file.write(f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(info)}, "traceEvents": [\n')
            file.write(json.dumps(_name("process_name", rank, 0, f"rank {rank}")))
        _write_spans(reader, files)
        for file in files.values():
            file.write("\n]}\n")
    return list(paths.values())


def _name(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": tid, "ts": 0, "args": {"name": name}}


def _write_spans(reader: Reader, files: Mapping[int, TextIO]) -> None:
    spans: dict[tuple[int, int], list[dict[str, Any]]] = collections.defaultdict(list)
    names: dict[tuple[int, int], str] = {}
    for event in reader.events():
        rank, tid = event["pid"], event.get("tid", 0)
        file, row = files.get(rank), (rank, tid)
        if file is None:
            continue
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[row] = str(event["args"]["name"])
            file.write(",\n" + json.dumps(_name("thread_name", rank, tid, names[row])))
        elif event["ph"] == "B":
            spans[row].append(event)
        elif event["ph"] == "E" and any(begun["name"] == event["name"] for begun in spans[row]):
            while spans[row][-1]["name"] != event["name"]:
                spans[row].pop()  # its end was lost
            begun = spans[row].pop()
            arguments = {"tensor": names.get(row, ""), **begun.get("args", {})}
            if "args" in event:
                arguments["shape"] = event["args"].get("tensor", "")
            whole = {"ph": "X", "cat": "user_annotation", "name": event["name"], "pid": rank, "tid": tid}
            whole |= {"ts": begun["ts"], "dur": round(event["ts"] - begun["ts"], 3), "args": arguments}
            file.write(",\n" + json.dumps(whole))
