# SPDX-License-Identifier: Apache-2.0
"""Whatever fails on whichever host: the job ends everywhere, and the cause stands last."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.extent import SLACK_S
from support.jobs import Job, abreast, python, run_job, stderr_of
from support.patience import wait_until

HOSTS = ["-np", "4", "-H", "host0:2,host1:2"]
NOTICED_S = 6.0  # a host that is silent, by everybody
ENDED_S = 3.0  # later

# For tests that are about something else than how long it takes.
SOON_S = 3.0
SOON = {"HOROVOD_LOST_TIMEOUT_SECONDS": str(SOON_S)}

# Every rank says so when it has met the others, and then waits in a collective or asleep.
MEET = """
import numpy as np
import horovod.core as hvd
hvd.init()
hvd.allreduce(np.ones(4), name="first")
ready()
"""
TRAIN = MEET + "for step in range(10**9): hvd.allreduce(np.ones(1000), name='gradients')\n"
# A child in a session of its own, which nobody but a subreaper could find.
CHILD = "import subprocess; subprocess.Popen(['sleep', '10000'], start_new_session=True)\n"


def process(host: Host, words: str) -> int:
    """The one process of this host whose command has these words."""
    (found,) = [pid for pid, command in host.processes().items() if words in command]
    return found


def keeper_and_agent(host: Host) -> tuple[int, int]:
    both = [pid for pid, command in host.processes().items() if "remote_agent" in command]
    assert len(both) == 2
    return (both[0], both[1]) if fields_of(both[1])[1] == str(both[0]) else (both[1], both[0])


def fields_of(pid: int) -> list[str]:
    """Of /proc/PID/stat: the state, the parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def assert_empty_within(seconds: float, *hosts: Host) -> None:
    until = time.monotonic() + seconds + SLACK_S
    for host in hosts:
        host.assert_empty(max(0.0, until - time.monotonic()))


WALL = """
import subprocess
import numpy as np
import horovod.core as hvd
ABREAST
os.environ["HOROVOD_START_TIMEOUT"] = "3"
hvd.init()
if rank == 1:
    rule = "ip daddr ADDRESS tcp flags & (syn | ack) == syn VERDICT"
    chain = "chain output { type filter hook output priority 0\\n" + rule + "\\n}"
    subprocess.run(["nft", "-f", "-"], input="table ip walls { " + chain + "\\n}\\n", text=True, check=True)
hvd.barrier()
hvd.allreduce(np.ones(4), name="first")
"""


LATE = """
import horovod.core as hvd
ABREAST
os.environ["HOROVOD_START_TIMEOUT"] = "6"
time.sleep(2 * (rank == LATE))
hvd.init()
"""


@pytest.mark.parametrize("verdict", ["reject", pytest.param("drop", marks=pytest.mark.thorough)])
def test_a_firewall_between_the_hosts_is_called_one(cluster: MakeCluster, tmp_path: Path, verdict: str) -> None:
    one, _ = cluster(2).hosts
    script = WALL.replace("ADDRESS", one.address).replace("VERDICT", verdict).replace("ABREAST", abreast(2, tmp_path))
    done = run_job(tmp_path, ["-np", "2", "-H", "host0:1,host1:1"], python(script), on=one)
    assert done.code == 1, done
    assert f"could not open a data link with rank 0: rank 0 at {one.address}:" in done.stderr
    assert "hint: if that rank has not ended, a firewall between the two hosts may refuse or drop" in done.stderr
    assert done.stderr.count("more: horovodrun --explain start-connection") >= 2
    assert "rank-lost" not in done.stderr


