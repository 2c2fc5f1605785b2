# SPDX-License-Identifier: Apache-2.0
"""The compute job of TensorFlow's data service in Spark tasks: as many workers as Spark's default parallelism.

`python -m horovod.spark.tensorflow.compute_worker CONFIG` is the driver. It writes CONFIG, which the training job
reads, and runs until that calls shutdown().
"""

from __future__ import annotations

import contextlib
import socket

import horovod.spark
from horovod.core import basics
from horovod.settings import Settings
from horovod.spark.connect import Session, active_session
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn
from horovod.tensorflow.data.compute_worker import check, compute_job, parsed
from horovod.world.network import interface_address

__all__ = ["main"]

_NAME = "horovod.spark.tensorflow.compute_worker"


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Runs the job, in the driver. The arguments are those of horovod.tensorflow.data.compute_worker."""
    session = active_session(_NAME)
    size = session.default_size()
    check(size, dispatchers)
    with compute_job(size, dispatchers, dispatcher_side, configfile, timeout, _interface(session)) as config:
        horovod.spark.run(_work, args=(config,), num_proc=size)


def _work(config: TfDataServiceConfig) -> None:
    basics.init()
    compute_worker_fn(config)
    basics.shutdown()


def _interface(session: Session) -> str:
    """The network interface of the driver that executors and the training job reach; "" if all are on this machine."""
    named = Settings.from_environment().network_interface
    if named or session.is_on_this_machine:
        return named
    for _, name in socket.if_nameindex():
        with contextlib.suppress(ValueError):  # it has no address
            if not interface_address(name).startswith("127."):
                return name
    return ""


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    given = parsed(_NAME, " in Spark tasks")
    SparkSession.builder.appName(_NAME).getOrCreate()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
