# SPDX-License-Identifier: Apache-2.0
"""Runs in a Spark task: starts the launcher's agent, which holds the rank, and carries its orders and events.

The rank is not a process of the Spark worker's group: what Spark kills, it kills at once, and the agent ends its rank
in order when its connection has gone.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from collections.abc import Iterator
from typing import Any

from horovod.launcher.placement.joined import bring
from horovod.settings import current_environment, environment_of
from horovod.world.channel import ChannelError
from horovod.world.network import machine

__all__ = ["relay"]


def relay(
    index: int,
    addresses: list[str],
    port: int,
    secret: bytes,
    elastic: bool,
    unreachable: str,
    rows: Iterator[Any] | None = None,
) -> None:
    """Returns when the rank has ended, however it did: the job's supervisor knows.

    Raises RuntimeError if that cannot be reached; `unreachable`: its name, with a place for the reason. `elastic`: the
    task is a host of its own, whose ranks see the GPUs of this task alone. `rows`: the record batches of the task's
    partition, which are written to the local disk first.
    """
    from pyspark import SparkFiles, TaskContext

    context: Any = TaskContext.get()
    gpus = context.resources().get("gpu")
    environment = current_environment()
    said = {
        "index": index,
        "attempt": context.attemptNumber(),
        "hostname": socket.gethostname(),
        "machine": machine(),
        "executor": os.getppid(),  # the process of this executor that starts its Python workers
        "python": f"{sys.executable} (Python {platform.python_version()})",
        "gpus": list(gpus.addresses) if gpus is not None else [],
        "visible_gpus": environment.get("CUDA_VISIBLE_DEVICES"),
    }
    if elastic and gpus is not None:
        environment |= environment_of(spark_devices=",".join(gpus.addresses))
        environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus.addresses))
    # The files of sc.addPyFile and --py-files, which Spark puts on the path of its own workers alone.
    shipped = [path for path in sys.path if path.startswith(SparkFiles.getRootDirectory())]
    if shipped:
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*shipped, *([known] if known else [])])
    try:
        with contextlib.ExitStack() as stack:
            if rows is not None:
                from horovod.spark.task.rows import written

                found = stack.enter_context(written(rows, index))
                environment |= environment_of(spark_rows=found.pop("folder"))
                said |= found
            bring(addresses, port, secret, said, environment)
    except ChannelError as error:
        raise RuntimeError(
            f"horovod.spark.run: the task on host {socket.gethostname()} cannot reach {unreachable.format(error)}"
        ) from None
