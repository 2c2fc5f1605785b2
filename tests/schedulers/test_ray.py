# SPDX-License-Identifier: Apache-2.0
"""RayExecutor on a real cluster: every call, and every way in which a job ends."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.extent import SLACK_S
from support.patience import wait_until
from unit.core import test_surface as surface

ray = pytest.importorskip("ray", reason="not run: ray is not installed")

import horovod.core as hvd
from horovod.core.exceptions import AbortedError, RankLostError
from horovod.ray import HorovodConfig, RayExecutor, ray_logger, watch
from horovod.ray.utils import detect_nics, map_blocking, nics_to_env_var, visible_devices

SETTINGS = RayExecutor.create_settings(timeout_s=120)


class Counter:
    """An executable: the object that lives in a rank."""

    def __init__(self, start: int, step: int = 1) -> None:
        self.count, self.step = start, step
        self.heard = ""

    def next(self) -> int:
        self.count += self.step
        return self.count


@pytest.fixture(scope="module")
def shared(cluster: str) -> Iterator[RayExecutor]:
    """Two ranks, which live from test to test: what fails in them must not end them."""
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start(Counter, [10], {"step": 5}, extra_env_vars={"OF_A_TEST": "seen"})
    yield executor
    executor.shutdown()
    executor.shutdown()  # a second time does nothing


@pytest.fixture
def ranks(shared: RayExecutor, leaves_nothing: None) -> RayExecutor:
    return shared


@pytest.fixture
def own(leaves_nothing: None) -> Iterator[RayExecutor]:
    """Two ranks by host, of which a test may end any."""
    executor = RayExecutor(SETTINGS, num_hosts=1, num_workers_per_host=2)
    executor.start()
    yield executor
    executor.shutdown()


def place(_: Any = None) -> tuple[int, int, int, int]:
    hvd.init()
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()


def total(value: float, scale: float = 1.0) -> float:
    hvd.init()
    return float(hvd.allreduce(np.full(4, value * scale * (hvd.rank() + 1)), op=hvd.Sum, name="total")[0])


def fails_on(rank: int, error: Callable[[], BaseException]) -> Callable[[Any], Any]:
    """A function of `execute`: this rank raises, and the other waits for it in a collective; it keeps what it heard."""

    def function(executable: Any) -> None:
        hvd.init()
        if hvd.rank() == rank:
            raise error()
        try:
            hvd.allreduce(np.ones(4), name="waits")
        except Exception as caught:
            if executable is not None:
                executable.heard = f"{type(caught).__name__}: {caught}"
            raise

    return function


@pytest.mark.parametrize("module", [module for module in surface.SURFACE if module.startswith("horovod.ray")])
def test_a_module_has_horovods_names_parameters_and_defaults(module: str) -> None:
    surface.test_a_module_has_horovods_names_parameters_and_defaults(module)


@pytest.mark.slow("jobs on Ray")
def test_every_call(ranks: RayExecutor) -> None:
    assert ranks.run(place) == [(0, 2, 0, 1), (1, 2, 1, 1)]
    assert ranks.run(total, [2.0], {"scale": 3.0}) == [18.0, 18.0]
    assert ray.get(ranks.run_remote(total, args=[1.0])) == [3.0, 3.0]
    assert ranks.execute(lambda counter: counter.next()) == [15, 15]
    assert ranks.execute_single(lambda counter: counter.next()) == 20
    assert ranks.execute(lambda counter: counter.next()) == [25, 20]
    assert ranks.run(os.getenv, ["OF_A_TEST"]) == ["seen", "seen"]
    assert ranks.run(lambda: threading.current_thread() is threading.main_thread()) == [False, False]  # docs/ray.md
    with pytest.raises(RuntimeError, match="started already\nhint: call shutdown"):
        ranks.start()


def test_the_first_cause_is_raised_and_the_same_actors_go_on(ranks: RayExecutor) -> None:
    pids = ranks.run(os.getpid)
    before = time.monotonic()
    with pytest.raises(ValueError, match="^a bad sample$") as caught:
        ranks.execute(fails_on(1, functools.partial(ValueError, "a bad sample")))
    assert time.monotonic() - before < 2 + SLACK_S
    assert type(caught.value) is ValueError and "ValueError: a bad sample" in str(caught.value.__cause__)
    assert "rank 1 (node " in str(caught.value.__cause__)
    assert not re.search(r"\x1b|\^\^", str(caught.value.__cause__))  # colours, marks below code that is left out
    heard = ranks.execute(lambda counter: counter.heard)[0]
    assert heard.startswith("AbortedError: ") and "rank 1 raised ValueError: a bad sample" in heard
    assert ranks.run(total, [1.0]) == [3.0, 3.0] and ranks.run(os.getpid) == pids


def test_run_remote_ends_the_peers_of_a_rank_that_failed(ranks: RayExecutor) -> None:
    refs = ranks.run_remote(lambda: fails_on(1, functools.partial(KeyError, "k"))(None))
    with pytest.raises(AbortedError, match="rank 1 raised KeyError: 'k'"):
        ray.get(refs[0])
    with pytest.raises(KeyError):
        ray.get(refs[1])
    assert ranks.run(total, [1.0]) == [3.0, 3.0]


def test_a_rank_may_leave_and_come_back_late(ranks: RayExecutor) -> None:
    def function() -> float:
        hvd.init()
        hvd.shutdown()
        if os.environ["HOROVOD_RANK"] == "0":
            time.sleep(0.5)  # the other one waits for it in init
        return total(1.0)

    assert ranks.run(function) == [3.0, 3.0]


def test_a_rank_that_fails_before_init_ends_the_init_of_others(
    ranks: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GRACE_S", SLACK_S)  # on a busy machine the others return late

    def function() -> None:
        hvd.shutdown()
        if os.environ["HOROVOD_RANK"] == "0":
            time.sleep(0.5)
            raise LookupError("no data")
        hvd.init()

    with pytest.raises(LookupError, match="no data"):
        ranks.run(function)
    assert ranks.run(total, [1.0]) == [3.0, 3.0]


class Odd(Exception):
    """It can be pickled, but not loaded."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def test_what_cannot_be_pickled_is_named(ranks: RayExecutor) -> None:
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"RayExecutor.run: fn cannot be pickled: cannot pickle .*lock.* \(in the variable lock of "
    ):
        ranks.run(lambda: lock)
    with pytest.raises(TypeError, match=r"RayExecutor.run: args cannot be pickled: .* \(in item 0\)"):
        ranks.run(print, [lock])
    with pytest.raises(RuntimeError, match=r"the result of rank [01] cannot be pickled: .*lock"):
        ranks.run(threading.Lock)
    with pytest.raises(RuntimeError, match=r"rank 0 raised .*\.Odd: odd"):
        ranks.execute(fails_on(0, functools.partial(Odd, 1, 2)))
    with pytest.raises(RuntimeError, match=r"rank 1 called sys.exit\(3\)"):
        ranks.execute(fails_on(1, functools.partial(SystemExit, 3)))
    assert ranks.run(total, [1.0]) == [3.0, 3.0]


