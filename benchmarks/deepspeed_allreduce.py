#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums between the ranks of one host, beside DeepSpeed's operation in shared memory on the same tensors, in turns.

    horovodrun -np 2 python benchmarks/deepspeed_allreduce.py --sizes 64K,32M --json record.json

DeepSpeed compiles the operation at its first use, which needs a compiler, ninja and Python's headers.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any


def operation(hvd: Any) -> Any:
    """DeepSpeed's in-place sum of float32, over all ranks."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    with socket.socket() as chosen:  # a name of its memory that no other job has
        chosen.bind(("127.0.0.1", 0))
        name = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(chosen.getsockname()[1])}
        os.environ.update(hvd.broadcast_object(name, 0), LOCAL_SIZE=str(hvd.size()))
        # The first rank compiles, the others load what it made.
        for turn in range(2):
            if (hvd.rank() > 0) == turn:
                module = ShareMemCommBuilder().load(verbose=False)
            hvd.barrier()
        module.initialize(hvd.size(), hvd.rank())
    return torch.ops.deepspeed.inference_all_reduce_


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64K,1M,32M", help="bytes, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="paired rounds (15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="time to aim at for one side of a round (0.2)")
    parser.add_argument("--any-hop", action="store_true", help="write it even if the cache-line hop changed meanwhile")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    options = parser.parse_args()

    import horovod.torch as hvd
    from horovod.bench.__main__ import size_bytes
    from horovod.bench.allreduce import by_size
    from horovod.bench.record import Session

    session = Session(options.json, ("python", "benchmarks/deepspeed_allreduce.py"), options.any_hop)
    peers = {"deepspeed": operation(hvd)}
    session.begin("not wanted")
    by_size(
        session, [size_bytes(size) for size in options.sizes.split(",")], hvd, peers, options.rounds, options.seconds
    )
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
