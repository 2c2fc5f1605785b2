# SPDX-License-Identifier: Apache-2.0
"""The tables of mutations fit the code, and the operators find mistakes: `make check-all` tells it late."""

from __future__ import annotations

import importlib

import pytest
from support.pages import ROOT


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_every_mutation_finds_its_text_once() -> None:
    rows = [row for table in ("native", "python") for row in importlib.import_module(f"mutations.{table}").ROWS]
    assert len({row.name for row in rows}) == len(rows) >= 60
    edits = [(row.name, file, text) for row in rows for file, text, _ in row.edits]
    counts = {edit: (ROOT / edit[1]).read_text(encoding="utf-8").count(edit[2]) for edit in edits}
    assert {edit: count for edit, count in counts.items() if count != 1} == {}


def test_what_is_equivalent_is_in_the_code() -> None:
    """A line that has changed may be a mistake now."""
    for file, before, _ in importlib.import_module("mutations.sample").EQUIVALENT:
        assert before in (ROOT / file).read_text(encoding="utf-8"), (file, before)


CPP = """\
#define SIZE 3  // a < b && c
void Ring::turn(int by) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < by; ++i) {
    if (auto one = next(); one.ok() && !full_) step(one, by);
    if (done_) break;
  }
  at_ = std::min(at_ + by, size_);
  send("a < b");
}
bool Ring::open() const { return true; }
int Ring::left() const { return size_ - at_; }
bool Ring::same(int at) const { return at == at_; }
"""
PYTHON = """\
def turn(by: int = 1) -> None:
    with self._lock:
        for one in range(by):
            if one < by and not self.full:
                step(one, by, wait=True)
            if done:
                break
    self.at = min(self.at + by, size)
    send("a < b")

def same(at):
    return at == self.at or size
"""


@pytest.mark.parametrize(("file", "text"), [("ring.cc", CPP), ("ring.py", PYTHON)])
def test_each_operator_makes_its_mistake_in_both_languages(file: str, text: str) -> None:
    operators = importlib.import_module("mutations.operators")
    found = operators.sites(file, text)
    assert {site.operator for site in found} == set(operators.OPERATORS)
    changed = {site.applied(text) for site in found}
    assert len(changed) == len(found) and text not in changed
    for one in changed:
        assert '"a < b"' in one or "send" not in one, "a text was changed"
        if file.endswith(".py"):
            compile(one, file, "exec")


@pytest.mark.parametrize(
    ("text", "operator", "expected"),
    [
        ("  if (int n = f(); n > 0) g();", "condition", "  if (int n = f();!(n > 0)) g();"),
        ("  return a && b;", "operand", "  return  b;"),
        ("  return rows < 0 ? 1 : 2;", "boundary", "  return rows <= 0 ? 1 : 2;"),
        ("  send(from, to);", "arguments", "  send(to, from);"),
        ("  std::vector<int> ends(from, to);", "call", None),
        ("  Grid<A, B> grid;", "boundary", None),
    ],
)
def test_a_mistake_in_cpp(text: str, operator: str, expected: str | None) -> None:
    found = importlib.import_module("mutations.operators").sites("one.cc", f"{text}\n")
    first = next((site.applied(text) for site in found if site.operator == operator), None)
    assert first == expected


def test_a_seed_gives_the_same_sample_again() -> None:
    sample = importlib.import_module("mutations.sample")
    within = ("src/horovod/elastic/", "native/negotiation/")
    assert sample.sampled(12, 5, within) == sample.sampled(12, 5, within) != sample.sampled(12, 6, within)
    assert len({site.operator for site in sample.sampled(12, 5, within)}) > 6
    assert all(site.file.startswith(within) for site in sample.sampled(12, 5, within))


@pytest.mark.parametrize(
    ("file", "near", "wide"),
    [
        ("native/reduction/kernels.cc", "kernels_test", "engine_test"),
        ("native/engine/lifecycle.cc", "engine_test", "tests/contract"),
        ("src/horovod/world/channel.py", "tests/unit/world/test_channel.py", "tests/unit"),
        ("src/horovod/launcher/job/failure.py", "tests/unit/launcher/test_failure.py", "tests/processes"),
        ("src/horovod/mxnet/state.py", "", "tests/frameworks/mxnet"),
    ],
)
def test_a_file_has_its_tests(file: str, near: str, wide: str) -> None:
    sample = importlib.import_module("mutations.sample")
    assert not near or near in {test.arguments[0] for test in sample.tests_near(file)}
    tests = sample.tests_wide(file)
    assert wide in {argument for test in tests for argument in test.arguments}
    assert not any("tests/cluster" in test.arguments for test in tests)
