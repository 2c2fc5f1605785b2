# SPDX-License-Identifier: Apache-2.0
"""Links and files that another user has put where a job writes: none is followed, changed or read."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from support.other_users import NOT_ROOT, as_user, folder_of_all, links_protected

import horovod
from horovod.bench import record
from horovod.core import native
from horovod.core.context import Context
from horovod.core.temporary_files import memory_file
from horovod.gradients.recording import Recorder, WallClock
from horovod.launcher.function import run_function
from horovod.launcher.job.output import Outputs
from horovod.launcher.job.redaction import Redaction
from horovod.launcher.options import checks
from horovod.launcher.options.usage import UsageError
from horovod.metrics.exporter import Exporter
from horovod.simulate.__main__ import main as simulate
from horovod.spark.common import access
from horovod.trace.__main__ import main as trace
from horovod.world import job_files, report
from horovod.world.files.places import ForeignPathError
from horovod.world.files.private import own_folder, own_folders
from horovod.world.files.whole import open_in_place, replacement, write_whole
from horovod.world.launchers.folder import OfferFile

OWNER, OTHER = 65534, 64321
Write = Callable[[str], object]
FORECAST = ["forecast", "--model", "resnet50", "--step-ms", "294", "--link", "10gbit-tcp"]
EVENTS = [
    {"name": "horovod", "ph": "M", "pid": 0, "args": {"session": "a 1", "start_monotonic_us": 0}},
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0"}},
    {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "a"}},
    {"name": "ALLREDUCE", "ph": "B", "pid": 0, "tid": 1, "ts": 1},
    {"name": "ALLREDUCE", "ph": "E", "pid": 0, "tid": 1, "ts": 2},
]


class Metrics(Exporter):
    def _text(self, in_open_metrics: bool) -> str:
        return "metrics"


def metrics(path: str) -> None:
    """As the exporter's thread does."""
    exporter = Metrics.__new__(Metrics)
    exporter._path, exporter._warned, exporter._place = path, set(), types.SimpleNamespace(rank=0)  # type: ignore[assignment]
    exporter._write()


def profile(path: str) -> None:
    recorder = Recorder(path, "job", "cpu", 1, lambda _: ("float32", 4, False), WallClock())
    for _ in range(200):
        recorder.zeroed()
        recorder.started("a", None)
        recorder.backward_is_over()
        recorder.reduced()
        recorder.updated()


def timeline(path: str) -> None:
    """As a context opens it, with a core that writes a word."""

    def start(pointer: object, file: int, *_: object) -> int:
        os.pwrite(file, b"timeline", 0)
        return native.OK

    context = types.SimpleNamespace(_timelines=0, _session="", pointer=None, rank=0)
    context.library = types.SimpleNamespace(hvd_start_timeline=start)
    Context.start_timeline(context, path, False)  # type: ignore[arg-type]


def refused(act: Callable[[], object]) -> None:
    try:
        act()
    except UsageError as error:
        print(error)


def outputs(folder: str) -> None:
    made = Outputs(1, {"stdout": io.BytesIO(), "stderr": io.BytesIO()}, Path(folder), warn=print)
    made.write(0, "stdout", "text")
    made.close()


def shared_files(folder: str) -> None:
    os.environ["HOROVOD_RENDEZVOUS_DIRECTORY"] = folder
    with contextlib.ExitStack() as stack:
        run_function._shared_files(stack, ["task"])


def store_file(path: str) -> None:
    access.write_file(fsspec.filesystem("file"), b"content", path)


def weights(path: str) -> None:
    """As caffe/files.py does it, which needs protobuf."""
    with replacement(path) as partial:
        Path(partial).write_text("weights")


def timeline_file() -> str:
    """Of one rank and one tensor; it stays open, so any user of this process can read it."""
    name = memory_file("timeline")
    os.write(name, b"[\n" + b",\n".join(json.dumps(event).encode() for event in EVENTS) + b"\n]\n")
    return f"/proc/self/fd/{name}"


# What writes a file at a path that the user gives, by the module that opens it.
OF_FILES: dict[str, Write] = {
    "bench/record.py": lambda path: record.write_record(path, ["bench"], {}),
    "caffe/files.py": weights,
    "core/context.py": timeline,
    "gradients/recording.py": profile,
    "launcher/job/redaction.py": lambda path: Redaction("swordfish").file(Path(path)),
    "launcher/options/checks.py": lambda path: refused(lambda: checks.check_timeline(path)),
    "metrics/exporter.py": metrics,
    "simulate/__main__.py": lambda path: simulate([*FORECAST, "--html", path]),
    "spark/common/access.py": store_file,
    "trace/__main__.py": lambda path: trace(["summary", timeline_file(), "--html", path]),
}
# What writes into a folder that the user gives.
OF_FOLDERS: dict[str, Write] = {
    "launcher/function/run_function.py": shared_files,
    "launcher/job/output.py": outputs,
    "launcher/options/checks.py": lambda folder: refused(lambda: checks.report_directory(folder)),
    "trace/export.py": lambda folder: trace(["export", timeline_file(), folder]),
    "world/launchers/folder.py": lambda folder: OfferFile(Path(folder), "job"),
    "world/report.py": lambda folder: report.end(folder, 0, 1, {}),
}
# Calls of the same functions with the path, in what takes long to start or to import.
AS_OTHERS = {"bench/link.py", "caffe/run_intelcaffe.py", "launcher/job/report.py", "ray/runner.py"}
AS_OTHERS |= {"tensorflow/data/compute_service.py"}
# These take a folder of their own in /tmp, tried below.
OF_US = {"data/arrow_cache.py", "world/job_files.py"}
WRITES_NOTHING = {"launcher/options/checks.py"}
MINE = "mine, swordfish\n"


