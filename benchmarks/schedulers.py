#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on Spark and Ray, and the data they read, beside what these have themselves. The sides take turns.

    spark   horovod.spark.run, and TorchDistributor: from the call to the end of the first allreduce, and from a rank's
            exception to the exception in the driver
    ray     RayExecutor and HorovodTrainer, and Ray Train's TorchTrainer: the same
    data    ParquetReader as tensors, and pyarrow that decodes the same files and does no more; the rows it has cached;
            transform of a TorchModel, and a function that Spark calls with each row

    .venv-schedulers/bin/python benchmarks/schedulers.py spark --rounds 5 --json FILE

Needs torch, and pyspark or ray. `spark` and `ray` use the machine's cores; a session is started before the first round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import horovod.torch as hvd
from horovod.bench.record import write_record

RANKS = 2
ROWS, WIDTH = 400_000, 32  # of the data set; 4 bytes a value
TRANSFORMED = 200_000
PROGRAM = ("python", "benchmarks/schedulers.py")


# Called in the ranks. Each raises on rank 1 if `raises`, and notes when.


def _end(rank: int, raises: str) -> float:
    if raises and rank == 1:
        Path(raises).write_text(repr(time.time()))
        raise KeyError("a bad sample")
    return time.time()


def ours(raises: str = "") -> float:
    hvd.init()
    hvd.allreduce(torch.ones(8), name="first")
    return _end(hvd.rank(), raises)


def gloo(raises: str = "") -> float:
    """In a process group of PyTorch's, which TorchDistributor leaves to the function."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.distributed.all_reduce(torch.ones(8))
    return _end(torch.distributed.get_rank(), raises)


def reported(function: Callable[[str], float]) -> Callable[[dict[str, str]], None]:
    """A training function of Ray Train's that notes when it had its first allreduce."""

    def train(config: dict[str, str]) -> None:
        ended = function(config["raises"])
        if not config["raises"]:
            Path(config["at"]).write_text(repr(ended))

    return train


Side = Callable[[str], float]  # with "", when the first allreduce had ended; else it raises


def timed(side: Side, folder: str) -> dict[str, float]:
    begun = time.time()
    started_s = side("") - begun
    raises = os.path.join(folder, "raised")
    try:
        side(raises)
    except Exception:
        return {"start": started_s, "error": time.time() - float(Path(raises).read_text())}
    raise RuntimeError("the driver did not get the rank's exception")


