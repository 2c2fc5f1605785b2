# SPDX-License-Identifier: Apache-2.0
"""tools/cpu/ranks.py WHAT: steps of tools/cpu/check.

Each writes its result to the file that HVD_CHECK_RESULT names.

    install FOLDER WHEEL...  a fresh environment in FOLDER with these wheels, which also has what this Python has
    facts                    the machine, the versions, how many cores a process may use
    values NP                starts NP ranks, twice: every operation beside NumPy; sums of float32 have equal bits on
                             all ranks and in both runs
    bandwidth CORES          bytes a second of copy and add by 1, 2, 4, ... threads, on arrays larger than caches
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

QUICK = bool(os.environ.get("HVD_CHECK_QUICK"))
EPSILON = float(np.finfo(np.float32).eps)


def install(folder: str, *wheels: str) -> Any:
    shutil.rmtree(folder, ignore_errors=True)
    # The environment has no pip of its own: it uses that of this Python.
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", folder], check=True)
    python = os.path.join(folder, "bin", "python")
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", purelib], check=True, capture_output=True, text=True).stdout.strip()
    # "System" is the Python below; packages of an environment that this one is are added.
    others = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    Path(packages, "beside.pth").write_text("".join(f"import site; site.addsitedir({one!r})\n" for one in others))
    options = ["--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *options, *wheels], check=True)
    return {Path(wheel).name: hashlib.sha256(Path(wheel).read_bytes()).hexdigest() for wheel in wheels}


def facts() -> Any:
    import cloudpickle  # Horovod needs it besides NumPy

    import horovod
    from horovod.launcher.host.threads import usable_cores
    from horovod.world.machine import machine, packages

    lscpu = shutil.which("lscpu")
    return {
        "horovod": horovod.__version__,
        "folders": [str(Path(package.__file__).parent) for package in (horovod, cloudpickle)],
        "machine": machine(),
        "packages": packages(),
        "deepspeed": next((d.version for d in importlib.metadata.distributions(name="deepspeed")), None),
        "cores": usable_cores(),
        "lscpu": subprocess.run([lscpu], capture_output=True, text=True).stdout.splitlines() if lscpu else None,
    }


def values(ranks: str) -> Any:
    results = []
    for _ in range(2):
        result = Path(os.environ["HVD_CHECK_RESULT"])
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", "horovod.launcher", "-np", ranks, sys.executable, __file__, "rank"]
        subprocess.run(command, check=True)
        results.append(json.loads(result.read_text()))
        if results[-1]["wrong"]:
            return results[-1]
    first, second = results
    again = second["bits"]
    differ = [f"{n} values: other bits in the second run" for n, digest in first["bits"].items() if digest != again[n]]
    return {"ranks": first["ranks"], "wrong": differ, "bits": first["bits"]}


def rank() -> Any:
    """A rank of `values`."""
    try:
        from values import wrong_values_of_torch as wrong_values

        import horovod.torch as hvd
    except ImportError:
        from values import wrong_values_of_numpy as wrong_values

        import horovod.core as hvd

    hvd.init()
    wrong, bits = wrong_values(hvd), {}
    for count in (1, 1001, 65_537, (1 << 20) + 3, *([] if QUICK else [(8 << 20) + 1])):
        total, complaint = sum_of_noise(hvd, count)
        wrong += [complaint] if complaint else []
        everywhere = hvd.allgather_object(hashlib.sha256(total.tobytes()).hexdigest())
        if len(set(everywhere)) > 1:
            wrong.append(f"{count} values: other bits on some ranks, {everywhere}")
        bits[count] = everywhere[0]
    wrong = [f"rank {rank}: {what}" for rank, told in enumerate(hvd.allgather_object(wrong)) for what in told]
    return {"ranks": hvd.size(), "wrong": wrong, "bits": bits} if hvd.rank() == 0 else None


def sum_of_noise(hvd: Any, count: int) -> tuple[Any, str]:
    """A float32 sum of numbers whose order of additions shows, and on rank 0 what is wrong with it."""

    def noise(rank: int) -> Any:
        return np.random.default_rng((count, rank)).standard_normal(count, np.float32)

    mine = noise(hvd.rank())
    if hvd.__name__ == "horovod.torch":
        import torch

        total = hvd.allreduce(torch.from_numpy(mine), op=hvd.Sum, name=f"noise.{count}").numpy()
    else:
        total = hvd.allreduce(mine, op=hvd.Sum, name=f"noise.{count}")
    if hvd.rank() > 0:
        return total, ""
    exact, most = np.zeros(count), np.zeros(count)
    for rank in range(hvd.size()):
        one = noise(rank).astype(np.float64)
        exact, most = exact + one, most + np.abs(one)
    off = int(np.sum(np.abs(total - exact) > hvd.size() * EPSILON * most))
    return total, f"{off} of {count} sums are further from NumPy's than rounding explains" if off else ""


def bandwidth(cores: str) -> Any:
    count = (4 << 20) if QUICK else (64 << 20)  # of float64: 512 MiB an array
    a, b, c = (np.empty(count) for _ in range(3))
    counted = {"copy": 16 * count, "add": 24 * count}  # as STREAM does: what is read and what is written
    most, rows = int(cores), []
    for threads in sorted({1 << power for power in range(most.bit_length())} | {most}):
        bounds = np.linspace(0, count, threads + 1).astype(int)
        parts = [slice(begin, end) for begin, end in itertools.pairwise(bounds)]
        in_threads(parts, lambda part: [x.__setitem__(part, 1.0) for x in (a, b, c)])  # the pages are near them
        jobs: dict[str, Callable[[slice], Any]] = {
            "copy": lambda part: np.copyto(c[part], a[part]),
            "add": lambda part: np.add(a[part], b[part], out=c[part]),
        }
        seconds = {name: [in_threads(parts, job) for _ in range(3 if QUICK else 7)] for name, job in jobs.items()}
        gigabytes = {f"{name}_gb_s": round(counted[name] / min(taken) / 1e9, 2) for name, taken in seconds.items()}
        rows.append({"threads": threads, **gigabytes, "seconds": seconds})
    return {"bytes_of_an_array": 8 * count, "rows": rows}


def in_threads(parts: list[slice], job: Callable[[slice], Any]) -> float:
    """Seconds from the moment that all threads are there until the last one is done."""
    meeting = threading.Barrier(len(parts) + 1)

    def work(part: slice) -> None:
        meeting.wait()
        job(part)
        meeting.wait()

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    meeting.wait()
    began = time.perf_counter()
    meeting.wait()
    seconds = time.perf_counter() - began
    for thread in threads:
        thread.join()
    return seconds


def main(what: str, *more: str) -> int:
    steps = {"install": install, "facts": facts, "values": values, "rank": rank, "bandwidth": bandwidth}
    result = steps[what](*more)
    if result is not None:
        Path(os.environ["HVD_CHECK_RESULT"]).write_text(json.dumps(result))
        print(json.dumps(result), flush=True)
    return 1 if what == "values" and result["wrong"] else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(*sys.argv[1:]))
