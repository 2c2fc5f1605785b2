# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of small scripts, whose workers say what they do and which hosts there are when the test says so."""

from __future__ import annotations

import collections
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from support.jobs import Job, variable

# Counts: after n steps every weight is n (n + 1) / 2, however many workers there are, if no step is lost or done twice.
# It goes on until there is a file `end`. `ACT` is code for a step, with the names of this script. `FAULT`:
# a worker, and its HOROVOD_FAULT_POINT.
SCRIPT = """
import os, signal, sys, time
import numpy as np
import horovod.core as hvd
from horovod.core.objects import broadcast_object
from horovod.elastic.state.state import ObjectState
from horovod.elastic.worker.wrapper import run_fn

worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
victim, _, fault = os.environ.get("FAULT", "").partition(" ")
if victim == str(worker):
    os.environ["HOROVOD_FAULT_POINT"] = fault
act = compile(os.environ.get("ACT", ""), "act", "exec")
hvd.init()
state = ObjectState(broadcast_object, hvd.rank, step=0, weights=np.zeros(1000))
done = 0

def train(state):
    global done
    print("enter", worker, hvd.rank(), hvd.size(), state.step, os.getpid(), flush=True)
    over = False
    while not over:
        exec(act, globals())
        total = hvd.allreduce(np.full(1000, state.step + 1.0), op=hvd.Sum, name="gradients")
        over = bool(hvd.allreduce(np.array([os.path.exists("end")], np.int32), op=hvd.Max, name="over")[0])
        state.weights = state.weights + total / hvd.size()
        state.step += 1
        done += 1
        time.sleep(0.01)
        state.commit()

run_fn(train, None)(state)
right = bool((state.weights == state.step * (state.step + 1) / 2).all())
print("finished", worker, hvd.rank(), hvd.size(), state.step, done, right, flush=True)
"""


class ElasticJob(Job):
    """A Job of SCRIPT. `hosts`: what the discovery script prints; None: there is no such script."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        act: str = "",
        hosts: str | None = None,
        env: Mapping[str, str] | None = None,
        script: str = SCRIPT,
        **others: Any,
    ) -> None:
        self.directory = directory
        self._newest, self._entered = 0, cast("dict[int, dict[int, str]]", {})
        (directory / "train.py").write_text(script)
        flags: list[str] = [*arguments]
        if hosts is not None:
            self.set_hosts(hosts)
            discovery = directory / "hosts.sh"
            discovery.write_text("#!/bin/sh\ncat hosts\n")
            discovery.chmod(0o755)
            flags += ["--host-discovery-script", str(discovery)]
        environment = {"OMP_NUM_THREADS": "1", "ACT": act, "HOROVOD_ELASTIC_SETTLE_SECONDS": "0.3", **(env or {})}
        super().__init__(directory, *flags, [sys.executable, "train.py"], env=environment, **others)

    def set_hosts(self, hosts: str) -> None:
        """What discovery finds from now on, `name:slots` with blanks between."""
        new = self.directory / "hosts.new"
        new.write_text("\n".join(hosts.split()) + "\n")
        new.rename(self.directory / "hosts")

    def wait_for_world(self, size: int) -> dict[int, int]:
        """Blocks until workers have entered a world of that size; their pids by worker."""
        pattern = rf"enter (\d+) \d+ {size} \d+ (\d+)"
        return {int(found[1]): int(found[2]) for found in self.wait_for_line(pattern, count=size)}

    def newest_world(self) -> tuple[int, dict[int, str]]:
        """The generation of the newest world that all its members have entered, and their hosts by worker.

        For scripts that begin with LEDGER. It reads the lines that wait_for_line would wait for.
        """
        while not self._lines["stdout"].empty():
            found = re.search(r"enter (\d+) \d+ (\d+) \d+ \d+ (\d+) (\S+)", self._lines["stdout"].get())
            if found:
                members = self._entered.setdefault(int(found[3]), {})
                members[int(found[1])] = found[4]
                if len(members) == int(found[2]):
                    self._newest = max(self._newest, int(found[3]))
        return self._newest, self._entered.get(self._newest, {})

    def workers(self) -> dict[int, int]:
        """The pids of all workers that run, here outside, also if a cluster's host calls them others."""
        found = {}
        for pid in self.pids():
            number = variable(pid, "HOROVOD_ELASTIC_WORKER")
            if number is not None:
                found[int(number)] = pid
        return found

    def pid_of(self, worker: int) -> int:
        return self.workers()[worker]

    def finish(self) -> str:
        """Lets the workers come to their end; what was printed. The job must succeed."""
        (self.directory / "end").touch()
        done = self.wait()
        assert done.code == 0, self.shown()
        finished = re.findall(r"finished \d+ \d+ (\d+) (\d+) \d+ (\w+)", done.stdout)
        assert finished and {right for _, _, right in finished} == {"True"}, self.shown()
        assert len(finished) == int(finished[0][0]) and len({step for _, step, _ in finished}) == 1, self.shown()
        return done.stdout + done.stderr


