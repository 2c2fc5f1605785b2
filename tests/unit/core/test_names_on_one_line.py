# SPDX-License-Identifier: Apache-2.0
"""Names of files, keys, flags and variables leave the lines of errors whole: a table of what a user can give."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from horovod.bench.__main__ import parser as bench
from horovod.core.wording import tell
from horovod.elastic.drive.discovery import DiscoveryError, HostDiscoveryScript
from horovod.launcher import cli
from horovod.launcher.job import report as job_report
from horovod.launcher.job.redaction import Redaction
from horovod.launcher.job.spec import Job
from horovod.settings import Settings
from horovod.simulate.__main__ import main as simulate
from horovod.trace.__main__ import main as trace
from horovod.world import report
from horovod.world.communicators import check as check_transport
from horovod.world.launchers.folder import OfferFile
from horovod.world.secret import read_secret

NAME = "x\nRED\x1b[2J\udcff"
NOWHERE = f"/dev/null/{NAME}"
OURS = re.compile(
    r"  |hint: |horovodrun: |horovod: |horovod\.\w+: |usage: |(horovodrun|python -m horovod\.\w+).*: error: "
)


def run(*flags: str, command: str = "true") -> None:
    cli.main(["-np", "1", *flags, command])


def given(flag: str, content: str) -> Callable[[Path], object]:
    """A file of this name and content is given with the flag."""

    def act(folder: Path) -> None:
        (folder / NAME).write_bytes(content.encode())
        run(flag, str(folder / NAME))

    return act


def command(content: str | None, mode: int) -> Callable[[Path], object]:
    """A command of this name; None: a folder."""

    def act(folder: Path) -> None:
        path = folder / f"{NAME}.py"
        path.mkdir() if content is None else path.write_text(content)
        path.chmod(mode)
        run(command=str(path))

    return act


def used_report(folder: Path) -> None:
    (folder / NAME).mkdir()
    (folder / NAME / "job.json").touch()
    run("--report", str(folder / NAME))


def in_a_variable(variable: str, value: str = NAME) -> Callable[[Path], object]:
    def act(_: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(variable, value)
            patched.setattr(cli.supervise, "run", lambda *_: 0)
            run()

    return act


def read_timeline(folder: Path) -> None:
    (folder / NAME).write_text("no timeline")
    trace(["summary", str(folder / NAME)])


def read_link(folder: Path) -> None:
    (folder / NAME).write_text(json.dumps({"format": "horovod-link", "version": 1, NAME: 1}).replace("\\udcff", ""))
    simulate(["run", "--hosts", "2", "--link", str(folder / NAME)])


ENTRIES: dict[str, Callable[[Path], object]] = {
    "--hostfile": lambda _: run("--hostfile", NOWHERE),
    "a line of a hostfile": given("--hostfile", "a b\x1b[2J c\rRED\n"),
    "a hostfile without a host": given("--hostfile", "# RED"),
    "-H": lambda _: run("-H", f"a,,{NAME}"),
    "a user's host": lambda _: run("-H", "me\x85RED@host:x\x1b[2J"),
    "--config-file": lambda _: run("--config-file", NOWHERE),
    "a key of a configuration": given("--config-file", '"x\\nRED\\e[2J": 1'),
    "a value of a configuration": given("--config-file", 'timeline: {filename: ["x\\nRED\\e[2J"]}'),
    "a configuration that is not YAML": given("--config-file", "a: 'b\n\nRED\n"),
    "--timeline-filename": lambda _: run("--timeline-filename", NOWHERE),
    "--output-filename": lambda _: run("--output-filename", NOWHERE),
    "--report": lambda _: run("--report", NOWHERE),
    "a report that is there": used_report,
    "--profile": lambda _: run("--profile", NOWHERE),
    "--ssh-identity-file": lambda _: run("--ssh-identity-file", NOWHERE),
    "a file given twice": lambda _: run("--profile", NAME, "--timeline-filename", NAME),
    "--drill": lambda _: run("--drill", command=NAME),
    "an unknown flag": lambda _: run(f"--{NAME}"),
    "a value for a switch": lambda _: run(f"--verbose={NAME}"),
    "a flag behind the command": lambda _: cli.main([NAME, "-np", "2"]),
    "a command that is not there": lambda _: run(command=NAME),
    "a command line in one word": lambda _: run(command=f"{NAME} --x"),
    "a command that is a folder": command(None, 0o700),
    "a command that cannot be executed": command("", 0o600),
    "a command without its interpreter": command("#!/none RED", 0o700),
    "a command of Windows": command("#!/bin/sh\r\n", 0o700),
    "no such job": lambda _: cli.main(["stacks", NAME]),
    "a flag of top": lambda _: cli.main(["top", f"--{NAME}"]),
    "a controller": in_a_variable("HOROVOD_CONTROLLER"),
    "a variable almost named like a setting": in_a_variable("HOROVOD_TIMELINE_MARK_CYCLES\nRED"),
    "an allocation": in_a_variable("PBS_NODEFILE", NOWHERE),
    "a transport": lambda _: check_transport(NAME),
    "a discovery script": lambda _: HostDiscoveryScript(NOWHERE, 1).find_available_hosts_and_slots(),
    "a secret's file": lambda _: read_secret(NOWHERE),
    "a rendezvous' folder": lambda _: OfferFile(Path(NOWHERE), "job"),
    "a part of a report": lambda _: report.begin(Settings(report=NOWHERE)),
    "a timeline": lambda _: trace(["summary", NOWHERE]),
    "a file that is not a timeline": read_timeline,
    "an argument of trace": lambda _: trace(["summary", "a", f"--{NAME}"]),
    "--link": lambda _: simulate(["run", "--hosts", "2", "--link", NOWHERE]),
    "a field of a link": read_link,
    "a profile": lambda _: simulate(["forecast", "--link", "10gbit-tcp", NOWHERE]),
    "--fault": lambda _: simulate(["run", "--hosts", "2", "--fault", NAME]),
    "an argument of simulate": lambda _: simulate(["published", NAME]),
    "an argument of bench": lambda _: bench().parse_args(["link", f"--{NAME}"]),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_name_does_not_break_a_line(entry: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        ENTRIES[entry](tmp_path)
    except SystemExit:
        pass
    except (ValueError, DiscoveryError) as error:  # for the user's own script
        tell(f"horovod: {error}")
    said = capfd.readouterr().err
    assert "RED" in said
    assert not re.search("[\x1b\x85\udc80-\udcff]", said)
    assert [line for line in said.splitlines() if not OURS.match(line) and not line.startswith("more: ")] == []


def test_a_report_of_odd_folders_is_written_and_its_lines_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", NAME)
    job = cli.check(["-np", "1", "--timeline-filename", str(tmp_path / NAME), "true"])
    assert isinstance(job, Job)
    folder = tmp_path / f"report {NAME}"
    folder.mkdir()
    (folder / f"timeline.{NAME}.json").touch()
    odd = dataclasses.replace(job, directory=NAME)
    job_report._write(folder, job_report._Run(odd, ["-np", NAME], "now", 1.0, 1, f"the end\udcff {NAME}"), Redaction())
    page = (folder / "report.txt").read_text()
    in_the_end = 1  # which has lines of its own
    assert page.count("RED") == 7 and page.count("\nRED") == in_the_end
    assert not re.search("[\x1b\udc80-\udcff]", page)
    said = capfd.readouterr().err
    assert "horovodrun: the report is in" in said and "\nRED" not in said
