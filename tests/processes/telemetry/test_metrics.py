# SPDX-License-Identifier: Apache-2.0
"""Metrics of real ranks: over HTTP and in files, from init to shutdown, in elastic jobs, and beside strangers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed
from prometheus_client.parser import text_string_to_metric_families as parsed_plain
from support.elastic.elastic_jobs import ElasticJob
from support.jobs import Job, run_job
from support.pages import ROOT, blocks_of
from support.patience import LIMIT_S, be_late, patiently, wait_until
from support.ports import free_ports, open_files
from support.world import World

import horovod.core as hvd

LATE_S = 0.02
STEPS = 5
ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # by name and labels


def series_of(families: Any) -> Series:
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for fam in families for one in fam.samples}


def scrape(port: int) -> Series:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": ACCEPT})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return series_of(parsed(answer.read().decode()))


def value(series: Series, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels."""
    found = [number for (one, has), number in series.items() if one == name and labels.items() <= dict(has).items()]
    assert found, f"{name} {labels} is not in {series}"
    return sum(found)


def in_file(path: Path) -> Series:
    return series_of(parsed_plain(path.read_text()))


def train(steps: int = STEPS, late: int = 1, pids: Sequence[int] = ()) -> None:
    """`pids`: of all ranks, if it matters how long they wait for the late one."""
    hvd.init()
    for _ in range(steps):
        if hvd.rank() == late:
            be_late(LATE_S, pids)
        hvd.allreduce(np.ones(100, np.float32), name="x")


def leave() -> list[str]:
    """The threads that are left."""
    hvd.shutdown()
    return [thread.name for thread in threading.enumerate()]


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_each_rank_serves_what_it_has_counted_and_for_whom_it_has_waited() -> None:
    port = free_ports(2)
    with World(2, {"HOROVOD_METRICS_PORT": str(port)}) as world:
        world.run(train, STEPS, 1, world.run(os.getpid))
        first = scrape(port)
        for rank, seen in ((0, first), (1, scrape(port + 1))):
            assert value(seen, "horovod_tensors_total", rank=str(rank), host=socket.gethostname()) == STEPS
            assert value(seen, "horovod_bytes_total") == STEPS * 400
            assert value(seen, "horovod_world_size") == value(seen, "horovod_local_size") == 2
            assert value(seen, "horovod_running") == 1 and value(seen, "horovod_in_flight_calls") == 0
            assert value(seen, "horovod_rank_info", local_rank=str(rank), transport="shm") == 1
        # On a busy machine rank 0 may be late itself.
        assert value(first, "horovod_late_rank_waits_total", late_rank="1") > STEPS / 2
        assert value(first, "horovod_late_rank_wait_seconds_total", late_rank="1") > STEPS / 2 * LATE_S
        assert value(first, "horovod_blocked_for_ranks_seconds_total") > STEPS / 2 * LATE_S
        # What it served is in hvd.statistics(), too.
        world.run(train)
        assert value(scrape(port), "horovod_tensors_total") == 2 * STEPS


def test_counters_go_on_after_shutdown_and_init(tmp_path: Path) -> None:
    port = free_ports(2)
    file = tmp_path / "{rank}.prom"
    with World(2, {"HOROVOD_METRICS_PORT": str(port), "HOROVOD_METRICS_FILE": str(file)}) as world:
        for generation in range(3):
            world.run(train, STEPS, 1, world.run(os.getpid))
            seen = scrape(port)
            assert value(seen, "horovod_tensors_total") == STEPS * (generation + 1)
            assert value(seen, "horovod_late_rank_waits_total", late_rank="1") >= (STEPS - 1) * (generation + 1)
            for threads in world.run(leave):
                assert "horovod-metrics" not in threads
            assert not is_open(port) and not is_open(port + 1)
            assert not list(tmp_path.iterdir())
        world.run(train)  # which ends in order


def test_the_file_is_written_while_the_job_runs(tmp_path: Path) -> None:
    env = {"HOROVOD_METRICS_FILE": str(tmp_path / "{rank}.prom"), "HOROVOD_METRICS_INTERVAL_SECONDS": "0.1"}
    with World(2, env) as world:
        for rounds in (1, 2):
            world.run(train)
            wait_until(lambda: value(in_file(tmp_path / "1.prom"), "horovod_tensors_total") == rounds * STEPS)  # noqa: B023
        assert value(in_file(tmp_path / "1.prom"), "horovod_running") == 1


