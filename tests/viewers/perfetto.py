# SPDX-License-Identifier: Apache-2.0
"""Perfetto's interface opens a timeline, and its trace processor has every span of it, nested as it was written.

Arguments: the address of the interface, which loads the timeline, the timeline's file, a folder for Chromium's profile.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from chromium import Page, shown, until

address, timeline, profile = sys.argv[1:]


def served() -> Any:
    with urllib.request.urlopen(address) as answer:
        return answer.read() or None


def check(page: Page) -> int:
    def rows(query: str) -> list[list[str]]:
        """Of a query that selects texts as one and two."""
        found: list[list[str]] = page.evaluate(
            f"(async () => {{ const found = await app.trace.engine.query({json.dumps(query)}); const all = [];"
            "for (const row = found.iter({one: 'str', two: 'str'}); row.valid(); row.next())"
            "all.push([row.one, row.two]); return all; })()"
        )
        return found

    until(lambda: page.evaluate("app.trace.traceInfo.traceTitle"))
    names = rows("select name as one, cast(count(*) as text) as two from slice group by name")
    events = json.loads(Path(timeline).read_text())
    begun = [event["name"] for event in events if event["ph"] == "B"]
    assert {name: int(times) for name, times in names} == {name: begun.count(name) for name in set(begun)}, names
    wrong = rows("select name as one, cast(value as text) as two from stats where severity = 'error' and value > 0")
    assert wrong == [], wrong
    unfinished = rows("select name as one, name as two from slice where dur < 0")
    assert unfinished == [], unfinished
    ranks = rows("select name as one, cast(pid as text) as two from process where name like 'rank%' order by pid")
    assert ranks == [["rank 0", "0"], ["rank 1", "1"]], ranks
    nested = "select distinct s.name as one, p.name as two from slice s join slice p on s.parent_id = p.id"
    parents = rows(nested)
    assert ["QUEUE", "ALLREDUCE"] in parents and all(parent == "ALLREDUCE" for _, parent in parents), parents

    def text() -> Any:
        text = page.evaluate("document.body.innerText")
        return text if "rank 0" in text and "rank 1" in text else None

    until(text)
    return len(begun)


until(served)
with shown(address, profile) as perfetto:
    print(f"Perfetto: {check(perfetto)} spans, none misplaced")