@pytest.fixture
def shared() -> Iterator[Path]:
    with folder_of_all() as folder:
        yield folder


def of(user: int, path: Path, content: str = MINE, mode: int = 0o600) -> Path:
    path.write_text(content)
    path.chmod(mode)
    os.chown(path, user, user)
    return path


def link_of(user: int, path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.lchown(path, user, user)
    return path


def home_of(user: int, shared: Path) -> Path:
    home = shared / f"home-{user}"
    home.mkdir()
    os.chown(home, user, user)
    return home


@pytest.mark.parametrize("writer", OF_FILES)
@pytest.mark.parametrize("protected", ["0", "1"])
def test_a_link_of_another_user_in_a_folder_of_all_is_not_followed(shared: Path, writer: str, protected: str) -> None:
    need_root()
    OF_FILES[writer](str(of(0, shared / "first")))  # imports what it needs
    notes = of(OWNER, home_of(OWNER, shared) / "notes")
    link = link_of(OTHER, shared / "page", notes)
    with links_protected(protected):
        said = as_user(OWNER, lambda: OF_FILES[writer](str(link)))
    assert (notes.read_text(), notes.stat().st_mode & 0o777, link.is_symlink()) == (MINE, 0o600, True)
    assert f"the link {link} belongs to user {OTHER}" in said and "give the path that it leads to" in said


@pytest.mark.parametrize("writer", OF_FILES)
def test_a_file_of_another_user_in_a_folder_of_all_is_not_written(shared: Path, writer: str) -> None:
    need_root()
    OF_FILES[writer](str(of(0, shared / "first")))
    theirs = of(OTHER, shared / "page", mode=0o666)
    said = as_user(OWNER, lambda: OF_FILES[writer](str(theirs)))
    assert (theirs.read_text(), theirs.stat().st_uid, theirs.stat().st_mode & 0o777) == (MINE, OTHER, 0o666)
    assert f"{theirs} belongs to user {OTHER}" in said and "in a folder of your own" in said


@pytest.mark.parametrize("writer", OF_FILES)
def test_links_of_ones_own_are_followed_and_modes_stay(shared: Path, writer: str) -> None:
    user = os.geteuid() if NOT_ROOT else OWNER
    OF_FILES[writer](str(of(os.geteuid(), shared / "first")))
    notes = of(user, home_of(user, shared) / "notes", mode=0o640)
    link_of(user, shared / "folder", notes.parent)
    link = link_of(user, shared / "page", shared / "folder" / "notes")
    said = as_user(user, lambda: OF_FILES[writer](str(link)))
    assert link.is_symlink() and notes.stat().st_uid == user, said
    assert notes.stat().st_mode & 0o777 == 0o640
    assert (notes.read_text() == MINE) == (writer in WRITES_NOTHING), said
    assert [path.name for path in notes.parent.iterdir()] == ["notes"]


@pytest.mark.parametrize("writer", OF_FOLDERS)
@pytest.mark.parametrize("protected", ["0", "1"])
def test_a_folder_behind_a_link_of_another_user_gets_no_file(shared: Path, writer: str, protected: str) -> None:
    need_root()
    OF_FOLDERS[writer](str(shared / "first"))
    home = home_of(OWNER, shared)
    link = link_of(OTHER, shared / "results", home)
    with links_protected(protected):
        said = as_user(OWNER, lambda: OF_FOLDERS[writer](str(link)))
    assert list(home.iterdir()) == [] and f"the link {link} belongs to user {OTHER}" in said


@pytest.mark.parametrize("writer", OF_FOLDERS)
def test_a_folder_behind_a_link_of_ones_own_gets_files(shared: Path, writer: str) -> None:
    user = os.geteuid() if NOT_ROOT else OWNER
    OF_FOLDERS[writer](str(shared / "first"))
    home = home_of(user, shared)
    said = as_user(user, lambda: OF_FOLDERS[writer](str(link_of(user, shared / "results", home))))
    is_empty = writer in WRITES_NOTHING | {"launcher/function/run_function.py", "world/launchers/folder.py"}
    assert (list(home.iterdir()) == []) == is_empty and "Error" not in said, said


def test_all_that_writes_is_tried_here() -> None:
    package = Path(horovod.__file__).parent
    opens = re.compile(r"^from horovod\.world\.files\.\w+ import", re.MULTILINE)
    users = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if opens.search(path.read_text())}
    users = {user for user in users if not user.startswith("world/files/")}
    assert users == {*OF_FILES, *OF_FOLDERS, *AS_OTHERS, *OF_US}


