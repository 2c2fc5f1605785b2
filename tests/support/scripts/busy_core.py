# SPDX-License-Identifier: Apache-2.0
"""Runs a script on one core, for tools/try-verdicts: `busy_core.py RANK SCRIPT ARGUMENT...`.

The ranks share the cores evenly, and each computes a part of its time. On the core of rank RANK another program
computes all of the time.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
import time

busy_rank, rank, size = int(sys.argv[1]), int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
cores = sorted(os.sched_getaffinity(0))
# The busy rank has a core of its own, but for that other program.
core = cores[0] if rank == busy_rank else cores[1 + rank % (len(cores) - 1)]
os.sched_setaffinity(0, {core})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if rank == busy_rank else None


def slow_sleep(seconds: float) -> None:
    end = time.thread_time() + seconds / 3
    while threading.current_thread() is threading.main_thread() and time.thread_time() < end:
        pass
    sleep(seconds * 2 / 3)


sleep, time.sleep = time.sleep, slow_sleep
sys.argv = sys.argv[2:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    if other is not None:
        other.kill()
