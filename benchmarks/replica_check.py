#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of hvd.check_replicas for a model of PyTorch on the CPU, by its size; what is equal on all ranks.

    horovodrun -np 2 python benchmarks/replica_check.py --json benchmarks/records/replica-check-np2.json

A round's times, of the clock and of the processor, are those of the slowest rank. The median of the rounds is shown,
and divided by the bytes. On a machine with other work, only the processor's time says something.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import horovod.torch as hvd
from horovod.bench.record import Session

_TENSORS = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64, 512], help="sizes of the models")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each size (9)")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    arguments = parser.parse_args()
    session = Session(arguments.json, ("python", "benchmarks/replica_check.py"))
    session.begin("it does no such thing")
    for mib in arguments.mib:
        elements = (mib << 20) // 4 // _TENSORS
        tensors = [(f"parameter.{number}", torch.ones(elements)) for number in range(_TENSORS)]
        rounds_s = []
        for _ in range(arguments.rounds):
            hvd.barrier()
            start = np.array([time.perf_counter(), time.process_time()])
            hvd.check_replicas(tensors)
            own = np.array([time.perf_counter(), time.process_time()]) - start
            rounds_s.append(hvd.allreduce(torch.from_numpy(own), op=hvd.Max, name="slowest").tolist())
        seconds, processor_s = (statistics.median(column) for column in zip(*rounds_s, strict=True))
        session.rows.append({"mib": mib, "seconds": seconds, "processor_s": processor_s, "rounds_s": rounds_s})
        per_gib = processor_s * 1e3 * 1024 / mib
        session.print(f"{mib} MiB in {_TENSORS} tensors: {seconds * 1e3:.2f} ms; of a core {per_gib:.0f} ms per GiB")
    return session.end()


if __name__ == "__main__":
    raise SystemExit(main())