def test_a_file_of_a_killed_rank_is_removed_and_no_other_file(tmp_path: Path) -> None:
    env = {"HOROVOD_METRICS_FILE": str(tmp_path / "{rank}.prom"), "HOROVOD_METRICS_INTERVAL_SECONDS": "0.1"}
    with World(1, env) as world:
        world.run(train)
        dead = (tmp_path / "0.prom").read_text().replace('rank="0"', 'rank="7"')
        for name, content in {"7.prom": dead, "8.prom": "# of another\n", "7b.prom": dead, "b7.prom": dead}.items():
            (tmp_path / name).write_text(content)
            os.utime(tmp_path / name, (0, 0))
        (tmp_path / "9.prom").write_text(dead)
        os.utime(tmp_path / "9.prom", (time.time() + 3600,) * 2)  # young
        wait_until(lambda: not (tmp_path / "7.prom").exists())
        left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
        assert left == {"0.prom", "8.prom", "7b.prom", "b7.prom", "9.prom"}


def test_without_a_setting_there_is_no_thread_and_nothing_is_loaded() -> None:
    def extras() -> tuple[list[str], bool]:
        hvd.init()
        return [thread.name for thread in threading.enumerate()], "horovod.metrics" in sys.modules

    with World(1) as world:
        threads, loaded = world.run(extras)[0]
        assert "horovod-metrics" not in threads and not loaded


def test_a_port_that_is_taken_is_a_warning_and_is_used_once_it_is_free() -> None:
    port = free_ports(2)
    env = {"HOROVOD_METRICS_PORT": str(port), "HOROVOD_METRICS_INTERVAL_SECONDS": "0.1"}
    with socket.create_server(("127.0.0.1", port + 1)) as taken, World(2, env) as world:
        world.run(train)
        said = f"horovod: warning: rank 1 serves no metrics at 127.0.0.1:{port + 1}: Address already in use\nhint: "
        wait_until(lambda: said in world.output(1))
        assert value(scrape(port), "horovod_tensors_total") == STEPS
        taken.close()
        wait_until(lambda: is_open(port + 1))
        assert value(scrape(port + 1), "horovod_tensors_total") == STEPS
        assert world.output(1).count("serves no metrics") == 1


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"HOROVOD_METRICS_PORT": "9400", "HOROVOD_METRICS_ADDRESS": "no.such.invalid"}, "at no.such.invalid:9400: "),
        ({"HOROVOD_METRICS_PORT": "9400", "HOROVOD_METRICS_ADDRESS": "203.0.113.1"}, "Cannot assign requested address"),
        ({"HOROVOD_METRICS_FILE": "/nowhere/{rank}"}, "writes no metrics to /nowhere/0: No such file or directory"),
    ],
)
def test_what_cannot_be_exported_is_a_warning(env: dict[str, str], said: str) -> None:
    with World(1, env) as world:
        world.run(train)
        world.run(leave)
        assert said in world.output(0) and "\nhint: " in world.output(0)
        assert world.output(0).count(said) == 1


def test_silent_strangers_hold_up_no_one_for_long_and_no_shutdown() -> None:
    port = free_ports(1)
    with World(1, {"HOROVOD_METRICS_PORT": str(port)}) as world:
        world.run(train)
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        strangers[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert value(scrape(port), "horovod_tensors_total") == STEPS
        strangers += [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]  # 40 s, if all were heard
        world.run(leave, timeout_s=20.0)
        for stranger in strangers:
            stranger.close()


def fork_and_exit(folder: str) -> int:
    """A child that ends as a script does, while its parent goes on."""
    Path(folder, "0.prom").unlink()
    child = os.fork()
    if child == 0:
        hvd.shutdown()
        os._exit(len([one for one in open_files() if one in listening()]))
    status = os.waitpid(child, 0)[1]
    assert not Path(folder, "0.prom").exists(), "the child has written its parent's file"
    return os.waitstatus_to_exitcode(status)


def listening() -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}


def test_a_forked_child_holds_no_port_and_writes_no_file(tmp_path: Path) -> None:
    port = free_ports(1)
    env = {"HOROVOD_METRICS_PORT": str(port), "HOROVOD_METRICS_FILE": str(tmp_path / "{rank}.prom")}
    with World(1, env) as world:
        world.run(train)
        assert world.run(fork_and_exit, str(tmp_path)) == [0]
        assert value(scrape(port), "horovod_tensors_total") == STEPS
        world.run(leave)
        assert not (tmp_path / "0.prom").exists()