def test_callbacks_get_what_ranks_log(ranks: RayExecutor) -> None:
    def function() -> int:
        hvd.init()
        for step in range(2):
            ray_logger.log({"rank": hvd.rank(), "step": step})
        return hvd.rank()

    seen: list[Any] = []
    assert ranks.run(function, callbacks=[seen.append]) == [0, 1]
    with pytest.raises(TypeError, match="RayExecutor.run: callbacks is .*, expected a list of functions"):
        ranks.run(function, callbacks=print)  # type: ignore[arg-type]
    assert sorted(seen, key=lambda one: (one["rank"], one["step"])) == [
        {"rank": rank, "step": step} for rank in range(2) for step in range(2)
    ]

    def refuses(value: Any) -> None:
        raise ArithmeticError(f"not {value['loss']}")

    def goes_on() -> None:
        hvd.init()
        if hvd.rank() == 0:
            ray_logger.log({"loss": float("nan")})
            hvd.allreduce(np.ones(1), name="alone")

    with pytest.raises(ArithmeticError, match="not nan"):
        ranks.run(goes_on, callbacks=[refuses])
    assert ranks.run(total, [1.0]) == [3.0, 3.0]


@pytest.mark.slow("jobs on Ray")
def test_a_rank_that_is_killed_is_the_cause(own: RayExecutor) -> None:
    def function() -> None:
        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(4), name="waits")

    with pytest.raises(RankLostError, match=r"rank 1 \(node .*, pid \d+\) was lost: ") as caught:
        own.run(function)
    assert caught.value.failed_rank == 1 and "common causes" not in str(caught.value)
    with pytest.raises(RuntimeError, match=r"RayExecutor.run: rank 1 .* was lost: (?s:.)*call shutdown\(\) and start"):
        own.run(total, [1.0])
    own.shutdown()
    with pytest.raises(RuntimeError, match="RayExecutor.run: the executor is not started"):
        own.run(total, [1.0])
    own.start()
    assert own.run(total, [1.0]) == [3.0, 3.0]