def test_a_firewall_between_workers_is_the_cause_whoever_comes_first(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two, three = cluster(3).hosts
    for host, other in ((two, three), (three, two)):
        host.wall_off(other.address, "drop")
    for rank in "01":
        (folder := tmp_path / rank).mkdir()
        script = LATE.replace("ABREAST", abreast(2, folder)).replace("LATE", rank)
        done = run_job(folder, "-np", "2", "-H", "host1:1,host2:1", python(script), on=one)
        assert done.code == 1, done
        assert f"connect to each other: rank 1: rank 0 at {two.address}:" in done.stderr, done.stderr
        assert re.search("cannot be reached: no answer\n.*hint: if that rank has not ended, a firewall", done.stderr)
        assert "waited" not in done.stderr


def test_a_launcher_without_network_says_so(cluster: MakeCluster, tmp_path: Path) -> None:
    one, _, _ = cluster(3).hosts
    with Job(tmp_path, "-np", "2", "-H", "host1:1,host2:1", python(MEET + "signal.pause()"), env=SOON, on=one) as job:
        job.wait_ready(2)
        one.batch("link set eth0 down")
        done = job.wait()
    said = r"host host[12] was lost: its agent has said nothing for 3 s; eth0 of this host went down"
    assert done.code == 1 and re.search(said, done.stderr), done


@pytest.mark.parametrize(
    "end, code, cause",
    [
        ("sys.exit(7)", 7, "horovodrun: rank 3 on host host1 exited with code 7"),
        ("os.kill(os.getpid(), 9)", 137, "horovodrun: rank 3 on host host1 was killed by SIGKILL"),
    ],
)
def test_a_dead_rank_of_another_host_is_the_cause(
    cluster: MakeCluster, tmp_path: Path, end: str, code: int, cause: str
) -> None:
    one, _ = cluster(2).hosts
    script = MEET + f"if rank == 3: {end}\n" + "hvd.allreduce(np.ones(4), name='second')"
    done = run_job(tmp_path, HOSTS, python(script), on=one)
    assert done.code == code, done
    last = done.stderr[done.stderr.rindex("horovodrun: rank") :]
    assert last.startswith(cause), done.stderr
    assert "<stderr>" not in last  # nothing comes after it
    for rank in (0, 1, 2):
        # The first: on a busy machine a rank may not have ended it yet.
        told = r"<stderr>:horovod.core.exceptions.Rank(Lost|Left)Error: .*`allreduce.\w+`.*: rank 3 "
        assert re.search(told, stderr_of(rank, done.stderr)), done.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name
)
def test_the_end_of_the_launcher_ends_all_hosts(cluster: MakeCluster, tmp_path: Path, number: signal.Signals) -> None:
    one, two = cluster(2).hosts
    with Job(tmp_path, HOSTS, python(CHILD + TRAIN), on=one) as job:
        job.wait_ready(4)
        os.kill(job.launcher(), number)
        assert_empty_within(5.0, one, two)
        done = job.wait()
    if number != signal.SIGKILL:
        assert done.stderr.startswith(f"horovodrun: {number.name}: ending all ranks\n"), done
        assert done.code == 128 + number


@pytest.mark.slow("a job on several hosts")
def test_broken_connections_with_horovodrun_end_nothing(cluster: MakeCluster, tmp_path: Path) -> None:
    """A device between the hosts may reset them while all is well."""
    one, two = cluster(2).hosts
    with Job(tmp_path, *HOSTS, python(TRAIN), on=one) as job:
        job.wait_ready(4)
        for host in (one, two):
            host.reset(job.rendezvous_port(), 1.5)  # nothing but a question a second is sent there
        time.sleep(5.0)
        assert job.process.poll() is None, job.shown()
        assert "horovodrun" not in job.shown()
        os.kill(job.launcher(), signal.SIGINT)
        assert job.wait().code == 130


def test_the_end_of_an_ssh_ends_all_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    with Job(tmp_path, HOSTS, python(CHILD + TRAIN), on=one) as job:
        job.wait_ready(4)
        os.kill(process(one, "ssh -T"), signal.SIGKILL)
        done = job.wait()
        assert_empty_within(5.0, one, two)
    assert done.code == 1
    assert "horovodrun: host host1 was lost: its agent cannot be heard: ssh was killed by SIGKILL" in done.stderr
    assert done.stderr.endswith("more: horovodrun --explain host-lost\n")


@pytest.mark.parametrize("who", ["agent", "keeper"])
def test_the_end_of_the_agent_or_its_keeper_leaves_nothing_on_its_host(
    cluster: MakeCluster, tmp_path: Path, who: str
) -> None:
    one, two = cluster(2).hosts
    with Job(tmp_path, HOSTS, python(CHILD + TRAIN), on=one) as job:
        job.wait_ready(4)
        keeper, agent = keeper_and_agent(two)
        os.kill(agent if who == "agent" else keeper, signal.SIGKILL)
        done = job.wait()
        assert_empty_within(5.0, one, two)
    assert done.code != 0
    if who == "agent":
        assert "horovodrun: host host1 was lost: its agent was killed by SIGKILL" in done.stderr


