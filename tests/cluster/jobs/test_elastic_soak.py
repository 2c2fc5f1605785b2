# SPDX-License-Identifier: Apache-2.0
"""An elastic job over ssh hosts goes through random events, and loses nothing.

SOAK_EVENTS says how many, by default 100; FUZZ_SEED which ones. After each of them training goes on within 10 seconds.
At the end every step and every item has been counted once, and horovodrun and its agents are as large as they were.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.cluster import Host, MakeCluster
from support.elastic.elastic_jobs import LEDGER, ElasticJob, check_items, history, ledgers
from support.extent import SLACK_S

EVENTS = int(os.environ.get("SOAK_EVENTS", "100"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
WITHIN_S = 10.0 + SLACK_S
SLOTS = 2  # on each host
MIN_SLOTS = 4
REFILL_S = 60.0  # how long a slot may be empty in which workers have failed often
ITEMS = 100

SCRIPT = (
    """
import hashlib
import numpy as np
import horovod.core as hvd
from horovod.core.objects import allgather_object, broadcast_object
from horovod.elastic.worker.sampler import Partition, order_of
from horovod.elastic.state.state import ObjectState
from horovod.elastic.worker.wrapper import run_fn
"""
    + LEDGER
    + f"ITEMS = {ITEMS}\n"
    + """
hvd.init()
data = np.random.default_rng(1).standard_normal((ITEMS, 500)).astype(np.float32)
state = ObjectState(broadcast_object, hvd.rank, step=0, epoch=0, taken=0, over=False, weights=np.zeros(500, np.float32))

def check_replicas():
    digests = allgather_object(hashlib.sha256(state.weights.tobytes()).hexdigest())
    assert len(set(digests)) == 1, digests

def train(state):
    enter(state.step)
    check_replicas()
    while not state.over:
        order = order_of(ITEMS, True, 3, state.epoch)
        mine = Partition(order[state.taken :], hvd.size()).items_of(hvd.rank())
        for item in mine:
            took(state.step + 1, state.epoch, [item])  # it may be killed when the others have what it gave
            total = hvd.allreduce(data[item] * 0.01 - state.weights * 0.001, op=hvd.Average, name="gradients")
            state.over = bool(hvd.allreduce(np.array([os.path.exists("end")], np.int32), op=hvd.Max, name="over")[0])
            state.weights = state.weights + total
            state.taken += hvd.size()
            state.step += 1
            time.sleep(0.02)
            if state.over:
                break
            state.commit() if state.step % 3 else state.check_host_updates()
        if state.taken >= ITEMS:
            state.epoch, state.taken = state.epoch + 1, 0
    check_replicas()

run_fn(train, None)(state)
print("finished", worker, hvd.rank(), hvd.size(), state.step, 0, True, flush=True)
"""
)


class Size(NamedTuple):
    """Of a job's own processes, which are not its workers."""

    descriptors: int
    threads: int
    memory_kb: int

    @classmethod
    def of(cls, job: ElasticJob) -> Size:
        pids = [pid for pid, command in job.pids().items() if "-m horovod.launcher" in command]
        status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return cls(
            sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            sum(int(re.findall(r"Threads:\s+(\d+)", one)[0]) for one in status),
            sum(int(re.findall(r"VmRSS:\s+(\d+)", one)[0]) for one in status),
        )