def test_counters_of_an_elastic_job_go_on_when_a_worker_is_lost(tmp_path: Path) -> None:
    port = free_ports(3)
    env = {"HOROVOD_METRICS_PORT": str(port), "HOROVOD_METRICS_FILE": str(tmp_path / "{rank}.prom")}
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "2", "--max-np", "3", env=env) as job:
        pids = job.wait_for_world(3)
        wait_until(lambda: is_open(port + 2))
        before = {worker: scrape(port + worker) for worker in range(3)}
        assert value(before[2], "horovod_batches_total", worker="2", rank="2") > 0
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_world(2)
        job.wait_for_world(3)
        wait_until(lambda: is_open(port + 2))
        after = {}
        for local_rank in range(3):
            seen = scrape(port + local_rank)
            (worker,) = {dict(labels)["worker"] for _, labels in seen}
            after[int(worker)] = seen
        assert after.keys() == {1, 2, 3}
        for worker in (1, 2):
            for name in ("horovod_batches_total", "horovod_bytes_total", "horovod_calls_total"):
                assert value(after[worker], name) > value(before[worker], name)
            assert value(after[worker], "horovod_generation") > value(before[worker], "horovod_generation")
        said = job.finish()
        assert "serves no metrics" not in said
    assert not list(tmp_path.glob("*.prom"))


# Until there is a file `end`, with a late rank.
LATE_JOB = """
import os, time
import numpy as np
import horovod.core as hvd
hvd.init()
step = 0
while step % 10 or not hvd.allreduce(np.array([os.path.exists("end")], np.int32), op=hvd.Max, name="over")[0]:
    time.sleep(0.02 if hvd.rank() == 1 else 0.005)
    hvd.allreduce(np.ones(1000, np.float32), name="x")
    step += 1
"""


def program(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    pytest.skip(f"not run: {names[0]} is not installed")


@contextlib.contextmanager
def running(url: str, *words: str) -> Iterator[None]:
    """A server, from the moment at which this is found there."""
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_found(url))
        yield
    finally:
        server.terminate()
        patiently(server.wait)


def is_found(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False


def ask(port: int, path: str, **query: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}") as answer:
        answered = json.load(answer)
    assert answered["status"] == "success", answered
    return answered["data"]


def expressions_of_the_board() -> list[str]:
    board = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [one.replace("$job", ".*").replace("$__rate_interval", "5s") for one in found]


def expressions_of_the_page() -> list[str]:
    section = (ROOT / "docs/monitoring.md").read_text().split("| question | expression |")[1].split("\n## ")[0]
    found = re.findall(r"^\| .*\? \| `(.+)` \|$", section, re.M)
    assert len(found) == 5
    return found


@pytest.mark.thorough
def test_prometheus_scrapes_a_job_and_answers_what_the_board_and_the_page_ask(tmp_path: Path) -> None:
    prometheus = program("prometheus")
    port, own = free_ports(4), free_ports(1)
    config = (ROOT / "examples/monitoring/prometheus.yml").read_text().replace("interval: 15s", "interval: 1s")
    for number in range(4):
        config = config.replace(str(9400 + number), str(port + number))
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / "train.py").write_text(LATE_JOB)
    flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    env = {"HOROVOD_METRICS_PORT": str(port)}
    with (
        Job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=env) as job,
        running(f"http://127.0.0.1:{own}/-/ready", prometheus, *flags, f"--web.listen-address=127.0.0.1:{own}"),
    ):

        def ask_for(expression: str) -> list[Any]:
            return list(ask(own, "/api/v1/query", query=expression)["result"])

        wait_until(lambda: len(ask_for("rate(horovod_batches_total[5s]) > 0")) == 2)
        assert [row["value"][1] for row in ask_for("sum(up)")] == ["2"]
        board, page = expressions_of_the_board(), expressions_of_the_page()
        for expression in [*board, *page]:
            found = ask_for(expression)
            assert found or "==" in expression, expression
        who = ask_for(page[0])
        assert who[0]["metric"] == {"late_rank": "1"}
        targets = ask(own, "/api/v1/targets")["activeTargets"]
        assert [one["lastError"] for one in targets if one["health"] == "up"] == ["", ""]
        meta = ask(own, "/api/v1/metadata", metric="horovod_blocked_for_ranks_seconds_total")
        meta = meta or ask(own, "/api/v1/metadata", metric="horovod_blocked_for_ranks_seconds")
        assert [(row["type"], row["unit"]) for rows in meta.values() for row in rows] == [("counter", "seconds")]
        (tmp_path / "end").touch()
        assert job.wait().code == 0


