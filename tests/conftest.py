# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests, the stacks of every rank when a test runs into its time limit, and what was not run.

A test that needs what this machine lacks is skipped with a reason; the end of the run lists all reasons. REQUIRE_ALL=1,
as continuous integration sets it, makes any of them a failure, but for reasons that begin with "hardware:", which no
installation can mend.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator

import hypothesis
import pytest
from support import processor_time
from support.extent import THOROUGH, repeats
from support.fork_server import ForkServer
from support.world import WorldPool, living

STACKS_BEFORE_LIMIT_S = 5.0
REQUIRE_ALL = os.environ.get("REQUIRE_ALL") == "1"
# print_blob: what failed by chance can be run again.
hypothesis.settings.register_profile(
    "horovod",
    max_examples=300 if THOROUGH else 40,
    print_blob=True,
    derandomize=not THOROUGH,  # the same examples in each run, unless it is to hunt
    deadline=None,  # the machine may be busy
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("horovod")
not_run: list[tuple[str, str]] = []  # (test, reason)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(processor_time.plugin)
    # A shell has what it starts in the background ignore these, which jobs would inherit, and honour.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before the tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if repeats(item):
            item.add_marker("check")
    if THOROUGH:
        return
    later = [item for item in items if item.get_closest_marker("thorough")]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]


def pytest_collection_finish(session: pytest.Session) -> None:
    of_core = ("tests/processes/", "tests/cluster/")
    ForkServer.with_frameworks = not all(item.nodeid.startswith(of_core) for item in session.items)


@pytest.fixture(scope="session")
def worlds() -> Iterator[WorldPool]:
    """Worlds that many tests share: worlds(2, {"HOROVOD_TRANSPORT": "tcp"}).run(function)."""
    pool = WorldPool()
    yield pool
    pool.close()


def _show_stacks(name: str, stream: int) -> None:
    for world in list(living):
        with open(stream, "w", closefd=False) as file:
            file.write(f"\n=== {name} is about to run into its time limit\n{world.stacks()}\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # pytest-timeout ends the test and shows this process' stacks; the ranks' must be taken while they still run.
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout") or 0)
    if limit_s <= STACKS_BEFORE_LIMIT_S:
        yield
        return
    timer = threading.Timer(limit_s - STACKS_BEFORE_LIMIT_S, _show_stacks, (item.nodeid, sys.__stderr__.fileno()))
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        not_run.append((report.nodeid, report.longrepr[2].removeprefix("Skipped: ").removeprefix("not run: ")))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    lacking = [reason for _, reason in not_run if not reason.startswith("hardware:")]
    if REQUIRE_ALL and lacking and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: dict[str, list[str]] = {}
    for test, reason in not_run:
        reasons.setdefault(reason, []).append(test)
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"not run: {reason} ({len(tests)} tests, for example {tests[0]})")
    if REQUIRE_ALL and any(not reason.startswith("hardware:") for reason in reasons):
        terminalreporter.write_line("REQUIRE_ALL=1: tests that were not run are a failure")
