# SPDX-License-Identifier: Apache-2.0
"""HolisticTraceAnalysis loads exported files, with all spans, names and durations. The argument: their folder."""

import json
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis

folder = Path(sys.argv[1])
paths = {int(path.name.split(".")[1]): str(path) for path in sorted(folder.iterdir())}
assert list(paths) == [0, 1], paths
analysis = TraceAnalysis(trace_files=paths, trace_dir=str(folder))
names = analysis.t.symbol_table.get_sym_table()
for rank, path in paths.items():
    spans = [event for event in json.loads(Path(path).read_text())["traceEvents"] if event["ph"] == "X"]
    table = analysis.t.get_trace(rank)
    assert len(table) == len(spans) > 20 * 4 * 4, (len(table), len(spans))
    assert {names[number] for number in table["name"]} == {span["name"] for span in spans}
    assert abs(table["dur"].sum() - sum(span["dur"] for span in spans)) < 2 * len(spans), "whole microseconds"
print(f"HolisticTraceAnalysis: {len(spans)} spans of each rank")
