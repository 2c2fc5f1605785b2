# SPDX-License-Identifier: Apache-2.0
"""Horovod on Spark: each rank runs in a Spark task (docs/spark.md). No step of a gradient's way."""

from horovod.core.missing import watch
from horovod.spark import conf
from horovod.spark.dataframe import run_on_dataframe
from horovod.spark.horovod_runner import HorovodRunner
from horovod.spark.runner import run, run_elastic

__all__ = ["HorovodRunner", "conf", "run", "run_elastic", "run_on_dataframe"]

watch(__name__)
