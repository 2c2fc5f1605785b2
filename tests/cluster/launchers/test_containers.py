# SPDX-License-Identifier: Apache-2.0
"""Two containers after containers/Dockerfile, each on a host, run docs/guides/containers.md's command lines.

There is no Docker here. Every day an image is this machine's own root with the recipe's files and all of its steps that
fetch nothing. `thorough`: all steps run, on the recipe's Debian, once for each MPI.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.pages import ROOT, fenced
from support.patience import wait_until
from support.schedulers.container import DOCKERFILE, Container, Recipe, make_debian

GUIDE = ROOT / "docs" / "guides" / "containers.md"
TRAIN = """
import os
import numpy as np
import horovod.core as hvd
hvd.init()
print("trained", os.uname().nodename, hvd.rank(), hvd.size(), hvd.allreduce(np.ones(3), name="ones", op=hvd.Sum))
"""


def fetches(step: str) -> bool:
    return "apt-get" in step or "pip " in step or step.startswith("dist ")


def command_in_guide(program: str) -> list[str]:
    """The words behind `docker exec ... CONTAINER`, for as many ranks as there are hosts here."""
    (line,) = (block for block in fenced(GUIDE) if block.startswith("docker ") and f" {program} " in block)
    start = line.index(f" {program} ") + 1
    here = line[start:].replace("-np 3", "-np 2").replace("server1:1,server2:1,server3:1", "host0:1,host1:1")
    return shlex.split(here)


def trained(out: str) -> list[str]:
    return sorted(re.findall(r"trained .*", out))


def ran(container: Container, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    words = tuple(container.command(*words, user=user))
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)


EXPECTED = [f"trained host{rank} {rank} 2 [2. 2. 2.]" for rank in range(2)]


@pytest.fixture
def volumes(tmp_path: Path) -> dict[str, Path]:
    """What both containers share: the keys, which are not there yet, and the script."""
    keys, folder = tmp_path / "keys", tmp_path / "train"
    keys.mkdir()
    folder.mkdir()
    (folder / "hosts").write_text("host0 slots=1\nhost1 slots=1\n")
    (folder / "train.py").write_text(TRAIN)
    return {"/keys": keys, "/train": folder}


def todays(recipe: Recipe, host: Host, volumes: dict[str, Path]) -> Container:
    """Above this machine's root; the Python of this run stands for the one of the image."""
    container = Container(recipe, host, Path("/"), volumes)
    container.prepare(f'ln -sfn {sys.prefix} "$root/opt/venv"', recipe.steps(lambda step: not fetches(step)))
    return container


def test_two_containers_train_by_ssh_at_port_2222(cluster: MakeCluster, volumes: dict[str, Path]) -> None:
    recipe = Recipe(DOCKERFILE, {"UID": "54321"})
    first, second = (todays(recipe, host, volumes) for host in cluster(2).hosts)
    first.start()
    second.start()
    done = ran(first, *command_in_guide("horovodrun"))
    assert trained(done.stdout) == EXPECTED, done.stdout + done.stderr
    # Not by the host's own sshd, at port 22: it does not know the containers' key.
    assert "horovodrun: other hosts are reached by ssh" in done.stderr.splitlines()
    refused = ran(first, "ssh", "-p", "22", "host1", "true")
    assert refused.returncode == 255, refused
    # Without -p as well: ssh's configuration has it.
    assert ran(first, "ssh", "host1", "hostname").stdout == "host1\n"
    # The user of the image logs in as well; a password does not.
    assert ran(first, "ssh", "-o", "BatchMode=yes", "horovod@host1", "id -un").stdout == "horovod\n"
    refused = ran(first, "ssh", "-o", "PubkeyAuthentication=no", "host1", "true")
    assert refused.returncode == 255 and "Permission denied (publickey)" in refused.stderr
    # Another machine at the address of one is noticed: its key is not the containers'.
    second.prepare(
        'ssh-keygen -q -t ed25519 -N "" -f /run/other_key',
        'install -m 600 /run/other_key "$root/etc/ssh/horovod_host_key"',
        'kill -HUP "$(cat "$root/run/sshd.pid")"',
    )
    refused_by = "Connection refused"  # it does not listen again yet
    wait_until(lambda: refused_by not in ran(first, "ssh", "host1", "true").stderr)
    refused = ran(first, "ssh", "host1", "true")
    assert refused.returncode == 255 and "Host key verification failed" in refused.stderr, refused


def test_containers_that_start_at_once_agree_on_the_keys(cluster: MakeCluster, volumes: dict[str, Path]) -> None:
    recipe = Recipe(DOCKERFILE, {"UID": "54321"})
    container = todays(recipe, cluster(1).hosts[0], volumes)
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: container.run_entry_point("make-keys"), range(8)))
    assert [end.returncode for end in ends] == [0] * 8, ends
    (pair,) = volumes["/keys"].iterdir()
    assert sorted(file.name for file in pair.iterdir()) == ["host_key", "host_key.pub", "id_ed25519", "id_ed25519.pub"]
    assert {file.stat().st_mode & 0o077 for file in pair.iterdir()} == {0}
    before = (pair / "id_ed25519").read_bytes()
    shown = container.run_entry_point("cat", "/root/.ssh/id_ed25519", "/home/horovod/.ssh/id_ed25519")
    assert shown.stdout.encode() == before * 2


def test_without_keys_and_a_place_for_them_it_says_so(cluster: MakeCluster, volumes: dict[str, Path]) -> None:
    recipe = Recipe(DOCKERFILE, {"UID": "54321"})
    container = todays(recipe, cluster(1).hosts[0], volumes)
    container.prepare('mount -o remount,bind,ro "$root/keys"')
    done = container.run_entry_point("true")
    assert done.returncode == 1
    assert "entrypoint: there are no keys in /keys/pair, and none can be made there" in done.stderr


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_all_of_the_recipe(cluster: MakeCluster, volumes: dict[str, Path], tmp_path: Path, mpi: str) -> None:
    assert list((ROOT / "dist").glob("hvd-*.whl")), "the recipe takes the wheel in dist: run make wheels first"
    recipe = Recipe(DOCKERFILE, {"MPI": mpi, "PACKAGES": ""})
    image = tmp_path / "image"
    release = recipe.only("FROM").removeprefix("debian:").removesuffix("-slim")
    make_debian(image, release, tmp_path, limit_s=1200)
    recipe.build(image, limit_s=1200)
    assert list((image / "etc" / "ssh").glob("*key*")) == [], "a key in the image"
    first, second = (Container(recipe, host, image, volumes) for host in cluster(2).hosts)
    first.start()
    second.start()
    done = ran(first, *command_in_guide("horovodrun"), user="horovod")
    assert trained(done.stdout) == EXPECTED, done
    words = [{"mpich": {"-H": "-hosts"}}.get(mpi, {}).get(word, word) for word in command_in_guide("mpirun")]
    done = ran(first, *words, user="horovod")
    assert trained(done.stdout) == EXPECTED, done
