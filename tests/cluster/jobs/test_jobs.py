# SPDX-License-Identifier: Apache-2.0
"""horovodrun over ssh: two hosts with two ranks each, their results, their output and what they are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.jobs import Done, Job, python, run_job
from support.scripts.programs import COLLECTIVES

HOSTS = ["-np", "4", "-H", "host0:2,host1:2"]


def lines_of(done: Done) -> list[str]:
    assert done.code == 0, done
    return sorted(done.stdout.splitlines())


def test_two_hosts_give_the_bits_of_two_pretended_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    one, _ = cluster(2).hosts
    seen = lines_of(run_job(tmp_path, HOSTS, python(COLLECTIVES), on=one))
    pretended = {"HOROVOD_PRETEND_HOSTS": "2,2"}
    assert seen == lines_of(run_job(tmp_path, "-np", "4", python(COLLECTIVES), env=pretended))
    assert [line.rpartition(" ")[0] for line in seen] == [
        "[0]<stdout>:0 0",
        "[1]<stdout>:1 0",
        "[2]<stdout>:0 1",
        "[3]<stdout>:1 1",
    ]


def test_ranks_get_their_host_directory_environment_and_prefix(cluster: MakeCluster, tmp_path: Path) -> None:
    one, _ = cluster(2).hosts
    (tmp_path / "hosts").write_text("# the cluster\nhost0 slots=1   # here\n\nhost1:2\n")
    code = "print(os.uname().nodename, os.getcwd(), os.environ['WORD']); print('problem', file=sys.stderr)"
    environment = {"WORD": "a 'b' \"c\" $d", "HOSTNAME": "host0"}
    done = run_job(tmp_path, "-np", "3", "--hostfile", "hosts", python(code), env=environment, on=one)
    assert lines_of(done) == [
        f"[{rank}]<stdout>:host{host} {tmp_path} a 'b' \"c\" $d" for rank, host in enumerate([0, 1, 1])
    ]
    assert sorted(done.said.splitlines()) == [f"[{rank}]<stderr>:problem" for rank in range(3)]


def test_the_secret_is_in_no_command_line_and_no_environment_of_any_host(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    code = "print('secret', open(os.environ['HOROVOD_SECRET_FILE'], 'rb').read().hex()); signal.pause()"
    with Job(tmp_path, "-np", "2", "-H", "host0:1,host1:1", "--verbose", python(code), on=one) as job:
        secret = {line[1] for line in job.wait_for_line(r"stdout>:secret ([0-9a-f]{64})$", count=2)}
        assert len(secret) == 1
        text = secret.pop()
        pids = [*one.processes(), *two.processes()]
        assert len(pids) >= 7  # horovodrun, ssh, an agent and a keeper, two ranks, what carries horovodrun here
        for pid in pids:
            for name in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{name}").read_bytes()
                assert bytes.fromhex(text) not in content and text.encode() not in content
        os.kill(job.launcher(), 15)
        done = job.wait()
    assert text not in done.stderr
    assert text not in two.run("cat", "/run/sshd.log").stdout


@pytest.mark.parametrize("way", ["port and key", "interface"])
def test_flags_choose_the_way_to_other_hosts(cluster: MakeCluster, tmp_path: Path, way: str) -> None:
    made = cluster(2)
    one, two = made.hosts
    flags = ["--network-interfaces", "ib7,eth0"]
    if way == "port and key":
        made.second_sshd(two, 2222, tmp_path / "key")
        flags = ["-p", "2222", "-i", str(tmp_path / "key")]
    code = "import horovod.core as hvd; hvd.init(); print(os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'], hvd.size())"
    done = run_job(tmp_path, "-np", "2", "-H", "host0:1,host1:1", flags, python(code), on=one)
    assert lines_of(done) == [f"[{rank}]<stdout>:{one.address} 2" for rank in range(2)]