def test_a_rank_that_does_not_return_is_ended(own: RayExecutor) -> None:
    def function() -> None:
        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("the cause")
        time.sleep(600)

    before = time.monotonic()
    with pytest.raises(ValueError, match="the cause"):
        own.run(function)
    assert 3 <= time.monotonic() - before < 5 + SLACK_S
    with pytest.raises(RuntimeError, match="rank 0 was ended: it had not returned 3 s after rank 1 raised ValueError"):
        own.run(total, [1.0])


def test_a_group_that_never_fits(leaves_nothing: None) -> None:
    settings = SimpleNamespace(placement_group_timeout_s=0.5)  # any object
    executor = RayExecutor(settings, num_workers=9)
    words = r"not ready after 0.5 s: requested 9 bundles of 1 CPU \(PACK\); the cluster has 4 CPU on 1 node, of which"
    with pytest.raises(TimeoutError, match=words):
        executor.start()
    with pytest.raises(TimeoutError, match="requested 2 bundles of 2 CPU, 2 GPU"):
        RayExecutor(settings, num_hosts=2, num_workers_per_host=2, use_gpu=True).start()
    executor.shutdown()


def test_actors_that_do_not_start_in_time(leaves_nothing: None) -> None:
    with pytest.raises(TimeoutError, match=r"the actors of ranks 0 have not started after 0.001 s\nhint"):
        RayExecutor(RayExecutor.create_settings(timeout_s=0.001), num_workers=1).start()


def test_ranks_of_a_node_see_all_their_gpus_and_a_group_that_exists_stays(leaves_nothing: None) -> None:
    group = ray.util.placement_group([{"CPU": 1, "GPU": 1}] * 2)

    @ray.remote(num_cpus=0)
    def inside() -> tuple[list[Any], list[Any]]:
        executor = RayExecutor(SETTINGS, num_workers=2, use_gpu=True)
        executor.start()
        seen = executor.run(os.getenv, ["CUDA_VISIBLE_DEVICES"])
        groups = executor.run(lambda: ray.util.get_current_placement_group().id)
        executor.shutdown()
        return seen, groups

    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    try:
        seen, groups = ray.get(inside.options(scheduling_strategy=strategy).remote())
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
    finally:
        ray.util.remove_placement_group(group)
    assert seen in (["0,1"] * 2, ["1,0"] * 2) and groups == [group.id] * 2


def test_the_ranks_end_with_their_driver(cluster: str, leaves_nothing: None) -> None:
    code = f"""if True:
        import os, ray, time
        from horovod.ray import RayExecutor
        ray.init(address={cluster!r}, logging_level="warning")
        executor = RayExecutor(RayExecutor.create_settings(), num_workers=1)
        executor.start()
        print(executor.run(os.getpid)[0], flush=True)
        executor.run(time.sleep, [600])
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        rank = int(driver.stdout.readline())
        driver.kill()
    wait_until(lambda: not Path(f"/proc/{rank}").exists(), limit_s=5 + SLACK_S)


@pytest.mark.thorough
def test_two_nodes_of_which_one_is_lost(cluster: str) -> None:
    """In a process of its own, whose cluster is of two nodes."""
    code = """if True:
        import time
        from ray.cluster_utils import Cluster
        from horovod.ray import RayExecutor
        def place():
            import horovod.core as hvd
            hvd.init()
            return hvd.rank(), hvd.local_size(), hvd.cross_rank()
        def node():
            import ray
            return ray.get_runtime_context().get_node_id()
        def waits():
            import horovod.core as hvd
            import numpy as np
            hvd.init()
            if hvd.rank() == 3:
                time.sleep(600)
            hvd.allreduce(np.ones(4))
        sizes = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=sizes, connect=True)
        sizes.pop("include_dashboard")
        second = cluster.add_node(**sizes)
        executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_hosts=2, num_workers_per_host=2)
        executor.start()
        print(executor.run(place))
        print("lost:", [rank for rank, on in enumerate(executor.run(node)) if on == second.node_id])  # Ray chooses
        refs = executor.run_remote(waits)
        time.sleep(2)
        cluster.remove_node(second)
        try:
            executor.run(place)
        except Exception as error:
            print(type(error).__name__, error)
        executor.shutdown()
        cluster.shutdown()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "[(0, 2, 0), (1, 2, 0), (2, 2, 1), (3, 2, 1)]" in done.stdout, done
    told = r"lost: .*(\d).*(\d).*\n(?:RankLostError|RuntimeError) .*rank (?:\1|\2) \(node .*\) was lost: "
    assert re.search(told, done.stdout), done


