# SPDX-License-Identifier: Apache-2.0
"""Jobs of hosts that reach each other by IPv6: by names and addresses, link-local ones too, and beside IPv4."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import Cluster, Host, MakeCluster
from support.jobs import python, run_job
from support.patience import wait_until

ADDS = """
import horovod.core as hvd, numpy as np
hvd.init()
print(hvd.allreduce(np.ones(3), op=hvd.Sum), hvd.local_size())
"""


def names(made: Cluster) -> list[str]:
    made.add_ipv6(*made.hosts)
    return [host.name for host in made.hosts]


def addresses(made: Cluster) -> list[str]:
    made.add_ipv6(*made.hosts)
    return [f"[{host.ipv6}]" for host in made.hosts]


def link_local_addresses(made: Cluster) -> list[str]:
    for host in made.hosts:
        host.batch(f"addr del {host.address}/24 dev eth0")
    return [f"[{_link_local(host)}%eth0]" for host in made.hosts]


def beside_ipv4(made: Cluster) -> list[str]:
    one, two, three = made.hosts
    made.add_ipv6(two)
    return [one.name, f"[{two.ipv6}]", three.address]


def _link_local(host: Host) -> str:
    """Once the host has made sure that nobody else has it."""

    def found() -> re.Match[str] | None:
        shown = host.run("ip", "-6", "addr", "show", "dev", "eth0", "scope", "link", "-tentative").stdout
        return re.search(r"inet6 (fe80:[^/]*)/", shown)

    match = wait_until(found)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("hosts", [names, addresses, link_local_addresses, beside_ipv4])
def test_ranks_meet_by_ipv6(cluster: MakeCluster, tmp_path: Path, hosts: Callable[[Cluster], list[str]]) -> None:
    made = cluster(3)
    made.trust()
    listed = ",".join(f"{name}:1" for name in hosts(made))
    done = run_job(tmp_path, "-np", "3", "-H", listed, python(ADDS), on=made.hosts[0])
    assert done.code == 0, done
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:[3. 3. 3.] 1" for rank in range(3)]