@contextmanager
def on_spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{RANKS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        session.sparkContext.parallelize(range(RANKS), RANKS).count()  # starts the Python workers
        yield session
    finally:
        session.stop()


def spark(rounds: int, folder: str) -> dict[str, dict[str, list[float]]]:
    import horovod.spark

    with on_spark():
        from pyspark.ml.torch.distributor import TorchDistributor

        def horovods(raises: str) -> float:
            return float(max(horovod.spark.run(ours, (raises,), num_proc=RANKS, verbose=0, stdout=NULL, stderr=NULL)))

        def distributors(raises: str) -> float:
            return float(TorchDistributor(RANKS, local_mode=False, use_gpu=False).run(gloo, raises))

        return in_turns({"horovod.spark.run": horovods, "TorchDistributor": distributors}, rounds, folder)


def on_ray(rounds: int, folder: str) -> dict[str, dict[str, list[float]]]:
    import ray
    import ray.train.torch

    from horovod.ray import HorovodTrainer, RayExecutor

    def executor(raises: str) -> float:
        ranks = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=RANKS)
        ranks.start()
        try:
            return float(max(ranks.run(ours, [raises])))
        finally:
            ranks.shutdown()

    def trainer(kind: Any, function: Callable[[str], float], raises: str) -> float:
        at = os.path.join(folder, "at")
        kind(
            reported(function),
            train_loop_config={"at": at, "raises": raises},
            scaling_config=ray.train.ScalingConfig(num_workers=RANKS),
            run_config=ray.train.RunConfig(storage_path=folder),
        ).fit()
        return float(Path(at).read_text())

    ray.init(num_cpus=RANKS + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    sides: dict[str, Side] = {
        "RayExecutor": executor,
        "HorovodTrainer": lambda raises: trainer(HorovodTrainer, ours, raises),
        "TorchTrainer": lambda raises: trainer(ray.train.torch.TorchTrainer, gloo, raises),
    }
    try:
        return in_turns(sides, rounds, folder)
    finally:
        ray.shutdown()


def in_turns(sides: dict[str, Side], rounds: int, folder: str) -> dict[str, dict[str, list[float]]]:
    """Seconds by side: `start` and `error`. The first round, in which modules come from the disk, is left out."""
    times: dict[str, dict[str, list[float]]] = {name: {"start": [], "error": []} for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            for what, seconds in timed(side, folder).items():
                if number:
                    times[name][what].append(seconds)
    return times


def data(rounds: int, folder: str) -> dict[str, dict[str, list[float]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from horovod.data import ParquetReader, to_torch
    from horovod.data.parquet import to_numpy

    values = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)
    table = pa.table({"features": column, "label": pa.array(np.arange(ROWS))})
    path = os.path.join(folder, "data.parquet")
    pq.write_table(table, path, row_group_size=ROWS // 16)

    def epoch(reader: ParquetReader) -> None:
        rows = sum(len(batch["label"]) for batch in to_torch(reader))
        assert rows == ROWS, rows

    def floor() -> None:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            read = file.read_row_group(group, use_threads=False)
            for name in read.column_names:
                to_numpy(read.column(name), name, path, 0)

    def fresh() -> None:
        with ParquetReader(path, batch_size=1024, shuffle=False, threads=1) as reader:
            epoch(reader)

    with ParquetReader(path, batch_size=1024, shuffle=True, cache="memory") as cached, on_spark() as session:
        epoch(cached)  # fills the cache
        sides = {"decoding alone": floor, "reader": fresh, "cached and shuffled": lambda: epoch(cached)}
        return rates({**sides, **transforms(session, values[:TRANSFORMED])}, rounds)


def transforms(session: Any, values: np.ndarray[Any, Any]) -> dict[str, Callable[[], None]]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import FloatType

    from horovod.spark.torch import TorchModel

    frame = session.createDataFrame([(row.tolist(), 0.0) for row in values], "features array<float>, label float")
    frame = frame.repartition(RANKS).cache()
    assert frame.count() == TRANSFORMED
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    ours = TorchModel(model=model, feature_columns=["features"], label_columns=["label"], input_shapes=[[-1, WIDTH]])

    def row(features: list[float]) -> float:
        with torch.no_grad():
            return float(model(torch.tensor([features])))

    by_row = F.udf(row, FloatType())

    def by_rows() -> None:
        total(frame.select(by_row("features").alias("label__output")))

    def total(result: Any) -> None:
        assert result.agg(F.count("label__output")).first()[0] == TRANSFORMED

    return {"transform": lambda: total(ours.transform(frame)), "a row at a time": by_rows}


def rates(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Rows a second, by side."""
    found: dict[str, dict[str, list[float]]] = {name: {"rows/s": []} for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            begun = time.perf_counter()
            side()
            rows = TRANSFORMED if name in ("transform", "a row at a time") else ROWS
            if number:
                found[name]["rows/s"].append(rows / (time.perf_counter() - begun))
    return found


class _Null:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


NULL = _Null()
PARTS = {"spark": spark, "ray": on_ray, "data": data}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first one (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = PARTS[arguments.part](arguments.rounds, folder)
    for name, figures in found.items():
        texts = [f"{what} {statistics.median(values):,.2f}" for what, values in figures.items()]
        print(f"{name:>20}  {'  '.join(texts)}", flush=True)
    if arguments.json:
        write_record(arguments.json, PROGRAM, {"ranks": RANKS, "rows": ROWS, "width": WIDTH, "found": found})
        print(f"record written to {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