@pytest.mark.thorough
def test_a_client_outside_of_the_cluster(cluster: str, leaves_nothing: None) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = ["-m", "ray.util.client.server", "--host=127.0.0.1", f"--port={port}", f"--address={cluster}"]
    code = f"""if True:
        import os, ray
        import horovod.core as hvd
        import numpy as np
        ray.init("ray://127.0.0.1:{port}")
        from horovod.ray import RayExecutor
        executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=2)
        executor.start()
        def total():
            import horovod.core as hvd
            import numpy as np
            hvd.init()
            return float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum)[0])
        def fails():
            raise KeyError("a bad key")
        print(executor.run(total), ray.get(executor.run_remote(total)))
        try:
            executor.run(fails)
        except KeyError as error:
            print(error, "was lost" in str(error.__cause__))
        executor.shutdown()
    """
    with subprocess.Popen([sys.executable, *serve]) as server:
        try:
            client = [sys.executable, "-c", code]
            done = subprocess.run(client, capture_output=True, text=True)
        finally:
            server.terminate()
    assert done.stdout.splitlines()[-2:] == ["[3.0, 3.0] [3.0, 3.0]", "'a bad key' False"], done


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ValueError, "num_workers=None and num_hosts=None: expected one"),
        ({"num_workers": 2, "num_hosts": 1}, ValueError, "expected one of the two"),
        ({"num_workers": 0}, ValueError, "num_workers=0: expected 1 or more"),
        ({"num_workers": 1, "gpus_per_worker": 1}, ValueError, "gpus_per_worker=1 needs use_gpu=True"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, ValueError, "expected 1 or more"),
        ({"max_workers": 2}, ValueError, "max_workers=2 needs min_workers"),
        ({"min_workers": 2, "num_workers": 2}, ValueError, "min_workers=2 and num_workers=2"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RayExecutor(RayExecutor.create_settings(), **arguments)


def test_the_key_of_ssh_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    settings = RayExecutor.create_settings(ssh_identity_file=str(path), ssh_str="secret")
    assert path.read_text() == "secret" and path.stat().st_mode & 0o777 == 0o600
    assert (settings.timeout_s, settings.placement_group_timeout_s, settings.start_timeout) == (30, 100, 30)
    RayExecutor.create_settings(ssh_identity_file=str(path), ssh_str="another")
    assert path.read_text() == "secret"


@pytest.mark.parametrize(
    ("nodes", "devices", "expected"),
    [
        (["a", "a"], [["0"], ["1"]], ["0,1", "0,1"]),
        (["a", "a", "b"], [["1"], ["0"], ["0"]], ["1,0", "1,0", "0"]),  # local rank 0 selects its own
        (["a", "b", "a"], [["0", "1"], ["0", "1"], ["2", "3"]], ["0,2,1,3", "0,1", "0,2,1,3"]),
        (["a", "a"], [["0"], ["0"]], ["0", "0"]),  # halves of one
        (["a", "a"], [[], []], ["", ""]),
        ([], [], []),
    ],
)
def test_visible_devices(nodes: list[str], devices: list[list[str]], expected: list[str]) -> None:
    assert visible_devices(nodes, devices) == expected


class Group:
    """The ranks of an executor as Ray Train's group of workers."""

    def __init__(self, executor: RayExecutor) -> None:
        self.execute, self.execute_async = executor.run, executor.run_remote
        self._workers = executor._adapter.strategy.workers

    def execute_single_async(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        return self._workers[rank].call.remote("execute_function", (function, args, {}))


@pytest.mark.slow("jobs on Ray")
def test_the_backend_for_ray_train_makes_ranks_and_lets_them_leave(own: RayExecutor) -> None:
    """With Ray Train itself: test_ray_libraries.py, in full."""
    group, config = Group(own), HorovodConfig(timeout_s=60)
    backend = config.backend_cls()
    for _ in range(2):  # it starts the workers again after a failure
        backend.on_start(group, config)
        assert own.run(place) == [(0, 2, 0, 1), (1, 2, 1, 1)]
        backend.on_shutdown(group, config)
        assert own.run(hvd.is_initialized) == [False, False]


def test_helpers(ranks: RayExecutor) -> None:
    assert nics_to_env_var({"eth1", "eth0"}) == {"HOROVOD_GLOO_IFACE": "eth0,eth1"} and nics_to_env_var(None) == {}
    assert detect_nics(RayExecutor.create_settings(nics={"lo"}), ["a"]) == {"lo"}
    assert map_blocking(ray.put, [1, 2]) == [1, 2]
