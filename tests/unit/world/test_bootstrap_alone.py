# SPDX-License-Identifier: Apache-2.0
"""Without a launcher: one process is a world of one, and never silently one of many."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from horovod.core.exceptions import StartError
from horovod.settings import Settings
from horovod.world import bootstrap, topology
from horovod.world.secret import SecretFile, read_secret


def test_a_single_process_needs_nothing() -> None:
    world = bootstrap.connect(Settings.from_environment({}))
    assert (world.identity.rank, world.identity.size, world.transport, world.links) == (0, 1, "loopback", [])
    assert (world.host_of_rank, world.rendezvous) == ([0], None)
    assert bootstrap.connect(Settings.from_environment({})).generation == world.generation + 1


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "HOROVOD_SIZE"])
def test_one_of_many_without_a_rendezvous_is_an_error(variable: str) -> None:
    with pytest.raises(StartError, match=rf"^{variable}=4 says that this is one of 4 .*\nhint: .*horovodrun -np 4"):
        bootstrap.connect(Settings.from_environment({variable: "4"}))


def test_a_world_size_that_is_no_number_is_asked_about() -> None:
    with pytest.raises(StartError, match="WORLD_SIZE='abc': expected the number of processes .*\nhint: unset it"):
        bootstrap.connect(Settings.from_environment({"WORLD_SIZE": "abc"}))
    assert bootstrap.connect(Settings.from_environment({"WORLD_SIZE": "abc", "HOROVOD_SIZE": "1"})).identity.size == 1


def test_independent_processes_can_be_asked_for() -> None:
    assert bootstrap.connect(Settings.from_environment({"WORLD_SIZE": "4", "HOROVOD_SIZE": "1"})).identity.size == 1


@pytest.mark.parametrize("variable", ["HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"])
def test_mpi_is_not_silently_something_else(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # as if it was not installed
    with pytest.raises(StartError, match="=mpi.*, but MPI cannot be used|=mpi cannot be used: mpi4py is not installed"):
        bootstrap.connect(Settings.from_environment({variable: "mpi"}))
    bootstrap.connect(Settings.from_environment({variable: "GLOO"}))


FULL = {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}


def settings(**changed: str | None) -> Settings:
    names = {**FULL, "GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": "1", **changed}
    return Settings.from_environment({f"HOROVOD_{name}": value for name, value in names.items() if value is not None})


def test_an_incomplete_identity_says_what_is_missing() -> None:
    with pytest.raises(StartError, match="but HOROVOD_RANK, HOROVOD_GLOO_RENDEZVOUS_PORT is not"):
        bootstrap.connect(settings(RANK=None, GLOO_RENDEZVOUS_PORT=None))
    with pytest.raises(StartError, match="but HOROVOD_RANK, HOROVOD_SIZE, .*, HOROVOD_CROSS_SIZE is not"):
        bootstrap.connect(settings(**dict.fromkeys(FULL)))


def test_a_rank_beyond_the_size_is_an_error() -> None:
    with pytest.raises(StartError, match="HOROVOD_RANK=2 is out of range: HOROVOD_SIZE is 2"):
        bootstrap.connect(settings(RANK="2"))


def test_a_rendezvous_that_is_not_there_is_named() -> None:
    secret = SecretFile(bytes(32))
    try:
        with pytest.raises(StartError, match="the rendezvous at 127.0.0.1:1 cannot be reached: Connection refused"):
            bootstrap.connect(settings(SECRET_FILE=secret.path, START_TIMEOUT="0.2"))
    finally:
        secret.close()


def test_secrets_are_taken_only_from_private_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(StartError, match="cannot be read: No such file"):
        read_secret(str(path))
    path.write_bytes(bytes(32))
    os.chmod(path, 0o640)
    with pytest.raises(StartError, match=r"is open to other users \(mode 0640\)\nhint: chmod 600"):
        read_secret(str(path))
    os.chmod(path, 0o600)
    assert read_secret(str(path)) == bytes(32)
    path.write_bytes(bytes(31))
    with pytest.raises(StartError, match="holds 31 bytes, expected 32 or more"):
        read_secret(str(path))


def test_two_jobs_hosts_must_be_consistent() -> None:
    record = {"hostname": "a", "local_rank": 0, "local_size": 1}
    with pytest.raises(StartError, match="rank 0 says it is local rank 0 of 1, but on host 'a' it is 0 of 2"):
        topology.hosts_of({0: record, 1: record})


def test_a_topology_numbers_hosts_by_their_lowest_rank() -> None:
    hosts = topology.Topology.of([[1, 3], [0, 2], [4]])
    assert hosts.host_of_rank == (0, 1, 0, 1, 2) and hosts.hosts == [[0, 2], [1, 3], [4]]
    assert hosts.leaders == [0, 1, 4] and hosts.neighbours(3) == [1, 3]
    assert hosts.split({1}).host_of_rank == (0, 1, 0, 2, 3) and hosts.split(set()) == hosts
