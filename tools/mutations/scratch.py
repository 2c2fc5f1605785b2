# SPDX-License-Identifier: Apache-2.0
"""A copy of the tracked files, in which mutations are built and tested. Each starts from the unbroken build."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

from .row import StaleError, Test

ROOT = Path(__file__).resolve().parents[2]
UNBROKEN_LIMIT_S = 1800.0  # beside other work
# More, if the unbroken copy needs long for this test: a broken one that is only slow must not pass for one that hangs.
MUTATION_LIMIT_S = 90.0
TIMES_UNBROKEN = 4
BUILD_LIMIT_S = 900.0
# The library says what it was built from: with any change in Python this test would fail.
OF_BUILD = "tests/unit/core/test_native_layout.py::test_the_build_is_told_apart_by_its_sources"
LIBRARIES = ("horovod", "horovod_tensorflow", "horovod_calls")  # what the Python tests load


class BuildError(Exception):
    """The copy does not compile."""


def processes_of_launcher() -> types.ModuleType:
    """Of this tree. Not at import: others read the tables, where this package is not installed, or another one is."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        return importlib.import_module("horovod.launcher.host.processes")
    finally:
        sys.path.pop(0)


def end_descendants() -> None:
    """In whatever session they are: a job that a broken launcher leaves behind would disturb all that follows."""
    processes = processes_of_launcher()
    while processes.signal_descendants(os.getpid(), signal.SIGKILL):
        time.sleep(0.01)


def run(command: list[str], cwd: Path, limit_s: float, environment: dict[str, str]) -> tuple[str, str]:
    """('ok' or what went wrong, the output). At its limit a command is ended; so is whatever it leaves behind."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end_descendants()
        return f"hung, ended after {limit_s:.0f} s", process.communicate()[0]
    finally:
        end_descendants()
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}", output
    return ("ok" if process.returncode == 0 else f"failed with exit code {process.returncode}"), output


def mirror(source: Path, target: Path) -> None:
    """Times of files included, by which ninja would otherwise compile again what the last mutation had changed."""
    names = {path.relative_to(source): path.stat() for path in source.rglob("*") if path.is_file()}
    for path in [path for path in target.rglob("*") if path.is_file() and path.relative_to(target) not in names]:
        path.unlink()
    for name, wanted in names.items():
        there = target / name
        if not there.exists() or there.stat().st_mtime_ns != wanted.st_mtime_ns:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, there)


class Scratch:
    """Owns its folder: mutations build in build/native, and build/unbroken is that without any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[Test, float] = {}  # of each test in the unbroken copy
        tools = [str(ROOT / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join(tools),
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file that changes twice in a second must not be taken from a cache
            "OMP_NUM_THREADS": "1",
        }
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for words in (["init", "-q"], ["add", "."]):  # some tests ask git for the tracked files
            subprocess.run(["git", *words], cwd=folder, check=True)

    def build(self, tests: list[Test], sanitizer: str = "") -> None:
        build = self.build_folder(sanitizer)
        targets = {test.arguments[0] for test in tests if test.native}
        targets |= set() if all(test.native for test in tests) else set(LIBRARIES)
        commands = [["cmake", "--build", str(build), "--target", *sorted(targets)]]
        if not build.exists():
            configure = ["cmake", "-S", ".", "-B", str(build), "-G", "Ninja", "-DHVD_BUILD_TESTS=ON"]
            if sanitizer:
                # All of the library is compiled for one test. Without -O that takes a fifth of the time.
                configure += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DHVD_SANITIZE={sanitizer}"]
                configure += ["-DHVD_SANITIZE_OPTIONS=-O0"]
            commands.insert(0, configure)
        for command in commands:
            outcome, output = run(command, self.folder, BUILD_LIMIT_S, self.environment)
            if outcome != "ok":
                raise BuildError(f"the build {outcome}:\n{output[-4000:]}")
        if not sanitizer:
            self.install()

    def build_folder(self, sanitizer: str = "") -> Path:
        """As deep as that of `make`: a compiler's cache finds what that has compiled."""
        return self.folder / "build" / (sanitizer.replace(",", "-") or "native")

    def install(self) -> None:
        installed = self.folder / "src" / "horovod" / "lib"
        installed.mkdir(exist_ok=True)
        for library in self.build_folder().glob("libhorovod*.so"):
            shutil.copy2(library, installed)
        for extension in self.build_folder().glob("*.abi3.so"):
            shutil.copy2(extension, self.folder / "src" / "horovod" / "core")

    def check_unbroken(self, tests: list[Test]) -> None:
        """Each test that has not been run yet must pass in the copy as it is."""
        new = [test for test in tests if test not in self.seconds]
        if not new:
            return
        self.build(new)
        mirror(self.build_folder(), self.folder / "build" / "unbroken")
        for test in new:
            start = time.monotonic()
            outcome, output = self.test(test, UNBROKEN_LIMIT_S)
            seconds = time.monotonic() - start
            print(f"  unbroken: {test}: {outcome} ({seconds:.0f} s)", flush=True)
            if outcome != "ok":  # and not kept: it would catch every mutation
                raise StaleError(f"without any mutation `{test}` {outcome}:\n{output[-4000:]}")
            self.seconds[test] = seconds

    @contextlib.contextmanager
    def broken(self, changed: dict[str, str], tests: list[Test], sanitizer: str = "") -> Iterator[None]:
        """Files with other text, built for these tests. The copy is as before afterwards."""
        originals = [(self.folder / file, (self.folder / file).stat()) for file in changed]
        compiled = any(file.startswith("native/") for file in changed)
        try:
            for file, text in changed.items():
                (self.folder / file).write_text(text, encoding="utf-8")
            if compiled:
                self.build(tests, sanitizer)
            yield
        finally:
            for path, times in originals:
                shutil.copy(ROOT / path.relative_to(self.folder), path)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if sanitizer:
                shutil.rmtree(self.build_folder(sanitizer), ignore_errors=True)
            elif compiled:
                mirror(self.folder / "build" / "unbroken", self.build_folder())
                self.install()

    def test(self, test: Test, limit_s: float = 0.0, sanitizer: str = "") -> tuple[str, str]:
        """('ok' or how it failed, the output). The default limit suits a mutation."""
        limit_s = limit_s or max(MUTATION_LIMIT_S, TIMES_UNBROKEN * self.seconds[test])
        thorough = {**self.environment, "THOROUGH": "1"}
        if test.native:
            program, *names = test.arguments
            # Of every day a model has few interleavings.
            environment = thorough if names and program.endswith("_model_test") else self.environment
            return run([str(self.build_folder(sanitizer) / program), *names], self.folder, limit_s, environment)
        interpreter = ROOT / test.environment / "bin" / "python" if test.environment else Path(sys.executable)
        if not interpreter.exists():
            raise StaleError(f"`{test}` needs {test.environment}: make {test.environment}/created")
        command = [str(interpreter), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--deselect", OF_BUILD]
        command += test.arguments
        outcome, output = run(command, self.folder, limit_s, self.environment)
        if outcome.endswith("code 5"):  # nothing was collected: a test of `make check-all`
            outcome, output = run(command, self.folder, limit_s, thorough)
        if outcome == "ok" and " passed" not in output:
            outcome = "ran nothing"
        return outcome, output
