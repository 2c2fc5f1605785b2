# SPDX-License-Identifier: Apache-2.0
"""tools/gpu/direct.py RANKS: a step of tools/gpu/check. Allreduce beside direct calls of NCCL, by bench_gpu
(benchmarks/native/gpu.cc) from build/gpu or build/native. If it is not built, the step is "not run"."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, MOST_MIB = ("3", "1") if os.environ.get("HVD_CHECK_STAND_IN") else ("15", "1024")


def main(ranks: str) -> None:
    from horovod.core import gpus, native

    built = [path for place in ("gpu", "native") if (path := ROOT / "build" / place / "bench_gpu").exists()]
    if not built:
        Path(os.environ["HVD_CHECK_RESULT"]).write_text(json.dumps({"not run": "bench_gpu is not built"}))
        return
    nccl = os.environ.get("HOROVOD_NCCL_LIBRARY") or gpus.nccl_found()
    command = [str(built[0]), str(native.library_path()), nccl, os.environ["HVD_CHECK_RESULT"], ranks, ROUNDS, MOST_MIB]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
