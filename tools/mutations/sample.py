# SPDX-License-Identifier: Apache-2.0
"""Which of the generic mutations are tried, and by which tests."""

from __future__ import annotations

import ast
import collections
import random
import re
import runpy
import subprocess
from pathlib import Path

from .operators import Site, sites
from .row import Test

ROOT = Path(__file__).resolve().parents[2]
NATIVE_TESTS = ROOT / "tests" / "native"
# Tests of the core leave out what repeats over other frameworks and hosts, not TCP; others are run whole.
QUICK = ("-k", "not torch and not tensorflow and not 3+1")
SKIPPED = ("src/horovod/bench/", "native/build_id", "native/reduction/kernels_avx512")
# No test can see these: the file, the line before and after, and why.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "src/horovod/world/tunnel.py",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _FOLDER_DESCRIPTOR + 24), hard))",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, _FOLDER_DESCRIPTOR + 24), hard))",
    ): "any limit above the descriptor will do",
}


def product_files(within: tuple[str, ...]) -> list[str]:
    command = ["git", "ls-files", "src/horovod/*.py", "native/*.cc", "native/*.h"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    return [
        name for name in found if name.startswith(within) and not name.startswith(SKIPPED) and (ROOT / name).exists()
    ]


def sampled(count: int, seed: int, within: tuple[str, ...]) -> list[Site]:
    """Operators and the two languages take turns: rare mistakes are tried as often as those that fit everywhere."""
    order = random.Random(seed)
    groups: dict[tuple[str, bool], list[Site]] = collections.defaultdict(list)
    for file in product_files(within):
        text = (ROOT / file).read_text(encoding="utf-8")
        for site in sites(file, text):
            groups[site.operator, file.endswith(".py")].append(site)
    for group in groups.values():
        order.shuffle(group)
    turns = list(groups)
    order.shuffle(turns)
    chosen: list[Site] = []
    while len(chosen) < count and any(groups.values()):
        chosen += [site for site in (groups[turn].pop() for turn in turns if groups[turn]) if is_mistake(site)]
    return chosen[:count]


def is_mistake(site: Site) -> bool:
    text = (ROOT / site.file).read_text(encoding="utf-8")
    if (site.file, *site.lines(text)[1:]) in EQUIVALENT:
        return False
    try:
        return not site.file.endswith(".py") or ast.parse(site.applied(text)) is not None
    except SyntaxError:
        return False


def tests_near(file: str) -> list[Test]:
    """The tests that name the file or, if there are none, its folder; those of units, if it is Python."""
    path = Path(file)
    if file.startswith("native/"):
        header, folder = path.with_suffix(".h").relative_to("native").as_posix(), f"{path.parent.name}/"
        names = {test: included(test) for test in NATIVE_TESTS.rglob("*_test.cc")}
        near = [test for test in names if header in names[test] or test.stem == f"{path.stem}_test"]
        near = near or [test for test in names if any(folder in name for name in names[test])]
        return [Test((test.stem,)) for test in sorted(near)]
    module = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    texts = {test: test.read_text(encoding="utf-8") for test in (ROOT / "tests" / "unit").rglob("test_*.py")}
    module, package = re.escape(module), re.escape(package)
    for pattern in (rf"{module}\b|from {package} import [^\n]*\b{name}\b", rf"(from|import) {package}\b"):
        near = [test for test, text in texts.items() if re.search(pattern, text) or test.stem == f"test_{path.stem}"]
        if near:
            break
    return [Test((test.relative_to(ROOT).as_posix(),)) for test in sorted(near)]


def included(path: Path) -> set[str]:
    """Return the headers that a native test includes, also by those of the tests."""
    found = set(re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8")))
    for name in list(found):
        header = next((folder / name for folder in (path.parent, NATIVE_TESTS) if (folder / name).exists()), None)
        if header is not None:
            found |= included(header)
    return found


def tests_wide(file: str) -> list[Test]:
    """Those that tools/affected names, but for tests on several hosts, and for all tests those of the core."""
    affected = runpy.run_path(str(ROOT / "tools" / "affected"))
    named = affected["tests_for"]([file])
    if named == affected["EVERYTHING"]:
        named = [affected["NATIVE"], *affected["CORE"]]
    core = [test for test in named if test in affected["CORE"]]
    others = [test for test in named if test not in (*core, affected["NATIVE"], *affected["CLUSTER"])]
    tests = [Test((*core, *QUICK))] if core else []
    if affected["NATIVE"] in named:
        tests = [*(Test((test.stem,)) for test in sorted(NATIVE_TESTS.rglob("*_test.cc"))), *tests]
    apart = [[test for test in others if part in test] for part in ("tests/frameworks/mxnet", "tests/schedulers")]
    rest = [test for test in others if not any(test in part for part in apart)]
    return tests + [Test(tuple(part)) for part in (*apart, rest) if part]
