#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an elastic job stands still: after a loss, and while workers join.

    python benchmarks/elastic.py --samples 100 --json FILE                      # four workers on this machine
    python benchmarks/elastic.py --hosts 4 --ranks 2 --samples 10 --json FILE   # namespaces of this machine; needs root

Each sample is a job of its own, whose workers call small allreduces and commit after each. One worker is killed. `loss`
is the time from the kill until somebody has finished the first allreduce of the next world. The slot gets another
worker, which joins when it is ready. `join` is the longest time between two allreduces of a worker that was there
before. `full` is the time from the kill until all workers are there again, and one has finished an allreduce; with
`--spares` a worker in reserve takes the place at once, so `loss` is left out. With `--hosts`, the last host loses its
power then: `power_off` is as `loss`. `--state` megabytes are in the state: a world that has lost somebody, or has got
somebody, sends them.

    python benchmarks/elastic.py --calls --state 100 --json FILE

What commit() takes beyond one copy of the state, and check_host_updates(), with two workers and nothing to change.

    python benchmarks/elastic.py --torchrun --samples 10 --json FILE

The same loss with torchrun, taken in turns. It restarts all processes, and they meet by Gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.cluster import Cluster, Host  # noqa: E402
from support.elastic.elastic_jobs import LEDGER, ElasticJob, ledgers  # noqa: E402

HEAD = """
import numpy as np
import horovod.core as hvd
from horovod.elastic.worker.wrapper import run_fn
from horovod.torch.elastic_state import TorchState
import torch

hvd.init()
values = torch.nn.ParameterList([torch.zeros(max(1, int(float(os.environ["STATE_MB"]) * 250_000)))])
state = TorchState(values)
"""

CHANGES = (
    LEDGER
    + HEAD
    + """
before = None

def train(state):
    global before
    enter(0)
    first, over = True, False
    while not over:
        hvd.allreduce(np.ones(1000, np.float32), op=hvd.Sum, name="gradients")
        now = time.monotonic()
        if first:
            note(finished=now, before=before)
        first, before = False, now
        over = bool(hvd.allreduce(np.array([os.path.exists("end")], np.int32), op=hvd.Max, name="over")[0])
        time.sleep(0.002)
        state.commit() if STATE_MB == 0 else state.check_host_updates()

STATE_MB = float(os.environ["STATE_MB"])
run_fn(train, None)(state)
print("finished", worker, hvd.rank(), hvd.size(), 0, 0, True, flush=True)
"""
)

RESTARTS = """
import datetime, json, os, sys, time
import torch
import torch.distributed as dist

restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# torchrun's store outlives its processes: by the same names, restarted ones would find the addresses of those before.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group(
    "gloo",
    store=dist.PrefixStore(str(restarts), store),
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=datetime.timedelta(seconds=60),
)
ledger = open(f"ledger.{os.getpid()}", "a", buffering=1)
generation = restarts + 1
tensor, first = torch.ones(1000), True
over = torch.zeros(1)
while not over.item():
    dist.all_reduce(tensor)
    if first:
        what = {"generation": generation, "finished": time.monotonic(), "pid": os.getpid()}
        ledger.write(json.dumps(what) + "\\n")
    first = False
    over.fill_(os.path.exists("end"))
    dist.all_reduce(over)
    time.sleep(0.002)
"""

CALLS = (
    LEDGER
    + HEAD
    + """
def seconds(call, times):
    taken = []
    for _ in range(times):
        hvd.barrier()
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return taken

def train(state):
    copy = values[0].detach().clone()
    for _ in range(3):
        state.commit()
    taken = {
        "copy": seconds(lambda: copy.copy_(values[0].detach()), 30),
        "commit": seconds(state.commit, 30),
        "check_host_updates": seconds(state.check_host_updates, 3000),
    }
    note(rank=hvd.rank(), taken=taken)

run_fn(train, None)(state)
print("finished", worker, hvd.rank(), hvd.size(), 0, 0, True, flush=True)
"""
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=0, help="namespace hosts; 0: this machine")
    parser.add_argument("--ranks", type=int, default=4, help="on each host")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--state", type=float, default=0, help="size of the state in megabytes")
    parser.add_argument("--spares", type=int, default=0, help="workers in reserve")
    parser.add_argument("--torchrun", action="store_true", help="compare with torchrun")
    parser.add_argument("--calls", action="store_true", help="what calls take while nothing changes")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    options = parser.parse_args()
    measured = calls(options) if options.calls else changes(options)
    for name, seconds in measured.items():
        print(described(name, seconds), flush=True)
    if options.json:
        from horovod.bench.record import write_record

        facts = {name: getattr(options, name) for name in ("hosts", "ranks", "state", "spares")}
        write_record(options.json, ("python", "benchmarks/elastic.py"), {**facts, "seconds": measured})
    return 0


