# SPDX-License-Identifier: Apache-2.0
"""What collectives send from a host, by its interface's counter, is what must leave it; and the bits are right."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.started import Folder, environment

MOST = 1.02  # control messages


@pytest.mark.slow("a job on several hosts")
@pytest.mark.parametrize("slots", [(2, 2), (3, 1), (1, 1, 1, 1), (2, 1, 2)], ids=str)
def test_no_more_leaves_a_host_than_must(cluster: MakeCluster, tmp_path: Path, slots: tuple[int, ...]) -> None:
    made = cluster(len(slots))
    made.trust()
    folder = Folder(tmp_path)
    where = ",".join(f"{host.name}:{count}" for host, count in zip(made.hosts, slots, strict=True))
    launcher = [sys.executable, "-m", "horovod.launcher", "-np", str(sum(slots)), "-H", where]
    program = [sys.executable, "-m", "support.scripts.bytes_between_hosts"]
    env = environment(folder.home, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = made.hosts[0].run(*launcher, *program, env=env)
    assert done.returncode == 0, done
    by_host = [json.loads(line) for line in re.findall(r"{.*}", done.stdout)]
    assert len(by_host) == len(slots), done
    for found in by_host:
        for collective, (sent, must_leave) in found.items():
            assert sent <= MOST * must_leave, (collective, sent / must_leave, by_host)
    # The counter counts: data has left the hosts.
    assert MOST * max(found["broadcast"][0] for found in by_host) >= by_host[0]["broadcast"][1]
