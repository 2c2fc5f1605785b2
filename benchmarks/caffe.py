# SPDX-License-Identifier: Apache-2.0
"""Images a second of nets from Caffe's files, and of the same nets in plain PyTorch, both with SGD and momentum.

    OMP_NUM_THREADS=1 python benchmarks/caffe.py [--batch 16] [--rounds 7] [--json FILE]

Both train on the same images in one process, turn by turn. A ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from caffe_nets import NETS

from horovod.bench.record import write_record
from horovod.caffe import Solver
from horovod.caffe.log import Log

RATE, MOMENTUM, DECAY = 0.001, 0.9, 0.0005


def caffe_step(name: str, batch: int) -> Callable[[], None]:
    """One iteration of the net from files."""
    text, _, size = NETS[name]
    shapes = f"shape {{ dim: {batch} dim: 3 dim: {size} dim: {size} }} shape {{ dim: {batch} }}"
    data = f'layer {{ name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {{ {shapes} }} }}'
    folder = Path(tempfile.mkdtemp())
    (folder / "net.prototxt").write_text(text(data), encoding="utf-8")
    settings = f'base_lr: {RATE} momentum: {MOMENTUM} weight_decay: {DECAY} lr_policy: "fixed" max_iter: 1000000'
    solver = folder / "solver.prototxt"
    solver.write_text(f'net: "{folder}/net.prototxt" {settings} solver_mode: CPU', encoding="utf-8")
    trained = Solver(str(solver), log=Log(speaks=False))
    return lambda: trained.step(1) and None


def plain_step(name: str, batch: int) -> Callable[[], None]:
    """One iteration of the net in plain PyTorch."""
    _, make, size = NETS[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    images, labels = torch.zeros(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for name in options.nets.split(","):
        steps = {"caffe": caffe_step(name, options.batch), "plain": plain_step(name, options.batch)}
        for step in steps.values():  # warm-up
            step()
        times: dict[str, list[float]] = {side: [] for side in steps}
        for turn in range(options.rounds):
            for side in list(steps)[:: -1 if turn % 2 else 1]:  # each is the first in every other round
                times[side].append(seconds(steps[side]))
        speeds = {side: options.batch / statistics.median(found) for side, found in times.items()}
        ratio = statistics.median(b / a for a, b in zip(times["caffe"], times["plain"], strict=True))
        shown = "  ".join(f"{side} {speed:7.2f} img/s" for side, speed in speeds.items())
        print(f"{name:>10}  {shown}  ratio {ratio:.3f}")
        rows.append({"net": name, "batch": options.batch, "seconds": times, "ratio": ratio})
    if options.json:
        program = ["python", "benchmarks/caffe.py"]
        write_record(options.json, program, {"rows": rows})


if __name__ == "__main__":
    main()