def described(name: str, seconds: list[float]) -> str:
    low, middle, high = (f"{1e3 * value:.3f}" for value in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{name}: median {middle} ms, {low} to {high}, {len(seconds)} times"


def changes(options: argparse.Namespace) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {}
    for number in range(options.samples):
        with places(options) as (folder, hosts):
            for name, seconds in sample(options, folder, hosts).items():
                measured.setdefault(name, []).append(seconds)
        if options.torchrun:
            with tempfile.TemporaryDirectory() as folder_of_torchrun:
                seconds = restart(options.ranks, Path(folder_of_torchrun))
                measured.setdefault("torchrun", []).append(seconds)
        print(f"\r{number + 1} of {options.samples}", end="", flush=True)
    print()
    return measured


@contextlib.contextmanager
def places(options: argparse.Namespace) -> Iterator[tuple[Path, list[Host]]]:
    """An empty folder, and hosts that share it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hosts: list[Host] = []
        if options.hosts:
            cluster = Cluster(options.hosts + 1, shared=[folder])  # one more, for horovodrun
            hosts = stack.enter_context(cluster)
            cluster.trust()
        yield Path(folder), hosts


def job_of(options: argparse.Namespace, folder: Path, hosts: list[Host], count: int, script: str) -> ElasticJob:
    listed = ",".join(f"{host.name}:{options.ranks}" for host in hosts[:-1]) or f"localhost:{count}"
    env = {"STATE_MB": str(options.state), "HOROVOD_ELASTIC_BLAME": "worker", "HOME": str(folder)}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    flags = ["-np", str(count), "--min-np", "1", "-H", listed]
    if options.spares:
        flags[-1] = f"localhost:{count + options.spares}"
        flags += ["--max-np", str(count), "--spares", str(options.spares)]
    return ElasticJob(folder, *flags, script=script, env=env, on=hosts[-1] if hosts else None)


def sample(options: argparse.Namespace, folder: Path, hosts: list[Host]) -> dict[str, float]:
    count = options.ranks * max(1, options.hosts)
    taken = {}
    with job_of(options, folder, hosts, count, CHANGES) as job:
        generation = wait_for_world(job, 1, count)
        if options.spares:
            job.wait_for_text("waits in reserve")
        time.sleep(random.uniform(0.1, 0.3))
        victim = job.pid_of(random.randrange(count))
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        if not options.spares:
            generation = wait_for_world(job, generation + 1, count - 1)
            taken["loss"] = min(one["finished"] for one in begun(job, generation)) - begin
        generation = wait_for_world(job, generation + 1, count)
        taken["full"] = min(one["finished"] for one in begun(job, generation)) - begin
        taken["join"] = max(one["finished"] - one["before"] for one in begun(job, generation) if one["before"])
        if hosts:
            begin = time.monotonic()
            hosts[-2].power_off()
            generation = wait_for_world(job, generation + 1, count - options.ranks)
            taken["power_off"] = min(one["finished"] for one in begun(job, generation)) - begin
        job.finish()
    return taken


def wait_for_world(job: ElasticJob, generation: int, size: int) -> int:
    """The first generation from this one on that has so many members, and has begun to train."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        newest, members = job.newest_world()
        if newest >= generation and len(members) == size and len(begun(job, newest)) == size:
            return newest
        time.sleep(0.01)
    raise RuntimeError(f"no world of {size} workers came\n{job.shown()}")


def restart(count: int, folder: Path) -> float:
    """From the kill of a torchrun worker until a restarted one has finished an allreduce."""
    (folder / "train.py").write_text(RESTARTS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*torchrun, f"--nproc-per-node={count}", "train.py"], cwd=folder, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        first = restarted(folder, 1, count)
        time.sleep(random.uniform(0.1, 0.3))
        begin = time.monotonic()
        os.kill(random.choice(first)["pid"], signal.SIGKILL)
        finished = min(one["finished"] for one in restarted(folder, 2, count))
        (folder / "end").touch()
        if process.wait(60) != 0:
            raise RuntimeError("torchrun has failed")
    return float(finished - begin)


def restarted(folder: Path, generation: int, count: int) -> list[dict[str, Any]]:
    """What the processes of that generation have noted, once all have."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        noted = [one for one in ledgers(folder) if one["generation"] == generation]
        if len(noted) == count:
            return noted
        time.sleep(0.01)
    raise RuntimeError(f"not all of generation {generation} have come")


def begun(job: ElasticJob, generation: int) -> list[dict[str, Any]]:
    """What the workers of a world have noted after their first allreduce there."""
    return [one for one in ledgers(job.directory) if one["generation"] == generation and "finished" in one]


def calls(options: argparse.Namespace) -> dict[str, list[float]]:
    options.ranks = 2
    with places(options) as (folder, hosts):
        with job_of(options, folder, hosts, 2, CALLS) as job:
            job.finish()
        (first,) = [one["taken"] for one in ledgers(folder) if one.get("rank") == 0 and "taken" in one]
        measured: dict[str, list[float]] = first
        return measured


if __name__ == "__main__":
    raise SystemExit(main())
