# SPDX-License-Identifier: Apache-2.0
"""The program of a drill's ranks: python -m horovod.launcher.drill.rank JOB.

It tells run.py what happens, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import horovod.core as hvd
from horovod.core import context as contexts
from horovod.launcher.drill.links import Link, answer, measure, rounds
from horovod.settings import Settings
from horovod.world import network

__all__ = ["ELASTIC_STEPS", "LATE_S", "MARK"]

MARK = "horovod-drill "
LATE_S = 2.5
FAULT_STEP = 5
ELASTIC_STEPS = 40
_STEP_S = 0.02
_GPU_TIMEOUT_S = 20.0


def tell(**what: Any) -> None:
    """In one write: a rank may be killed right after it."""
    os.write(1, f"{MARK}{json.dumps(what)}\n".encode())


def checks() -> None:
    """Looks at the hosts, and at the links between each pair of them."""
    hvd.init()
    world = contexts.current().world
    hosts: list[list[int]] = []
    for host in dict.fromkeys(world.host_of_rank):
        hosts.append([rank for rank, its in enumerate(world.host_of_rank) if its == host])
    own = next(number for number, ranks in enumerate(hosts) if hvd.rank() in ranks)
    leads = hosts[own][0] == hvd.rank()
    secret = hvd.broadcast_object(os.urandom(32))
    listening = network.listening(_address()) if leads and len(hosts) > 1 else None
    facts = hvd.allgather_object(_facts(listening, len(hosts[own])) if leads else None)
    found: list[Link] = []
    for number, pairs in enumerate(rounds(len(hosts)), 1):
        for pair in pairs if leads else ():
            if own == pair[0]:
                found.append(measure(pair, facts[hosts[pair[1]][0]]["at"], secret))
            elif own == pair[1]:
                assert listening is not None
                answer(listening, secret)
        hvd.barrier()
        if hvd.rank() == 0:
            tell(progress=f"links: round {number} of {len(rounds(len(hosts)))}")
    links = [link for some in hvd.allgather_object(found) for link in some]
    if hvd.rank() == 0:
        tell(hosts=[facts[ranks[0]] for ranks in hosts], links=[vars(link) for link in links])


def _address() -> str:
    """The address of this host that data takes."""
    interface = Settings.from_environment().network_interface
    rendezvous = contexts.current().world.rendezvous
    if interface or rendezvous is None:
        return network.interface_address(interface) if interface else network.LOOPBACK
    return rendezvous.local_address()


def _facts(listening: socket.socket | None, ranks: int) -> dict[str, Any]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10
    return {
        "name": Settings.from_environment().hostname or socket.gethostname(),
        "ranks": ranks,
        "memory": available,
        "shm": shutil.disk_usage("/dev/shm").free,
        "gpus": _gpus(),
        "at": listening.getsockname()[:2] if listening is not None else None,
    }


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def kill() -> None:
    """The last rank is killed in the middle of training."""
    _train_until(lambda: os.kill(os.getpid(), signal.SIGKILL))


def freeze() -> None:
    """The last rank freezes."""
    _train_until(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def _train_until(fault: Callable[[], None]) -> None:
    hvd.init()
    step = 0
    while True:  # the job ends by the fault
        hvd.allreduce(np.ones(1000, np.float32), name="drill")
        time.sleep(_STEP_S)
        step += 1
        if step == FAULT_STEP and hvd.rank() == hvd.size() - 1:
            tell(fault=step)
            fault()


def late() -> None:
    """The last rank is late once."""
    hvd.init()
    for step in range(2 * FAULT_STEP):
        if step == FAULT_STEP and hvd.rank() == hvd.size() - 1:
            time.sleep(LATE_S)
        hvd.allreduce(np.ones(1000, np.float32), name="drill")
    if hvd.rank() == 0:
        waits = hvd.statistics()["arrivals"]["by_rank"]
        slowest = max(waits, key=lambda rank: waits[rank]["waited_s"], default=-1)
        tell(late=slowest, waited_s=waits[slowest]["waited_s"] if waits else 0.0)


def elastic() -> None:
    """The last worker is killed once; the others go on."""
    from horovod.core.objects import broadcast_object
    from horovod.elastic.state.state import ObjectState
    from horovod.elastic.worker.wrapper import run_fn

    worker = Settings.from_environment().worker
    hvd.init()
    first = hvd.size()  # of this worker's first world
    state: Any = ObjectState(broadcast_object, hvd.rank, step=0, sums=np.zeros(1000), losses=0)

    def train(state: Any) -> None:
        while state.step < ELASTIC_STEPS:
            if state.step == FAULT_STEP and worker == first - 1 and hvd.size() == first:
                tell(fault=state.step)
                os.kill(os.getpid(), signal.SIGKILL)
            state.sums = state.sums + hvd.allreduce(np.full(1000, state.step + 1.0), name="drill")
            state.step += 1
            time.sleep(_STEP_S)
            state.commit()

    run_fn(train, lambda: None)(state)
    if hvd.rank() == 0:
        right = bool((state.sums == ELASTIC_STEPS * (ELASTIC_STEPS + 1) / 2).all())
        tell(steps=state.step, right=right, size=hvd.size())


if __name__ == "__main__":
    {"checks": checks, "kill": kill, "freeze": freeze, "late": late, "elastic": elastic}[sys.argv[1]]()
