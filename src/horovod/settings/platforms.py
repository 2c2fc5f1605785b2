# SPDX-License-Identifier: Apache-2.0
"""The settings of jobs that another system starts: a part of the table in table.py."""

from __future__ import annotations

import dataclasses

from horovod.settings import kinds
from horovod.settings.kinds import setting

__all__ = ["PlatformSettings"]


@dataclasses.dataclass(frozen=True)
class PlatformSettings:
    """horovod.spark.run reads them in the driver, and sets the last two for its ranks."""

    spark_start_timeout_s: float = setting(
        "HOROVOD_SPARK_START_TIMEOUT",
        kinds.number(0.1),
        600.0,
        "How long horovod.spark.run waits until all of its Spark tasks run, in seconds; its argument start_timeout "
        "goes before.",
    )
    spark_local_rank_gpu: bool = setting(
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
        kinds.switch(),
        False,
        "horovod.spark.run leaves CUDA_VISIBLE_DEVICES as it is, whatever GPUs Spark gave its tasks: a rank takes the "
        "GPU of its local rank.",
    )
    spark_supervisor: str = setting(
        "HOROVOD_SPARK_SUPERVISOR",
        kinds.choice("driver", "task"),
        "driver",
        "Where a job of horovod.spark.run is supervised. driver: all tasks connect to the driver. task: in task 0; "
        "output and results come through Spark, at the end.",
    )
    spark_devices: str = setting(
        "HOROVOD_SPARK_DEVICES",
        kinds.text(),
        "",
        "Set by horovod.spark.run: the addresses of the GPUs that Spark gave the task of this rank, with commas.",
    )
    spark_rows: str = setting(
        "HOROVOD_SPARK_ROWS",
        kinds.text(),
        "",
        "Set by horovod.spark.run_on_dataframe: the folder of the rows of this rank.",
    )