def test_in_a_folder_of_all_a_file_with_other_names_is_not_written_in_place(shared: Path) -> None:
    notes = of(os.geteuid(), shared / "notes")
    os.link(notes, shared / "page")
    with pytest.raises(ForeignPathError, match="has other names"), open(shared / "page", "w", opener=open_in_place):
        pass
    assert notes.read_text() == MINE


def test_an_admins_link_on_the_way_is_followed_if_nobody_else_could_have_made_it(shared: Path) -> None:
    need_root()
    shared.chmod(0o755)
    theirs = home_of(OTHER, shared)
    (theirs / "v2").mkdir()
    (theirs / "v2").chmod(0o777)
    link_of(OTHER, theirs / "current", theirs / "v2")
    assert as_user(OWNER, lambda: write_whole(theirs / "current" / "page", "x")) == ""
    theirs.chmod(0o777)
    said = as_user(OWNER, lambda: write_whole(theirs / "current" / "page", "y"))
    assert f"the link {theirs}/current belongs to user {OTHER}" in said
    assert (theirs / "v2" / "page").read_text() == "x"


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_nothing_of_another_user_is_used_in_a_folder_of_all(shared: Path, mode: int) -> None:
    """Nor a folder on the way, which its owner could fill before; nor a pipe, whose reader would be waited for."""
    need_root()
    shared.chmod(mode)
    theirs = home_of(OTHER, shared)
    theirs.chmod(0o777)
    of(OTHER, shared / "file").chmod(0o666)
    os.mkfifo(shared / "pipe", 0o666)
    os.chown(shared / "pipe", OTHER, OTHER)
    for path in (theirs / "page", shared / "file", shared / "pipe"):
        assert f"belongs to user {OTHER}" in as_user(OWNER, functools.partial(write_whole, path, "x"))
        in_place = functools.partial(open, path, "w", opener=open_in_place)
        assert f"belongs to user {OTHER}" in as_user(OWNER, in_place)
    said = as_user(OWNER, lambda: outputs(str(theirs / "run")))
    assert f"belongs to user {OTHER}" in said and list(theirs.iterdir()) == []


def test_a_link_of_the_kernel_leads_to_a_file_that_is_open() -> None:
    reader, writer = os.pipe()
    write_whole(f"/dev/fd/{writer}", "out")
    assert os.read(reader, 9) == b"out"
    in_memory = memory_file("test")
    write_whole(f"/proc/self/fd/{in_memory}", "out")
    assert os.pread(in_memory, 9, 0) == b"out"
    for one in (reader, writer, in_memory):
        os.close(one)


def test_a_name_that_another_user_has_taken_is_left_alone(shared: Path) -> None:
    need_root()
    evil = home_of(OTHER, shared)
    taken = [evil, link_of(OTHER, shared / "link", evil), of(OTHER, shared / "file"), shared / "open"]
    taken[-1].mkdir(mode=0o777)
    taken[-1].chmod(0o777)
    os.chown(taken[-1], OWNER, OWNER)  # this user's, but others can write in it
    for one in taken:

        def take(name: str = one.name) -> None:
            paths = {own_folder(shared, name)[1] for _ in range(2)}  # is found again
            print(*paths, *(path for _, path in own_folders(shared, name)), sep="\n")

        made, found = as_user(OWNER, take).split()
        assert made == found and made.startswith(f"{one}.") and Path(made).stat().st_mode & 0o777 == 0o700


def test_jobs_are_announced_and_found_where_another_user_has_taken_the_name(shared: Path) -> None:
    need_root()
    folder = shared / f"horovod-{OWNER}"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)

    def announce() -> None:
        job_files._BASE = str(shared)
        made = job_files.write("127.0.0.1", 5, b"s" * 32, "train.py")
        assert made is not None
        print([job.command for job in job_files.running_jobs()])
        made.remove()
        print([job.command for job in job_files.running_jobs()])
        job_files._BASE = "/proc"
        print(job_files.write("127.0.0.1", 5, b"s" * 32, "train.py"))

    said = as_user(OWNER, announce)
    assert said.startswith("['train.py']\n[]\n") and said.endswith("\nNone\n"), said
    assert "warning: horovodrun jobs, top and stacks will not find this job on this host" in said


def need_root() -> None:
    if NOT_ROOT:
        pytest.skip("not run: only root can be another user")
