# SPDX-License-Identifier: Apache-2.0
"""Training ranks whose data is prepared elsewhere, by TensorFlow's data service. No step of a gradient's way.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker config.json        # the compute job

    config = TfDataServiceConfig.read("config.json", wait_for_file_creation=True)        # in the training job
    dataset = dataset.map(costly).batch(32).send_to_data_service(config, hvd.rank(), hvd.size())
    ...
    if hvd.rank() == 0:
        config.compute_client().shutdown()                                               # ends the compute job

There is one dispatcher for all training ranks, or one for each; workers are dealt to dispatchers evenly. Dispatchers
run in the compute job, or in the training ranks (dispatcher_side="training"). See docs/data-service.md.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from horovod.core.exceptions import InvalidRequestError
from horovod.core.wording import on_one_line, tell
from horovod.settings import Settings
from horovod.tensorflow.data.registry import ComputeClient
from horovod.world.channel import ChannelError
from horovod.world.files.whole import open_in_place, write_whole
from horovod.world.tunnel import Tunnel

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_service = tf.data.experimental.service
_shared = itertools.count(1)  # datasets that ranks share meet by their order
_SAY_AFTER_S = 2.0
_LOOK_S = 0.1  # a shared disk does not announce a new file


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """The training job's view of the compute job. With `key`, each proves to the other that it has read this."""

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str  # "compute" or "training"
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60  # seconds to wait for the others' registration

    def __post_init__(self) -> None:
        if self.dispatcher_side not in ("compute", "training"):
            raise InvalidRequestError(f"dispatcher_side={self.dispatcher_side!r}: expected compute or training")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A connection to the compute job. See registry.py."""
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can say it."""
        return {**dataclasses.asdict(self), "key": base64.b64encode(self.key).decode()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Parses what to_dict() made. Raises ValueError if something is missing, wrong or unknown."""
        try:
            addresses = {
                str(nic): [(str(host), int(port)) for host, port in listed]
                for nic, listed in config["addresses"].items()
            }
            key = base64.b64decode(config["key"], validate=True)
            return TfDataServiceConfig(**{**config, "addresses": addresses, "key": key})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidRequestError(f"not a config of the data service: {error!r}") from error

    def write(self, filename: str) -> None:
        """Writes a file that only this user can read, because every reader may use the compute job.

        The file appears as a whole.
        """
        write_whole(filename, json.dumps(self.to_dict()), private=True)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads what `write` has written. Waits until it is there with `wait_for_file_creation`, and says so."""
        started = time.monotonic()
        said = False
        while wait_for_file_creation and not os.path.exists(filename):
            if not said and time.monotonic() - started > _SAY_AFTER_S:
                said = True
                tell(f"waiting for the data service's config {on_one_line(filename)} ...")
            threading.Event().wait(_LOOK_S)
        # The config says who serves the data: another user must not put it there.
        with os.fdopen(open_in_place(Path(filename), os.O_RDONLY)) as file:
            try:
                content = json.load(file)
            except ValueError as error:
                raise InvalidRequestError(
                    f"{on_one_line(filename)} is not a config of the data service: {error}"
                ) from error
        return TfDataServiceConfig.from_dict(content)


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """For a training rank: the address of its dispatcher, grpc://..., for tf.data.experimental.service.distribute.

    With dispatchers on the training side the dispatcher runs in this process while the context is open. Blocks until
    the dispatcher and all of its workers are there; raises a TimeoutError that names the missing ones.
    """
    own = rank if compute_config.dispatchers > 1 else 0
    with compute_config.compute_client() as compute, contextlib.ExitStack() as servers:
        if compute_config.dispatcher_side == "training" and rank < compute_config.dispatchers:
            _start_dispatcher(compute, rank, servers, compute_config.timeout)
            servers.callback(_end_workers, compute, rank, compute_config.timeout)
        address = compute.wait_for_dispatcher_registration(own, compute_config.timeout)
        compute.wait_for_dispatcher_worker_registration(own, compute_config.timeout)
        compute.open_tunnel(own)
        yield f"grpc://{address}"


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset, prepared by the data service; also a method of tf.data.Dataset.

    `reuse_dataset`: all ranks of one dispatcher share its elements, each element going to one of them. `round_robin`:
    in turns, which needs `size` and an endless dataset. All ranks send such datasets in the same order. Raises
    RuntimeError for dispatchers on the training side, which live in the context tf_data_service.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service: the dispatcher of this config runs on the training side\n"
            "hint: with tf_data_service(config, rank) as address: ..."
        )
    if round_robin and size is None:
        raise InvalidRequestError("send_to_data_service: round_robin=True needs the number of ranks, size=")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=f"horovod-{next(_shared)}" if reuse_dataset or round_robin else None,
                consumer_index=rank if round_robin else None,
                num_consumers=size if round_robin else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Runs the part of one rank of the compute job, until shutdown() is called.

    That is a worker, and in the first rank of a dispatcher also the dispatcher. Raises TimeoutError if its dispatcher
    does not come. A worker ends with its dispatcher, and before it.
    """
    timeout = compute_config.timeout
    rank = Settings.from_environment().rank or 0
    dispatcher_id, place = divmod(rank, compute_config.workers_per_dispatcher)
    runs_dispatcher = compute_config.dispatcher_side == "compute" and place == 0
    with compute_config.compute_client() as compute:
        with contextlib.ExitStack() as servers:
            if runs_dispatcher:
                _start_dispatcher(compute, dispatcher_id, servers, timeout)
            with contextlib.ExitStack() as worker:
                dispatcher = compute.wait_for_dispatcher_or_end(dispatcher_id, timeout)
                if dispatcher is not None:
                    worker.callback(_start_worker(compute, dispatcher_id, dispatcher, rank, timeout))
                    compute.register_worker_for_dispatcher(dispatcher_id, rank)
                    compute.wait_for_end(dispatcher_id)
                if runs_dispatcher:
                    others = [one for one in compute.workers_of(dispatcher_id) if one != rank]
                    compute.wait_for_workers_end(others, timeout)
            compute.say_worker_end(rank)
        compute.wait_for_shutdown()


def _start_worker(
    compute: ComputeClient, dispatcher_id: int, dispatcher: str, number: int, timeout: int
) -> Callable[[], None]:
    part = f"worker/{number}"
    own = Tunnel.address(compute.name_in_tunnel(part))

    def start(port: int) -> Any:
        config = _service.WorkerConfig(
            dispatcher_address=dispatcher, worker_address=own, port=port, dispatcher_timeout_ms=timeout * 1000
        )
        return _service.WorkerServer(config)

    # A worker whose dispatcher is lost stops when its questions have timed out, and the element is done.
    return compute.start_server(dispatcher_id, part, start, 2 * timeout)


def _end_workers(compute: ComputeClient, dispatcher_id: int, timeout: int) -> None:
    try:
        compute.wait_for_workers_end(compute.end_dispatcher(dispatcher_id), timeout)
    except ChannelError:  # the compute job has ended before the dispatcher
        return


def _start_dispatcher(compute: ComputeClient, number: int, servers: contextlib.ExitStack, timeout: int) -> None:
    def start(port: int) -> Any:
        return _service.DispatchServer(_service.DispatcherConfig(port=port))

    part = f"dispatcher/{number}"
    servers.callback(compute.start_server(number, part, start, timeout))
    compute.register_dispatcher(number, Tunnel.address(compute.name_in_tunnel(part)))
