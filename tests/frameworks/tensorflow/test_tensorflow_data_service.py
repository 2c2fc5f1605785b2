# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's data service for training ranks: a compute job as a user starts it, beside two training ranks that read
what its workers prepare; and the registry through which they find each other."""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import TENSORFLOW_ENV
from support.patience import patiently
from support.ports import open_files
from support.world import World

from horovod.world.network import own_addresses

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service
from horovod.tensorflow.data.registry import ComputeClient, ComputeService

COMPUTE_WORKER = "horovod.tensorflow.data.compute_worker"

# Its processes import TensorFlow while the ranks wait for them.


def outside() -> dict[str, str]:
    """The environment of a process that is no rank of a test world."""
    return {**os.environ, **TENSORFLOW_ENV, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def strangers_are_dropped() -> None:
    """No port of this process, where a dispatcher runs, takes a connection of whoever comes."""
    own = open_files()
    ports = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    assert ports, "the dispatcher's"
    for address in ["127.0.0.1", *own_addresses()]:
        for port in ports:
            with pytest.raises(TimeoutError):
                socket.create_connection((address, port), 0.1)


def costly(dataset: Any) -> Any:
    """Without an end, and always in preparation: its worker asks the dispatcher for the next element all the time."""
    from tensorflow.python.data.experimental.ops.testing import sleep

    return dataset.repeat().apply(sleep(50_000)).prefetch(1000)


# A compute job whose second worker begins to stop later than the first.
SLOW_TO_STOP = f"""
import os, runpy, time
import tensorflow as tf
worker = tf.data.experimental.service.WorkerServer
stop = worker.stop
worker.stop = lambda self: (time.sleep(float(os.environ["HOROVOD_RANK"])), stop(self))
runpy.run_module({COMPUTE_WORKER!r}, run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def compute_job(config: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Two workers. To be shut down by a training rank: it is ended here only after a test that failed."""
    environment = {**outside(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "horovod.launcher", "-np", "2", sys.executable, "-c", program]
    job = subprocess.Popen(
        [*command, "--dispatchers", "1", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
        patiently(lambda left_s: job.communicate(timeout=left_s))


@pytest.mark.thorough
def test_workers_prepare_the_batches_of_all_ranks_and_end_before_their_dispatcher(world: World, tmp_path: Path) -> None:
    def run(file: str) -> tuple[list[int], list[int], list[int], int]:
        config = TfDataServiceConfig.read(file, wait_for_file_creation=True)
        mode = os.stat(file).st_mode
        rank, size = hvd.rank(), hvd.size()

        def squares() -> Any:
            # Where it runs shows in the process: the workers'.
            return tf.data.Dataset.range(20).map(lambda x: x * x)

        def seen(dataset: Any) -> list[int]:
            return [int(value) for value in dataset.as_numpy_iterator()]

        own = seen(squares().send_to_data_service(config, rank, size))
        shared = seen(squares().send_to_data_service(config, rank, size, reuse_dataset=True))
        turns = squares().repeat().send_to_data_service(config, rank, size, round_robin=True)
        in_turns = seen(turns.take(4))
        unfinished = iter(costly(squares()).send_to_data_service(config, rank, size))
        assert len([next(unfinished) for _ in range(4)]) == 4, "each worker has begun"
        hvd.allgather_object(None)
        if rank == 0:
            with config.compute_client(verbose=2) as compute:
                compute.shutdown()
        return own, shared, in_turns, mode

    file = tmp_path / "config.json"
    with compute_job(file, SLOW_TO_STOP) as job:
        results = world.run(run, str(file))
        output, _ = patiently(lambda left_s: job.communicate(timeout=left_s))
        assert job.returncode == 0, output
    everything = [x * x for x in range(20)]
    for own, _, in_turns, mode in results:
        assert sorted(own) == everything, "two workers share the elements of a rank"
        assert len(in_turns) == 4 and set(in_turns) <= set(everything)
        assert stat.S_IMODE(mode) == 0o600, "it holds a key"
    assert sorted(results[0][1] + results[1][1]) == everything, "the ranks share the elements"
    assert not file.exists()


def test_dispatchers_may_run_in_the_training_ranks(world: World, tmp_path: Path) -> None:
    def run(file: str) -> list[int]:
        config = TfDataServiceConfig.read(file, wait_for_file_creation=True)
        with pytest.raises(RuntimeError, match="hint: with tf_data_service"):
            tf.data.Dataset.range(3).send_to_data_service(config, hvd.rank())
        with tf_data_service(config, hvd.rank()) as address:
            assert address.startswith("grpc://unix:/proc/self/fd/")
            dataset = tf.data.Dataset.range(10).apply(
                tf.data.experimental.service.distribute(processing_mode="distributed_epoch", service=address)
            )
            seen = [int(value) for value in dataset.as_numpy_iterator()]
            strangers_are_dropped()
            endless = tf.data.experimental.service.distribute(processing_mode="distributed_epoch", service=address)
            unfinished = iter(costly(tf.data.Dataset.range(10)).apply(endless))
            assert next(unfinished) is not None
            hvd.allgather_object(None)
        if hvd.rank() == 0:
            config.compute_client().shutdown()
        return sorted(seen)

    def prepare(file: str) -> None:
        from horovod.tensorflow.data.compute_worker import main

        main(2, "training", file, 60)

    file = str(tmp_path / "config.json")
    with World(2, TENSORFLOW_ENV) as workers:
        job = workers.start(prepare, file)
        assert world.run(run, file) == [list(range(10))] * 2
        assert job.results() == [None, None]


def test_who_is_missing_is_named_and_numbers_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    from horovod.world.channel import AuthenticationError, ChannelError

    service = ComputeService(2, 3, b"k" * 32)
    assert service.addresses() == {"lo": [("127.0.0.1", service.get_port())]}
    with contextlib.closing(service), ComputeClient(service.addresses(), b"k" * 32) as client:
        with pytest.raises(TimeoutError, match="dispatcher 1 of the data service did not register within 0.01 s"):
            client.wait_for_dispatcher_registration(1, 0.01)
        client.register_dispatcher(1, "here:1")
        client.register_dispatcher(1, "here:1")
        with pytest.raises(ValueError, match="dispatcher 1 is registered at here:1 already, got there:2"):
            client.register_dispatcher(1, "there:2")
        assert client.wait_for_dispatcher_registration(1, 0.01) == "here:1"
        for number in (-1, 2):
            with pytest.raises(IndexError, match=f"dispatcher {number}: expected 0 to 1"):
                client.wait_for_dispatcher_registration(number, 0.01)
        with pytest.raises(IndexError, match="worker 6: expected 0 to 5"):
            client.register_worker_for_dispatcher(1, 6)
        for worker in (0, 3, 5):
            client.register_worker_for_dispatcher(worker // 3, worker)
        with pytest.raises(TimeoutError, match=r"workers \[4\] of dispatcher 1"):
            client.wait_for_dispatcher_worker_registration(1, 0.01)
        client.register_worker_for_dispatcher(1, 4)
        client.wait_for_dispatcher_worker_registration(1, 0.01)
        assert client.wait_for_dispatcher_or_end(1, 0.01) == "here:1"
        assert client.end_dispatcher(1) == [3, 4, 5] and client.end_dispatcher(0) == [0]
        client.wait_for_end(1)
        for over in (0, 1):  # a worker that comes late does not start
            assert client.wait_for_dispatcher_or_end(over, 30) is None
        client.say_worker_end(3)
        client.wait_for_workers_end([3], 30)
        assert not capsys.readouterr().err
        client.wait_for_workers_end([3, 4], 0.01)
        assert "workers [4] of the data service did not stop within 0.01 s" in capsys.readouterr().err
        client.shutdown()
        client.wait_for_shutdown()
        with pytest.raises(AuthenticationError):
            ComputeClient(service.addresses(), b"x" * 32)
    with pytest.raises(ChannelError, match="no compute service at"):
        ComputeClient({"lo": []}, b"k" * 32)


def test_a_config_is_written_and_read_and_checked(tmp_path: Path) -> None:
    config = TfDataServiceConfig(1, 2, "compute", {"eth0": [("10.0.0.1", 5)]}, bytes(range(32)), timeout=7)
    file = tmp_path / "config.json"
    config.write(str(file))
    assert TfDataServiceConfig.read(str(file)) == config == TfDataServiceConfig.from_dict(config.to_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    for wrong in ("[]", "{}", "no json", file.read_text().replace('"dispatchers"', '"workers"')):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="not a config of the data service"):
            TfDataServiceConfig.read(str(file))
    with pytest.raises(ValueError, match="expected compute or training"):
        TfDataServiceConfig(1, 2, "both", {}, b"")
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(str(tmp_path / "none"))


def test_a_compute_worker_leaves_the_world_of_a_script_that_has_called_init(tmp_path: Path) -> None:
    def run(file: str) -> list[bool]:
        from horovod.tensorflow.data.compute_worker import main

        def end() -> None:
            TfDataServiceConfig.read(file, wait_for_file_creation=True).compute_client().shutdown()

        left = []
        for has_started in (True, False):
            if has_started:
                hvd.init()
            ends = threading.Thread(target=end)
            ends.start()
            main(1, "compute", file, 60)
            left.append(hvd.is_initialized())
            ends.join()
            hvd.shutdown()
        return left

    with World(1, TENSORFLOW_ENV) as world:
        assert world.run(run, str(tmp_path / "config.json")) == [[True, False]]


def test_workers_that_cannot_be_dealt_evenly_are_refused(tmp_path: Path) -> None:
    def run(module: str, file: str) -> None:
        sys.argv = [module, "--dispatchers", "2", file]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    with World(1, TENSORFLOW_ENV) as world:
        (outcome,) = world.run_each(run, COMPUTE_WORKER, str(tmp_path / "config.json"))
    assert "InvalidRequestError: 1 workers cannot be dealt to 2 dispatchers evenly" in outcome.traceback
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: needs root")
def test_a_config_that_another_user_may_have_put_there_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    path = tmp_path / "config\n.json"
    path.write_text("{}")
    os.chown(path, 65534, 65534)
    with pytest.raises(OSError, match=r"belongs to user 65534"):
        TfDataServiceConfig.read(str(path))
    os.chown(path, 0, 0)
    path.write_text("no json")
    with pytest.raises(ValueError, match=r"config\\n\.json is not a config of the data service"):
        TfDataServiceConfig.read(str(path))