@pytest.mark.thorough
def test_node_exporter_brings_the_file_and_promtool_finds_no_fault(tmp_path: Path) -> None:
    exporter, promtool = program("prometheus-node-exporter", "node_exporter"), program("promtool")
    files, port = tmp_path / "files", free_ports(1)
    files.mkdir()
    env = {"HOROVOD_METRICS_FILE": str(files / "{rank}.prom"), "HOROVOD_METRICS_INTERVAL_SECONDS": "0.1"}
    with World(2, env) as world:
        world.run(train)
        for rank in range(2):
            wait_until(lambda: value(in_file(files / f"{rank}.prom"), "horovod_tensors_total") == STEPS)  # noqa: B023
        files = files.rename(tmp_path / "kept")  # as they are while the job runs
    flags = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={files}"]
    flags.append(f"--web.listen-address=127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}/metrics"
    with running(url, exporter, *flags), urllib.request.urlopen(url) as answer:
        seen = series_of(parsed_plain(answer.read().decode()))
    assert value(seen, "node_textfile_scrape_error") == 0
    for rank in ("0", "1"):
        assert value(seen, "horovod_tensors_total", rank=rank) == STEPS
    checked = subprocess.run([promtool, "check", "metrics"], input=(files / "0.prom").read_text(), text=True)
    assert checked.returncode == 0


# TensorBoard would load TensorFlow, which takes long; with a module of this name it does without.
NO_TENSORFLOW = "import sys, types\nsys.modules['tensorboard.compat.notf'] = types.ModuleType('notf')\n"
SNIPPETS = """
import torch
import horovod.torch as hvd
{function}
hvd.init()
if hvd.rank() == 0:
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter("logs")
for step in range(3):
    hvd.allreduce(torch.ones(1000), name="x")
    if hvd.rank() == 0:
{loop}
if hvd.rank() == 0:
    writer.close()
"""


@pytest.mark.thorough
def test_the_pages_lines_for_tensorboard_write_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="not run: tensorboard"
    )
    blocks = [code for _, code in blocks_of(ROOT / "docs/monitoring.md")]
    (function,) = (code for code in blocks if "def scalars" in code)
    (loop,) = (code for code in blocks if "add_scalar" in code)
    indented = "".join(f"        {line}\n" for line in loop.splitlines())
    (tmp_path / "train.py").write_text(NO_TENSORFLOW + SNIPPETS.format(function=function, loop=indented))
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"])
    assert done.code == 0, done.stderr
    events = reader.EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        "horovod/GB",
        "horovod/blocked_for_ranks_s",
        "horovod/blocked_for_data_s",
    }
    assert [point.value for point in events.Scalars("horovod/GB")] == pytest.approx([4e-6, 8e-6, 12e-6])


KERAS = """
import glob, keras, numpy as np
import horovod.keras as hvd
{function}
{callback}
hvd.init()
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), HorovodScalars()]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.TensorBoard("logs"))
model.fit(np.ones((64, 3)), np.ones((64, 1)), epochs=2, verbose=0, callbacks=callbacks)
if hvd.rank() == 0:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    (folder,) = glob.glob("logs/train")
    events = EventAccumulator(folder)
    events.Reload()
    print("written", *events.Tags()["tensors"])
"""


@pytest.mark.thorough
def test_the_pages_callback_for_keras_gives_its_numbers_to_tensorboard(tmp_path: Path) -> None:
    for module in ("tensorflow", "keras", "tensorboard"):
        pytest.importorskip(module, reason=f"not run: {module} is not installed")
    blocks = [code for _, code in blocks_of(ROOT / "docs/monitoring.md")]
    (function,) = (code for code in blocks if "def scalars" in code)
    (callback,) = (code for code in blocks if "class HorovodScalars" in code)
    (tmp_path / "train.py").write_text(KERAS.format(function=function, callback=callback))
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"])
    assert done.code == 0, done.stderr
    for name in ("loss", "horovod/GB", "horovod/blocked_for_ranks_s", "horovod/blocked_for_data_s"):
        assert f"epoch_{name}" in done.stdout