class Soak:
    """The job, and what happens to it. `happened`: a line for each event."""

    def __init__(self, job: ElasticJob, hosts: list[Host]) -> None:
        self.job = job
        self.slots = dict.fromkeys((host.name for host in hosts), SLOTS)
        self.happened: list[str] = []
        self._hosts = hosts
        self._random = random.Random(SEED)
        self._losing: set[int] = set()  # workers that have been killed or stopped
        kinds = {self.kill: 40, self.add: 20, self.remove: 20, self.stop: 10, self.blip: 5, self.two: 5}
        self._kinds: list[Callable[[], bool]] = list(kinds)
        self._weights = list(kinds.values())

    def event(self) -> None:
        """The next one. Fails if training does not go on."""
        generation = self.wait_for(lambda members: len(members) >= MIN_SLOTS, slack_s=REFILL_S)
        (kind,) = self._random.choices(self._kinds, self._weights)
        begin = time.time()
        needs_another_world = kind()
        self.wait_for(lambda _: self._last_step() > begin, generation + needs_another_world)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> bool:
        """Sends a signal to a worker, also to one that joins. Each event: whether there must be another world."""
        _, members = self.job.newest_world()
        workers = self.job.workers()
        victim = self._random.choice(sorted(set(workers) - self._losing))
        self._losing.add(victim)
        self.happened.append(f"{number.name} {victim}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[victim], number)
        return victim in members

    def stop(self) -> bool:
        return self.kill(signal.SIGSTOP)

    def add(self) -> bool:
        host = self._random.choice(sorted(self.slots))
        self._set_slots(host, min(self.slots[host] + 1, SLOTS))
        return False

    def remove(self) -> bool:
        host = self._random.choice(sorted(self.slots))
        if self.slots[host] == 0 or sum(self.slots.values()) <= MIN_SLOTS:
            return self.add()
        self._set_slots(host, self.slots[host] - 1)
        _, members = self.job.newest_world()
        return list(members.values()).count(host) > self.slots[host]

    def blip(self) -> bool:
        """Breaks the connections of a host's workers with horovodrun."""
        host = self._random.choice(self._hosts)
        self.happened.append(f"blip {host.name}")
        host.reset(self.job.rendezvous_port(), self._random.uniform(0.1, 2.0))
        return False

    def two(self) -> bool:
        """Two within 50 ms. A slot that goes and comes back may be seen by nobody."""
        kinds = self._random.sample([self.kill, self.kill, self.stop, self.add, self.remove], 2)
        return max([kind() for kind in kinds]) and self.remove not in kinds

    def size(self, most: Size | None = None) -> Size:
        """That of the job with a worker in each slot, when nobody comes or goes any more. Waits until it is `most`."""
        for host in self.slots:
            self._set_slots(host, SLOTS)
        self.wait_for(lambda members: len(members) == SLOTS * len(self.slots), slack_s=REFILL_S)
        deadline = time.monotonic() + WITHIN_S
        while True:
            time.sleep(1.0)
            size = Size.of(self.job)
            if most is None or time.monotonic() > deadline or size[:2] <= most[:2]:
                return size

    def wait_for(self, fits: Callable[[dict[int, str]], bool], generation: int = 0, slack_s: float = 0.0) -> int:
        """Blocks until the newest world lives, fits, and is of that generation or a newer one; its generation."""
        deadline = time.monotonic() + WITHIN_S + slack_s
        while True:
            newest, members = self.job.newest_world()
            if newest >= generation and not self._losing & set(members) and fits(members):
                return newest
            if time.monotonic() > deadline or self.job.process.poll() is not None:
                story = "\n".join(self.happened)
                raise AssertionError(f"FUZZ_SEED={SEED}, after\n{story}\n{newest}: {members}\n{self.job.shown()}")
            time.sleep(0.02)

    def _set_slots(self, host: str, slots: int) -> None:
        self.slots[host] = slots
        self.happened.append(f"{host}:{slots}")
        self.job.set_hosts(" ".join(f"{name}:{count}" for name, count in self.slots.items() if count))

    def _last_step(self) -> float:
        return max(file.stat().st_mtime for file in self.job.directory.glob("ledger.*"))


@pytest.mark.thorough
@pytest.mark.timeout(300 + 5 * EVENTS)
def test_random_events(cluster: MakeCluster, tmp_path: Path) -> None:
    hosts = cluster(3).hosts
    flags = ["-np", "6", "--min-np", "1", "--blacklist-cooldown-range", "1", "2"]
    env = {"HOROVOD_FROZEN_TIMEOUT_SECONDS": "1.5", "HOROVOD_ELASTIC_BLAME": "worker"}
    listed = " ".join(f"{host.name}:{SLOTS}" for host in hosts)
    with ElasticJob(tmp_path, *flags, script=SCRIPT, hosts=listed, env=env, on=hosts[0]) as job:
        soak = Soak(job, hosts)
        sizes = []
        for number in range(EVENTS + 1):
            if number in (EVENTS // 5, EVENTS):
                sizes.append(soak.size(*sizes))
            soak.event()
        said = job.finish()
    (steps,) = set(re.findall(r"finished \d+ \d+ \d+ (\d+)", said))
    entries = ledgers(tmp_path)
    check_items(entries, history(entries, int(steps)), ITEMS)
    assert "AssertionError" not in said
    assert sizes[1][:2] <= sizes[0][:2] and sizes[1].memory_kb < 1.05 * sizes[0].memory_kb, sizes
