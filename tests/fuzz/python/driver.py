# SPDX-License-Identifier: Apache-2.0
"""Runs one Python fuzz target, as tools/fuzz asks.

    driver.py fuzz TARGET EXTENT FOUND CORPUS      new inputs go to FOUND; ends with an error at the first crash
    driver.py cover TARGET FOUND CORPUS            prints JSON: file -> [lines that ran, lines there are]

EXTENT is libFuzzer's -max_total_time=SECONDS or -runs=INPUTS.

Guided by atheris where it is installed; where there is none for this Python, by chance: pieces of the corpus are
changed, cut and joined, which for messages of a few fields reaches the same lines. Coverage is measured either way.
"""

import ast
import importlib.util
import json
import math
import os
import random
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(*folders: str) -> list[bytes]:
    return [path.read_bytes() for folder in folders for path in sorted(Path(folder).iterdir())]


def fuzz(name: str, extent: str, found: str, corpus: str) -> None:
    try:
        import atheris
    except ImportError:
        by_chance(load(name), extent, found, corpus)
        return
    with atheris.instrument_imports(include=["horovod"]):
        target = load(name)
    options = [extent, f"-max_len={target.LONGEST}", "-rss_limit_mb=2048", "-timeout=10"]
    options.append(f"-seed={os.environ.get('FUZZ_SEED', '0')}")
    artifacts = f"-artifact_prefix={Path(found).parent}/crash-"
    atheris.Setup([sys.argv[0], *options, artifacts, "-print_final_stats=1", found, corpus], target.run)
    atheris.Fuzz()


def by_chance(target: ModuleType, extent: str, found: str, corpus: str) -> None:
    seed = int(os.environ.get("FUZZ_SEED", "0")) or int(time.time())
    dice = random.Random(seed)
    known = inputs(corpus)
    executions = 0
    option, amount = extent.split("=")
    seconds, runs = (math.inf, int(amount)) if option == "-runs" else (int(amount), math.inf)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and executions < runs:
        data = changed(dice, known)[: target.LONGEST]
        try:
            target.run(data)
        except Exception:
            Path(found, f"crash-{executions}").write_bytes(data)
            print(f"seed {seed}, input {data!r}")
            raise
        if executions % 100 == 0:
            Path(found, str(executions)).write_bytes(data)
        executions += 1
    print(f"stat::number_of_executed_units: {executions}")


def changed(dice: random.Random, known: list[bytes]) -> bytes:
    data = bytearray(dice.choice(known))
    for _ in range(dice.randint(0, 4)):
        at = dice.randint(0, len(data))
        other = dice.choice(known)
        start = dice.randint(0, len(other))
        match dice.randint(0, 3):
            case 0:
                data[at : at + 1] = bytes([dice.randint(0, 255)])
            case 1:
                del data[at : at + dice.randint(1, 8)]
            case 2:
                data[at:at] = other[start : start + dice.randint(1, 40)]
            case _:
                del data[at:]
    return bytes(data)


def cover(name: str, *folders: str) -> None:
    import coverage

    measuring = coverage.Coverage(data_file=None, source_pkgs=["horovod"], messages=False)
    measuring.start()
    target = load(name)
    for data in inputs(*folders):
        target.run(data)
    measuring.stop()
    lines = {}
    for file, parts in target.MEASURED.items():
        path = ROOT / "src" / file
        _, statements, _, missing, _ = measuring.analysis2(str(path))
        wanted = lines_of(path, parts)
        there = wanted & set(statements)
        lines[file] = [len(there - set(missing)), len(there)]
        print(f"{file}: not run: {sorted(there & set(missing))}", file=sys.stderr)
    print(json.dumps(lines))


def lines_of(path: Path, parts: list[str]) -> set[int]:
    """The lines inside the functions and classes of these names; `Class.method` names one method."""
    found: set[int] = set()
    missing = set(parts)

    def walk(body: list[Any], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                name = prefix + node.name
                if name in parts:
                    missing.discard(name)
                    # The head ran when the module was imported.
                    found.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
                elif isinstance(node, ast.ClassDef):
                    walk(node.body, name + ".")

    walk(ast.parse(path.read_text()).body, "")
    if missing:
        raise SystemExit(f"{path} has no {', '.join(sorted(missing))}: mend MEASURED of the fuzz target")
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    command, name, *rest = sys.argv[1:]
    if command == "fuzz":
        try:
            fuzz(name, rest[0], rest[1], rest[2])
        except Exception:
            traceback.print_exc()
            sys.exit(1)
    else:
        cover(name, *rest)
