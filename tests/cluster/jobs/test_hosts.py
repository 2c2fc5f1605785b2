# SPDX-License-Identifier: Apache-2.0
"""The hosts that the other tests of this folder run on are as far apart as hosts are, and go with their test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.cluster import Host, MakeCluster
from support.patience import patiently, wait_until


def test_hosts_reach_each_other_by_ssh_and_share_only_what_is_said(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    (tmp_path / "shared").touch()
    one.run("sh", "-c", "touch /dev/shm/mine /tmp/mine /run/mine", check=True)
    seen = one.run("ssh", "-o", "StrictHostKeyChecking=accept-new", two.name, f"hostname; ls /dev/shm /tmp {tmp_path}")
    assert (seen.returncode, seen.stdout.split()[0]) == (0, "host1"), seen
    assert "mine" not in seen.stdout and "shared" in seen.stdout
    one.run("rm", "/dev/shm/mine", check=True)
    assert one.run("ps", "-e").stdout.count("sshd") == 1  # the other's is in another namespace


def _answers(one: Host, two: Host, within_s: int = 1) -> bool:
    return one.run("ping", "-c", "1", "-w", str(within_s), two.address).returncode == 0


def test_cables_can_be_cut_and_pulled_and_are_as_wide_as_asked(cluster: MakeCluster) -> None:
    made = cluster(3)
    one, two, three = made.hosts
    made.cut(one, two)
    assert (_answers(one, two), _answers(two, one), _answers(one, three, 30)) == (False, False, True)
    three.link(False)
    assert not _answers(one, three)
    three.link(True)
    assert _answers(one, three, 30)
    three.rate(8)
    shaped = three.run("tc", "qdisc", "show", "dev", "eth0").stdout
    assert "tbf" in shaped and "rate 8Mbit" in shaped


def test_a_host_without_power_is_silent(cluster: MakeCluster) -> None:
    one, two = cluster(2).hosts
    pids = two.processes()
    server = two.popen("sleep", "1000")
    while not any("sleep" in command for command in two.processes().values()):
        assert server.poll() is None
    two.power_off()
    patiently(server.wait)
    assert two.processes() == pids == {}
    assert not _answers(one, two)


def test_a_killed_test_leaves_nothing_of_its_hosts(cluster_tools: None, tmp_path: Path) -> None:
    code = (
        "import sys; from support.cluster import Cluster; made = Cluster(2); made.__enter__(); "
        "print(*made.pids(), flush=True); sys.stdin.read()"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    test = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with test:
        assert test.stdout is not None
        spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in test.stdout.readline().split()}
        test.kill()

    def inside() -> list[str]:
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                space = os.readlink(f"/proc/{entry}/ns/net")
            except OSError:
                continue  # it has just ended
            found += [entry] if space in spaces else []
        return found

    assert len(spaces) == 3
    wait_until(lambda: not inside(), inside)


def test_a_machine_without_ipv4_loopback_is_told_so(cluster_tools: None, tmp_path: Path) -> None:
    """In a network of its own, whose loopback interface has an IPv6 address only."""
    script = 'ip link set lo up; ip addr del 127.0.0.1/8 dev lo; exec "$0" -m horovod.launcher -np 2 true'
    command = ["unshare", "--net", "sh", "-c", script, sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = "horovodrun: no port can be opened at 127.0.0.1: Cannot assign requested address"
    assert done.returncode == 1 and done.stderr.startswith(said), done
    assert "\nhint: `ip address show lo` must have 127.0.0.1; " in done.stderr
