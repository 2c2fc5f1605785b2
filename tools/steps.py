# SPDX-License-Identifier: Apache-2.0
"""Steps, each a process with its own limit, and the record of them: for tools/cpu/check and tools/gpu/check."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = "{result}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=lambda text: Path(text).resolve(), metavar="OUTDIR")
    parser.add_argument("--step", action="append", metavar="NAME", help="this step alone; may be given several times")
    parser.add_argument("--commit", default="", help="of a copy that git knows nothing of")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of each step, in place of its own")


@dataclasses.dataclass(frozen=True)
class Step:
    """One child process. `command`: of Python, or with `needs` a whole one. It writes its result to the file that the
    word RESULT in it, or HVD_CHECK_RESULT, names."""

    name: str
    limit_s: float
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    needs: str = ""  # a program without which it is not run
    side_by_side: bool = False  # its ranks must not take turns on a GPU that they share


class Record:
    """OUT/record.json, whole after each step."""

    def __init__(self, folder: Path, commit: str, facts: dict[str, Any]) -> None:
        self.path = folder / "record.json"
        self.content: dict[str, Any] = {
            **facts,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
            "commit": commit or commit_here(),
            "command": " ".join(sys.argv),
            "began": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "steps": [],
        }

    def add(self, step: Step, outcome: str, seconds: float = 0.0, result: Any = None) -> None:
        taken = {"name": step.name, "outcome": outcome, "seconds": round(seconds, 1), "command": list(step.command)}
        self.content["steps"].append({**taken, "result": result})
        self.write()
        print(f"{step.name}: {outcome} ({seconds:.1f} s)", flush=True)

    def write(self) -> None:
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(self.content, indent=1) + "\n")
        written.rename(self.path)


def commit_here() -> str:
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def ended(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for the process. False if it did not end by itself: then it gets SIGTERM, to end its ranks, or SIGKILL."""
    try:
        process.wait(timeout=limit_s)
        return True
    except subprocess.TimeoutExpired:
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            try:
                process.wait(timeout=10)
                break
            except subprocess.TimeoutExpired:
                continue
        return False


def run(step: Step, folder: Path, record: Record, environment: Mapping[str, str], python: str = sys.executable) -> bool:
    """Run the step and record its outcome. True if it passed or could not run here."""
    if step.needs and shutil.which(step.needs) is None:
        record.add(step, f"not run: there is no {step.needs}")
        return True
    result = folder / f"result-{step.name}.json"
    result.unlink(missing_ok=True)
    child = {**os.environ, **environment, **dict(step.environment), "HVD_CHECK_RESULT": str(result)}
    command = [str(result) if word == RESULT else word for word in step.command]
    command = command if step.needs else [python, *command]
    began = time.monotonic()
    with open(folder / "log", "ab") as log:
        log.write(f"== {step.name}\n".encode())
        log.flush()
        process = subprocess.Popen(command, env=child, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        in_time = ended(process, step.limit_s)
    content = json.loads(result.read_text()) if result.exists() else None
    result.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    if not in_time:
        record.add(step, f"failed: ended after its limit of {step.limit_s:g} s", seconds, content)
    elif process.returncode != 0:
        record.add(step, f"failed: exit code {process.returncode}, see the log", seconds, content)
    elif isinstance(content, dict) and "not run" in content:
        record.add(step, f"not run: {content['not run']}", seconds)
        return True
    else:
        record.add(step, "passed", seconds, content)
        return True
    return False
