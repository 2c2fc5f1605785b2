# SPDX-License-Identifier: Apache-2.0
"""The compute job of TensorFlow's data service.

`horovodrun -np N python -m horovod.tensorflow.data.compute_worker CONFIG` starts it. Its first rank writes CONFIG,
which the training job reads. Runs until the training job calls shutdown().
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence

from horovod.core import basics
from horovod.core.arrays import operations
from horovod.core.exceptions import InvalidRequestError
from horovod.core.objects import broadcast_object
from horovod.settings import Settings
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn
from horovod.tensorflow.data.registry import ComputeService
from horovod.world.secret import new_secret

__all__ = ["main"]


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Runs a worker, on each rank.

    `timeout`: seconds to wait for each other part's registration. Raises ValueError if the ranks cannot be dealt to
    the dispatchers evenly.
    """
    has_started = not basics.is_initialized()
    basics.init()
    size = basics.size()
    if dispatchers < 1 or size % dispatchers:
        raise InvalidRequestError(f"{size} workers cannot be dealt to {dispatchers} dispatchers evenly")
    service = None
    config = None
    if basics.rank() == 0:
        key = new_secret()
        interface = Settings.from_environment().network_interface
        service = ComputeService(dispatchers, size // dispatchers, key, [interface] if interface else None)
        config = TfDataServiceConfig(
            dispatchers, size // dispatchers, dispatcher_side, service.addresses(), key, timeout
        )
        config.write(configfile)
    try:
        compute_worker_fn(broadcast_object(config, 0, "compute_worker.config"))
        operations.barrier()  # all have heard of the end
    finally:
        if service is not None:
            with contextlib.suppress(FileNotFoundError):  # its user has removed it
                os.unlink(configfile)
            service.close()
    if has_started:  # a script that has called init goes on with its world
        basics.shutdown()


def _parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m horovod.tensorflow.data.compute_worker",
        description="A rank of the compute job of TensorFlow's data service; horovodrun starts all of them.",
    )
    parser.add_argument("configfile", metavar="CONFIG", help="file that the training job reads; it must reach it")
    parser.add_argument("--dispatchers", type=int, default=1, help="1, or the number of training ranks")
    parser.add_argument("--dispatcher-side", choices=("compute", "training"), default="compute")
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for the other parts")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = _parsed()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
