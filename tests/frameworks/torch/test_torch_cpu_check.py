# SPDX-License-Identifier: Apache-2.0
"""tools/cpu/check, which is for machines with many cores: its own logic, in small."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support import started

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def check(folder: Path, *options: str, root: Path = ROOT) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Its exit code, the record, and the outcomes of its steps by name."""
    command = [sys.executable, str(root / "tools" / "cpu" / "check"), str(folder), "--quick", "--cores", "2", *options]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    record = json.loads((folder / "record.json").read_text())
    outcomes = {step["name"]: step["outcome"] for step in record["steps"]}
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == list(outcomes), done
    return done.returncode, record, outcomes


def lines_of(picture: Path) -> list[tuple[str | None, int]]:
    """By line, the text beside it, and the number of its points."""
    tree = ElementTree.fromstring(picture.read_text())
    assert not any("href" in name for element in tree.iter() for name in element.attrib)
    drawn = list(tree.iter())
    lines = [number for number, element in enumerate(drawn) if element.tag == f"{SVG}polyline"]
    return [(drawn[number + 1].text, len(drawn[number].attrib["points"].split())) for number in lines]


def wheel_of_installed(folder: Path) -> Path:
    """The Horovod that is tested, as a wheel once more."""
    wheel = folder / "hvd-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in importlib.metadata.files("hvd") or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(file.locate(), str(file))
    return wheel


@pytest.mark.thorough
def test_a_wheel_is_installed_checked_timed_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, record, outcomes = check(out, "--wheel", str(wheel_of_installed(tmp_path)))
    assert code == 0, (out / "log").read_text()
    assert outcomes == dict.fromkeys(["install", "facts", "values-np2", "bandwidth", "gloo-2x1"], "passed")
    results = {step["name"]: step["result"] for step in record["steps"]}
    assert results["facts"]["folders"][0].startswith(str(out / "venv"))
    assert results["values-np2"]["wrong"] == [] and len(results["values-np2"]["bits"]) == 4
    assert [row["threads"] for row in results["bandwidth"]["rows"]] == [1, 2]
    assert [len(row["seconds"]["gloo"]) for row in results["gloo-2x1"]["rows"]] == [2, 2]
    assert {"machine", "commit", "command"} <= record.keys()
    small, large = record["summary"]["2x1"]
    assert (small["bytes"], large["bytes"]) == (4, 64 << 10) and small["us"].keys() == {"Horovod", "gloo"}
    copied = max(row["copy_gb_s"] for row in results["bandwidth"]["rows"])
    in_a_second = 4 * (64 << 10) / (large["us"]["Horovod"] * 1e3)  # two ranks read and write: GB
    assert large["of_stream"] == pytest.approx(in_a_second / copied, rel=0.01, abs=0.002)
    assert sorted(lines_of(out / "picture.svg")) == [("Horovod", 2), ("gloo", 2)]


@pytest.mark.thorough
def test_a_wrong_value_is_told_and_fails_the_check(tmp_path: Path) -> None:
    """A reference that is wrong by one."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("records"))
    values = tmp_path / "tools" / "values.py"
    assert values.read_text().count("inputs.sum(0)),") == 1
    values.write_text(values.read_text().replace("inputs.sum(0)),", "inputs.sum(0) + 1),"))
    code, record, outcomes = check(tmp_path / "out", "--step", "values-np2", root=tmp_path)
    assert code == 1 and outcomes == {"facts": "passed", "values-np2": "failed: exit code 1, see the log"}
    wrong = record["steps"][-1]["result"]["wrong"]
    assert "rank 1: Sum float16 1: expected [2.], got [1.] in (1,)" in wrong
    assert all(" Sum " in sentence for sentence in wrong)


@pytest.mark.thorough
def test_each_mpi_is_a_line_of_its_own(tmp_path: Path) -> None:
    pythons = [started.mpi(name)[1] for name in ("openmpi", "mpich")]
    steps = [word for step in ("openmpi-2x1", "mpich-2x1") for word in ("--step", step)]
    code, record, outcomes = check(tmp_path, *steps, *[word for python in pythons for word in ("--mpi-python", python)])
    assert code == 0 and outcomes == dict.fromkeys(["facts", "openmpi-2x1", "mpich-2x1"], "passed")
    assert [row["ratios"].keys() for row in record["summary"]["2x1"]] == [{"openmpi", "mpich"}] * 2
    assert sorted(lines_of(tmp_path / "picture.svg")) == [("Horovod", 2), ("mpich", 2), ("openmpi", 2)]
