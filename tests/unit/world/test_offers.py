# SPDX-License-Identifier: Apache-2.0
"""How rank 0's offer gets to the other ranks through a folder, and what is refused there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.core.exceptions import StartError
from horovod.settings import Settings
from horovod.world.launchers import Started, job
from horovod.world.launchers.folder import OfferFile
from horovod.world.launchers.offer import Offer
from horovod.world.rendezvous_server import RendezvousServer

OFFER = Offer(4, ["10.77.0.10", "127.0.0.1"], 4711, bytes(range(32)))


def test_an_offer_and_back() -> None:
    assert Offer.parse(OFFER.packed()) == OFFER
    assert "secret" not in repr(OFFER)


@pytest.mark.parametrize(
    "old, new",
    [
        (b"4711", b"0"),
        (b"4711", b"65536"),
        (b"4711", b'"4711"'),
        (b'"10.77.0.10"', b"1"),
        (b'["10.77.0.10", "127.0.0.1"]', b'"127.0.0.1"'),
        (bytes(range(32)).hex().encode(), b"00"),
        (bytes(range(32)).hex().encode(), b"no number"),
        (b'"secret"', b'"other"'),
        (b"{", b"["),
        (b"}", b""),
    ],
)
def test_what_is_no_offer_is_none(old: bytes, new: bytes) -> None:
    damaged = OFFER.packed().replace(old, new, 1)
    assert damaged != OFFER.packed() and Offer.parse(damaged) is None
    assert Offer.parse(b"[" * 100_000) is None and Offer.parse(b"\xff") is None


def test_a_file_is_its_owners_alone_and_goes_with_its_offer(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ".horovod"
    file = OfferFile(folder, "a job")
    assert file.read() is None
    file.write(OFFER)
    assert OfferFile(folder, "a job").read() == OFFER and OfferFile(folder, "a-job").read() is None
    assert (folder.stat().st_mode & 0o777, file.path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert os.listdir(folder) == [file.path.name]
    newer = Offer(4, ["10.77.0.10"], 4712, bytes(32))
    file.write(newer)
    file.remove(OFFER)  # an earlier job's
    assert file.read() == newer
    file.remove(newer)
    file.remove(newer)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = OfferFile(tmp_path, "job")
    file.write(OFFER)
    file.path.chmod(mode)
    with pytest.raises(StartError, match=rf"is not private to this user .*mode {mode:04o}"):
        file.read()


def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not run: only root can give a file away")
    file = OfferFile(tmp_path, "job")
    file.write(OFFER)
    os.chown(file.path, 1234, -1)
    with pytest.raises(StartError, match=r"is not private to this user \(owner 1234"):
        file.read()


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    file = OfferFile(tmp_path, "job")
    file.write(OFFER)
    file.path.rename(tmp_path / "elsewhere")
    file.path.symlink_to(tmp_path / "elsewhere")
    assert file.read() is None


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_in_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StartError, match=f"mode {mode:04o}.*\nhint: chmod 700 {tmp_path}"):
        OfferFile(tmp_path, "job")


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="cannot be used: Not a directory\nhint: HOROVOD_RENDEZVOUS_DIRECTORY"):
        OfferFile(tmp_path / "file" / "folder", "job")


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    one = RendezvousServer(OFFER.secret)
    yield one
    one.close()


def test_stale_files_are_read_past(tmp_path: Path, server: RendezvousServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose port refuses, one whose port is another program's, one that is damaged, one of another size."""
    monkeypatch.setattr(job, "_jobs", [])
    started = Started("srun", 1, 4, "job", False)
    there = Offer(4, ["127.0.0.1"], server.port, OFFER.secret)
    stale = [
        Offer(4, ["127.0.0.1"], 1, OFFER.secret).packed(),
        Offer(4, ["127.0.0.1"], server.port, bytes(32)).packed(),
        b"{",
        Offer(3, ["127.0.0.1"], server.port, OFFER.secret).packed(),
    ]
    looks: list[bytes] = []
    real = OfferFile.read

    def read(self: OfferFile) -> Offer | None:
        looks.append(stale.pop(0) if stale else there.packed())
        self.path.write_bytes(looks[-1])
        self.path.chmod(0o600)
        return real(self)

    monkeypatch.setattr(OfferFile, "read", read)
    settings = Settings.from_environment({"HOROVOD_RENDEZVOUS_DIRECTORY": str(tmp_path)})
    joined = job.join(started, settings, time.monotonic() + 60)
    assert (joined.offer, joined.reached, len(looks)) == (there, ["127.0.0.1"], 5)
    assert server.refused == 1


def test_a_job_without_a_name_needs_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_jobs", [])
    nameless = Started("mpirun of MPICH or Intel MPI", 1, 2, "", False)
    with pytest.raises(StartError, match="but not which job it belongs to.*\nhint: .*HOROVOD_RENDEZVOUS_DIRECTORY"):
        job.join(nameless, Settings.from_environment({}), time.monotonic())


def test_both_sides_meet_by_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.from_environment({"HOROVOD_RENDEZVOUS_DIRECTORY": str(tmp_path)})
    deadline = time.monotonic() + 60
    found: list[job.Job] = []
    # The higher rank comes first, and waits.
    follower = threading.Thread(
        target=lambda: found.append(job._follow(Started("srun", 1, 2, "job", False), settings, deadline, None))
    )
    follower.start()
    leader = job._lead(Started("srun", 0, 2, "job", False), settings, deadline, None)
    follower.join()
    assert leader.server is not None
    leader.server.close()
    assert found[0].offer == leader.offer and set(found[0].reached) == set(leader.reached)
    leader.remove_file()
    assert os.listdir(tmp_path) == []