def test_a_stopped_agent_of_another_host_is_ended_with_its_ranks(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    flags = [*HOSTS, "--termination-grace-seconds", "1"]
    with Job(tmp_path, flags, python(CHILD + MEET + "signal.pause()"), env=SOON, on=one) as job:
        job.wait_ready(4)
        os.kill(keeper_and_agent(two)[1], signal.SIGSTOP)
        done = job.wait()
        assert_empty_within(6.0, one, two)
    assert "horovodrun: host host1 was lost: its agent has said nothing for 3 s" in done.stderr


def test_two_hosts_that_cannot_hear_each_other_end_the_job_though_rank_0_hears_both(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    a_cluster = cluster(3)
    one, two, three = a_cluster.hosts
    hosts = ["-np", "3", "-H", "host0:1,host1:1,host2:1"]
    with Job(tmp_path, hosts, python(TRAIN.replace("1000", "1000000")), env=SOON, on=one) as job:
        job.wait_ready(3)
        a_cluster.cut(two, three)
        cut_s = time.monotonic()
        done = job.wait()
        assert time.monotonic() - cut_s < SOON_S + ENDED_S + SLACK_S
        assert_empty_within(5.0, one, two, three)
    # The others learn the cause before the end of the connections of the rank that has noticed it.
    told = re.findall(r"rank [12] is unreachable: its host has acknowledged nothing for \d+\.\d s", done.stderr)
    assert told and "Connection reset" not in done.stderr, done.stderr
    assert done.code == 1


@pytest.mark.parametrize("ranks", ["train", "sleep"])
def test_a_host_without_power_is_noticed_and_named_last(cluster: MakeCluster, tmp_path: Path, ranks: str) -> None:
    one, two = cluster(2).hosts
    script = CHILD + (TRAIN if ranks == "train" else MEET + "signal.pause()")
    # Waiting ranks, which notice nothing themselves, need not wait for as long.
    limit_s = 5 if ranks == "train" else 3
    env = {"HOROVOD_LOST_TIMEOUT_SECONDS": str(limit_s)}
    with Job(tmp_path, HOSTS, python(script), env=env, on=one) as job:
        job.wait_ready(4)
        began = time.monotonic()
        two.power_off()
        done = job.wait()
        assert time.monotonic() - began < NOTICED_S + ENDED_S + SLACK_S
        assert_empty_within(0.5, one)
    assert done.code == 1, done
    last = done.stderr[done.stderr.rindex("horovodrun: ") :]
    assert last.startswith(f"horovodrun: host host1 was lost: its agent has said nothing for {limit_s} s"), done.stderr
    assert last.endswith("more: horovodrun --explain host-lost\n")
    if ranks == "train":
        assert "RankLostError" in done.stderr


def test_stopped_ranks_of_another_host_are_waited_for_if_the_limit_is_off_but_a_lost_host_is_not(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    one, two = cluster(2).hosts
    # More than the windows hold: a full one is asked about ever more seldom.
    stop = "hvd.allreduce(np.full(1 << 20, float(os.path.exists('go'))), op=hvd.Sum, name='gradients')[0]"
    links = f"{stop}\nready()\n"  # a rank that is stopped while it opens one is not waited for
    script = MEET + links + f"while {stop} == 0: pass\nready()\n" + TRAIN.removeprefix(MEET)
    with Job(tmp_path, HOSTS, python(script), env={**SOON, "HOROVOD_FROZEN_TIMEOUT_SECONDS": "0"}, on=one) as job:
        job.wait_ready(8)
        ranks = [pid for pid, command in two.processes().items() if "gradients" in command]
        assert len(ranks) == 2
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        said = r"rank [23] \(pid \d+\) on host host1 was stopped by SIGSTOP; the other ranks wait for it"
        job.wait_for_line(said, "stderr", 2)
        job.wait_for_line(r"hint: on host1: kill -CONT \d+$", "stderr")
        time.sleep(3 * SOON_S + 1.5)  # longer than a host may be silent
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        job.wait_ready(4)
        two.power_off()
        done = job.wait()
        assert_empty_within(0.5, one)
    assert "horovodrun: host host1 was lost: its agent has said nothing for 3 s" in done.stderr


def test_ranks_end_when_the_launchers_host_has_no_power(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two, three = cluster(3).hosts
    script = python(CHILD + MEET + "signal.pause()")
    with Job(tmp_path, "-np", "2", "-H", "host1:1,host2:1", script, env=SOON, on=one) as job:
        job.wait_ready(2)
        one.power_off()
        assert_empty_within(SOON_S + 1.0 + ENDED_S, two, three)
        job.process.wait()


def test_ctrl_z_suspends_all_hosts_and_the_job_goes_on(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    stop = "hvd.allreduce(np.array([float(os.path.exists('stop'))]), op=hvd.Sum, name='gradients')[0]"
    with Job(tmp_path, HOSTS, python(MEET + f"while {stop} == 0: pass"), env=SOON, on=one) as job:
        job.wait_ready(4)
        os.kill(job.launcher(), signal.SIGTSTP)
        ranks = [pid for host in (one, two) for pid, command in host.processes().items() if "gradients" in command]
        wait_until(lambda: {fields_of(pid)[0] for pid in [job.launcher(), *ranks]} == {"T"})
        time.sleep(SOON_S + 1.5)  # longer than a host may be silent
        for pid in (job.launcher(), job.process.pid):  # what carries it here has stopped with it
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "T" not in {fields_of(pid)[0] for pid in ranks})
        (tmp_path / "stop").touch()
        done = job.wait()
    assert (done.code, done.stderr) == (0, "")
