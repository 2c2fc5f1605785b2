#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums through MPI: ours, beside mpi4py's own Allreduce on the same buffers, in turns.

    mpirun -np 2 python benchmarks/mpi.py --sizes 1M,16M,64M --json record.json
    python benchmarks/mpi.py --hosts 2 --mpi mpich --sizes 1M,16M,64M --json record.json

Both sum float32 in place. Ours also agrees with the other ranks on what runs, and can be left if a rank is lost. With
`--over tcp`, ours goes over our own links; with `--over shm`, through our shared memory. With `--hosts`, the program
starts itself: one rank on each of so many hosts, which are namespaces of this machine (tests/support/cluster.py; needs
root, and `make install-mpi`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1M,16M,64M", help="bytes, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="paired rounds (15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="time to aim at for one side of a round (0.2)")
    parser.add_argument("--over", choices=("mpi", "tcp", "shm"), default="mpi", help="what carries our data (mpi)")
    parser.add_argument("--hosts", type=int, default=0, help="start one rank on each of so many hosts")
    parser.add_argument("--mpi", choices=("mpich", "openmpi", "openmpi4", "intel"), default="openmpi", help="by it")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    parser.add_argument("--any-hop", action="store_true", help="write it even if the cache-line hop changed meanwhile")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return run_rank(options) if options.rank or options.hosts == 0 else start(options)


def start(options: argparse.Namespace) -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.cluster import Cluster
    from support.started import mpi

    with tempfile.TemporaryDirectory() as folder:
        made = Cluster(options.hosts, shared=[folder])
        with made as hosts:
            made.trust()
            names = [host.name for host in hosts]
            slots = ["-hosts", ",".join(names), "-ppn", "1"]
            if options.mpi.startswith("openmpi"):
                slots = ["-H", ",".join(f"{name}:1" for name in names), "-x", "HOME"]
            mpirun, python = mpi(options.mpi)
            program = [python, "benchmarks/mpi.py", *sys.argv[1:], "--rank"]
            command = hosts[0].command(*mpirun, "-np", str(options.hosts), *slots, *program, directory=ROOT)
            return subprocess.run(command, env={**os.environ, "HOME": folder}).returncode


def run_rank(options: argparse.Namespace) -> int:
    if options.over == "shm":
        os.environ["HOROVOD_TRANSPORT"] = "shm"
    else:
        os.environ["HOROVOD_CPU_OPERATIONS"] = options.over
    from mpi4py import MPI

    import horovod.core as hvd
    from horovod.bench.__main__ import size_bytes
    from horovod.bench.allreduce import by_size
    from horovod.bench.record import Session
    from horovod.world.mpi import library_name

    session = Session(options.json, ("python", "benchmarks/mpi.py"), options.any_hop)
    comm = MPI.COMM_WORLD.Dup()
    session.begin(f"not wanted; {library_name(MPI)}")
    peers = {"mpi4py": lambda tensor: comm.Allreduce(MPI.IN_PLACE, tensor, op=MPI.SUM)}
    by_size(
        session, [size_bytes(size) for size in options.sizes.split(",")], hvd, peers, options.rounds, options.seconds
    )
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
