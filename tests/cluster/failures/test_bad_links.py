# SPDX-License-Identifier: Apache-2.0
"""A bad link between hosts makes a job slow, and nothing else: nobody is called lost, frozen or stalled.

Beats, the launcher's own connection and the data share the link. The short form runs daily.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.extent import SLACK_S, THOROUGH
from support.jobs import Job, python
from support.patience import wait_until

HOSTS = ["-np", "4", "-H", "host0:2,host1:2"]
TRAIN = """
import time
import numpy as np
import horovod.core as hvd
hvd.init()
hvd.allreduce(np.ones(4), name="first")
ready()
end = time.monotonic() + {seconds}
steps = 0
while hvd.allreduce(np.array([float(time.monotonic() < end)]), op=hvd.Min, name="go on")[0]:
    if {elements}:
        assert (hvd.allreduce(np.ones({elements}, np.float32), op=hvd.Sum, name="gradients") == 4).all()
    else:
        time.sleep(0.2)
    steps += 1
assert steps > 0
print("trained", rank)
"""


@contextlib.contextmanager
def flapping(host: Host, down_s: float, up_s: float) -> Iterator[None]:
    """Its cable is out for `down_s` and in for `up_s`, again and again; in at the end."""
    over = threading.Event()

    def flap() -> None:
        while not over.is_set():
            host.link(False)
            over.wait(down_s)
            host.link(True)
            over.wait(up_s)

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def worse(host: Host, **how: float) -> Iterator[None]:
    host.worsen(**how)
    yield


@contextlib.contextmanager
def slow(host: Host, megabits: float) -> Iterator[None]:
    host.rate(megabits)
    yield


# What is done to the link once the job runs, float32 elements of a step, seconds of training.
LINKS: dict[str, tuple[Callable[[Host], contextlib.AbstractContextManager[None]], int, float]] = {
    "1% lost": (lambda host: worse(host, lost=0.01), 100_000, 4.0),
    "5% lost": (lambda host: worse(host, lost=0.05), 100_000, 4.0),
    "200 ms away": (lambda host: worse(host, delay_s=0.2), 100_000, 6.0),
    "1 Mbit/s": (lambda host: slow(host, 1.0), 100_000, 6.0),
    # A step takes 32 s, longer than any timeout: the beats get through among the data.
    "1 Mbit/s, large steps": (lambda host: slow(host, 1.0), 1_000_000, 8.0),
    "down for 2 s": (lambda host: flapping(host, 2.0, 3.0), 100_000, 8.0),
}
LONG = [pytest.param(name, False, marks=pytest.mark.thorough) for name in ("1 Mbit/s, large steps", "down for 2 s")]
SLEEPING = [pytest.param(name, True, marks=pytest.mark.thorough) for name in ("5% lost", "200 ms away")]


@pytest.mark.parametrize(("link", "sleeps"), [*((name, False) for name in list(LINKS)[:4]), *LONG, *SLEEPING])
def test_a_job_goes_on_over_a_bad_link(cluster: MakeCluster, tmp_path: Path, link: str, sleeps: bool) -> None:
    spoiled, elements, seconds = LINKS[link]
    one, two = cluster(2).hosts
    if "lost" in link or "away" in link:
        two.worsen()
    script = TRAIN.format(elements=0 if sleeps else elements, seconds=seconds * (8 if THOROUGH else 1))
    with Job(tmp_path, "--no-summary", HOSTS, python(script), on=one) as job:
        job.wait_ready(4)
        with spoiled(two):
            done = job.wait()
    assert (done.code, done.said) == (0, ""), done
    assert sum(line.endswith("trained " + line[1]) for line in done.stdout.splitlines()) == 4, done


def test_a_job_starts_over_a_link_that_is_far_and_loses_packets(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    two.worsen(delay_s=0.1, lost=0.01)
    done_by = TRAIN.format(elements=1000, seconds=2.0)
    with Job(tmp_path, HOSTS, python(done_by), on=one) as job:
        done = job.wait()
    assert (done.code, done.stderr) == (0, ""), done


def questions(host: Host) -> int:
    """How often this host's kernel has asked idle connections for a sign of life."""
    names, numbers = (
        line.split() for line in host.run("cat", "/proc/net/netstat").stdout.splitlines() if line.startswith("TcpExt:")
    )
    return int(numbers[names.index("TCPKeepAlive")])


def test_a_silent_launcher_is_asked_often_before_it_counts_as_lost(cluster: MakeCluster, tmp_path: Path) -> None:
    """Four questions, one a second, may all be lost on a link that loses every twentieth packet: in some hours."""
    made = cluster(2)
    one, two = made.hosts
    with Job(tmp_path, "-np", "1", "-H", "host1:1", python("ready()\nsignal.pause()"), on=one) as job:
        job.wait_ready(1)
        wait_until(lambda: questions(two) > 0)  # what came before has been acknowledged by then
        before, cut_s = questions(two), time.monotonic()
        made.cut(one, two)
        two.assert_empty(6.0 + 3.0 + SLACK_S)
        assert time.monotonic() - cut_s >= 4.0  # not given up sooner for it
        assert questions(two) - before >= 6
        assert job.wait().code == 1
