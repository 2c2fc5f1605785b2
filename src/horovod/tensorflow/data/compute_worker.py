# SPDX-License-Identifier: Apache-2.0
"""The compute job of TensorFlow's data service.

`horovodrun -np N python -m horovod.tensorflow.data.compute_worker CONFIG` starts it. Its first rank writes CONFIG,
which the training job reads. Runs until the training job calls shutdown().
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from horovod.core import basics
from horovod.core.arrays import operations
from horovod.core.exceptions import InvalidRequestError
from horovod.core.objects import broadcast_object
from horovod.settings import Settings
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn
from horovod.tensorflow.data.registry import ComputeService
from horovod.world.secret import new_secret

__all__ = ["check", "compute_job", "main", "parsed"]


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Runs a worker, on each rank.

    `timeout`: seconds to wait for each other part's registration. Raises ValueError if the ranks cannot be dealt to
    the dispatchers evenly.
    """
    has_started = not basics.is_initialized()
    basics.init()
    check(basics.size(), dispatchers)
    interface = Settings.from_environment().network_interface
    with contextlib.ExitStack() as stack:
        job = compute_job(basics.size(), dispatchers, dispatcher_side, configfile, timeout, interface)
        config = stack.enter_context(job) if basics.rank() == 0 else None
        compute_worker_fn(broadcast_object(config, 0, "compute_worker.config"))
        operations.barrier()  # all have heard of the end
    if has_started:  # a script that has called init goes on with its world
        basics.shutdown()


@contextlib.contextmanager
def compute_job(
    size: int, dispatchers: int, dispatcher_side: str, configfile: str, timeout: int, interface: str
) -> Iterator[TfDataServiceConfig]:
    """The registry of a job of `size` workers, and the file that tells of it, for as long as the context is open.

    `interface`: the name of a network interface, or "" for 127.0.0.1.
    """
    service = ComputeService(dispatchers, size // dispatchers, key := new_secret(), [interface] if interface else None)
    try:
        config = TfDataServiceConfig(
            dispatchers, size // dispatchers, dispatcher_side, service.addresses(), key, timeout
        )
        config.write(configfile)
        yield config
    finally:
        with contextlib.suppress(FileNotFoundError):  # its user has removed it
            os.unlink(configfile)
        service.close()


def check(size: int, dispatchers: int) -> None:
    """Raises ValueError if the workers cannot be dealt to the dispatchers evenly."""
    if dispatchers < 1 or size % dispatchers:
        raise InvalidRequestError(f"{size} workers cannot be dealt to {dispatchers} dispatchers evenly")


def parsed(module: str, started_by: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=f"The compute job of TensorFlow's data service{started_by}."
    )
    parser.add_argument("configfile", metavar="CONFIG", help="file that the training job reads; it must reach it")
    parser.add_argument("--dispatchers", type=int, default=1, help="1, or the number of training ranks")
    parser.add_argument("--dispatcher-side", choices=("compute", "training"), default="compute")
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for the other parts")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = parsed("horovod.tensorflow.data.compute_worker", ": one of its ranks, all of which horovodrun starts")
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
