# SPDX-License-Identifier: Apache-2.0
"""A training job whose compute is emulated by sleep. Argument: a JSON file with the step; rank 0 prints its seconds."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import horovod.core as hvd

STEPS = 8
step = json.loads(Path(sys.argv[1]).read_text())
hvd.init()
gradients = [np.ones(size // 4, np.float32) for size in step["bytes"]]
seconds = []
for number in range(STEPS):
    hvd.barrier()
    begin = time.perf_counter()
    handles = []
    for index, ready in enumerate(step["ready_s"]):
        time.sleep(max(0.0, begin + ready - time.perf_counter()))
        handles.append(hvd.allreduce_async_(gradients[index], name=f"gradient.{index}"))
    time.sleep(max(0.0, begin + step["compute_s"] - time.perf_counter()))
    for handle in handles:
        hvd.synchronize(handle)
    hvd.barrier()
    if number > 1:
        seconds.append(time.perf_counter() - begin)
if hvd.rank() == 0:
    print("median", statistics.median(seconds), flush=True)
