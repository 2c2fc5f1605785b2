# SPDX-License-Identifier: Apache-2.0
"""horovodrun over ssh: hosts with two ranks each, their results, their output and what they are told; what is seen of a
job from its hosts; and 256 hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.extent import SLACK_S
from support.jobs import Done, Job, python, run_job
from support.scripts.programs import COLLECTIVES
from support.watch import id_of, look, script, shown_until

HOSTS = ["-np", "4", "-H", "host0:2,host1:2"]


def lines_of(done: Done) -> list[str]:
    assert done.code == 0, done
    return sorted(done.stdout.splitlines())


@pytest.mark.slow("a job on several hosts")
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


@pytest.mark.slow("a job on several hosts")
def test_a_job_is_seen_from_each_of_its_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two, three = cluster(3).hosts
    command, enough = script(tmp_path, "hosts")
    with Job(tmp_path, "-np", "6", "-H", "host0:2,host1:2,host2:2", "--summary", command, on=one) as job:
        job.wait_ready(6)
        names = {id_of(command[1], on=host) for host in (one, two, three)}
        (name,) = names
        text = shown_until(r"rank 1 \(host host0\) has been .* it is in prepare", "top", "--once", on=three)
        assert f"job {name}: 6 ranks on 3 hosts" in text
        assert "has not answered" not in shown_until(" in prepare", "stacks", name, on=two)
        enough.touch()
        done = job.wait()
    assert done.code == 0 and "the others waited longest for rank 1 (host host0)" in done.stderr
    assert "no job of this user runs on this host" in look("top", on=two)


MANY = 256  # each has processes of its own, all are on one machine; only ssh is faked
STARTED_S = 30.0
SSH = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
while [[ $1 != -- ]]; do shift; done
exec unshare --pid --fork --kill-child=KILL --mount --mount-proc sh -c "$3"
"""


@pytest.mark.thorough
def test_256_hosts_start_in_time_over_one_connection_each(cluster: MakeCluster, tmp_path: Path) -> None:
    (one,) = cluster(1).hosts
    names = [f"far-{number}" for number in range(MANY)]
    known = [f"10.79.0.{number} {name}\n" for number, name in enumerate(names)]
    (tmp_path / "names").write_text("".join(["127.0.0.1 localhost\n", *known]))  # so that no name server is asked
    one.put(tmp_path / "names", Path("/etc/hosts"))
    (tmp_path / "hosts").write_text("".join(f"{name} slots=1\n" for name in names))
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "ssh").write_text(SSH)
    (tmp_path / "programs" / "ssh").chmod(0o755)
    env = {"PATH": f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    env["HOROVOD_LOST_TIMEOUT_SECONDS"] = "60"  # a few cores do the work of all these hosts
    flags = ["-np", str(MANY), "--hostfile", "hosts", "--network-interface", "lo"]
    done = run_job(tmp_path, flags, "sh", "-c", "echo $HOROVOD_HOSTNAME", env=env, on=one)
    assert (done.code, done.said) == (0, ""), done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}]<stdout>:{name}" for rank, name in enumerate(names))
    connections = (tmp_path / "log").read_text().splitlines()
    assert len(connections) == len(set(connections)) == MANY
    print(f"{MANY} hosts took {done.seconds:.1f} s")
    assert done.seconds < STARTED_S + SLACK_S
