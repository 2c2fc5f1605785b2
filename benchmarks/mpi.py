#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums through MPI: ours, beside mpi4py's own Allreduce on the same buffers, in turns.

    mpirun -np 2 python benchmarks/mpi.py --sizes 1M,16M,64M --json record.json

Both sum float32 in place. Ours also agrees with the other ranks on what runs, and can be left if a rank is lost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

os.environ.setdefault("HOROVOD_CPU_OPERATIONS", "mpi")

from mpi4py import MPI

import horovod.core as hvd
from horovod.bench.__main__ import size_bytes
from horovod.bench.paired import RATIO_NOTE, Buffers, measure, ratio
from horovod.bench.record import Session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1M,16M,64M", help="bytes, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="paired rounds (15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="time to aim at for one side of a round (0.2)")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    arguments = parser.parse_args()
    session = Session(arguments.json)
    comm = MPI.COMM_WORLD.Dup()
    session.begin(f"not wanted; {MPI.Get_library_version().splitlines()[0]}")
    session.print(f"{'bytes':>12} {'hvd us':>12} {'mpi4py us':>12} {'mpi4py/hvd':>11}")
    for size in map(size_bytes, arguments.sizes.split(",")):
        buffers = Buffers([size // 4])
        (tensor,) = buffers.tensors
        sides = {
            "hvd": lambda: hvd.allreduce_(tensor, name=f"bench.{size}", op=hvd.Sum),  # noqa: B023
            "mpi4py": lambda: comm.Allreduce(MPI.IN_PLACE, tensor, op=MPI.SUM),  # noqa: B023
        }
        row = {"bytes": size, **measure(buffers, sides, arguments.rounds, arguments.seconds)}
        session.rows.append(row)
        medians = [statistics.median(row["seconds"][side]) * 1e6 for side in sides]
        session.print(f"{size:>12} {medians[0]:>12.1f} {medians[1]:>12.1f} {ratio(row['seconds'], 'mpi4py'):>11.2f}")
    session.print(RATIO_NOTE)
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