# What a history is made of: a line for each world that a worker enters, and one for each step that it takes. `items`:
# of a dataset, what the worker has taken in this step.
LEDGER = """
import json, os, time
from horovod.elastic.worker import session as sessions

worker = int(os.environ.get("HOROVOD_ELASTIC_WORKER", "-1"))
ledger = open(f"ledger.{worker}", "a", buffering=1)

def generation():
    session = sessions.current()
    return session.world.generation if session else 0

def note(**what):
    ledger.write(json.dumps({"generation": generation(), **what}) + "\\n")

def enter(step):
    host = os.environ["HOROVOD_HOSTNAME"]
    note(rank=hvd.rank(), host=host, begin=step)
    print("enter", worker, hvd.rank(), hvd.size(), step, os.getpid(), generation(), host, flush=True)

def took(step, epoch, items):
    note(step=step, epoch=epoch, items=items)
"""


class World(NamedTuple):
    """One of an elastic job's worlds: `ranks` on each host, and the steps of it that count, from `begin` on."""

    generation: int
    ranks: tuple[int, ...]
    begin: int
    end: int


def ledgers(directory: Path) -> list[dict[str, Any]]:
    """All lines of all workers' ledgers."""
    return [json.loads(line) for file in directory.glob("ledger.*") for line in file.read_text().splitlines()]


def history(entries: list[dict[str, Any]], end: int) -> list[World]:
    """The worlds in which something was done that was not undone, up to the step `end`."""
    entered: dict[int, dict[int, dict[str, Any]]] = collections.defaultdict(dict)
    for entry in entries:
        if "begin" in entry:
            entered[entry["generation"]][entry["rank"]] = entry
    # A world whose rank 0 was lost before it could begin has done nothing.
    generations = sorted(generation for generation, ranks in entered.items() if 0 in ranks)
    begins = [entered[generation][0]["begin"] for generation in generations]
    worlds = []
    for generation, begin, over in zip(generations, begins, [*begins[1:], end], strict=True):
        ranks = entered[generation]
        hosts = collections.Counter(ranks[rank]["host"] for rank in sorted(ranks))
        worlds.append(World(generation, tuple(hosts.values()), begin, over))
    return [world for world in worlds if world.begin < world.end]


def check_items(entries: list[dict[str, Any]], worlds: list[World], length: int) -> None:
    """Each item of each whole epoch counts once. Only what fills up the epoch's last step comes again."""
    counts = {world.generation: world for world in worlds}
    taken: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for entry in entries:
        world = counts.get(entry["generation"])
        if "step" in entry and world is not None and world.begin < entry["step"] <= world.end:
            taken[entry["epoch"]].update(entry["items"])
    last = max(taken)
    assert last > 1, taken
    for epoch, items in taken.items():
        again = items.total() - len(items)
        assert again < max(sum(world.ranks) for world in worlds), (epoch, items)
        assert epoch == last or set(items) == set(range(length)), epoch
