# SPDX-License-Identifier: Apache-2.0
"""horovod.run over two hosts: the caller's directory, environment and Python there, and results by rank."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster

CALLER = """
import os, sys
import numpy as np
import horovod

def work(number, text="none"):
    import horovod.core as hvd
    import beside
    hvd.init()
    total = hvd.allreduce(np.full(2, number), op=hvd.Sum, name="sum")
    data = np.full(5_000_000, hvd.rank(), dtype=np.uint8)  # more than a message of the rendezvous can hold
    place = (os.uname().nodename, os.getcwd(), os.environ["WORD"], sys.executable)
    return hvd.rank(), int(total[0]), text, place, beside.double(hvd.rank()), data

def fail():
    import horovod.core as hvd
    hvd.init()
    if hvd.rank() == 3:
        raise KeyError("only here")
    hvd.barrier()

flags = dict(np=4, hosts="host0:2,host1:2", **eval(sys.argv[1]))
big = os.urandom(3_000_000)
results = horovod.run(work, (10,), {"text": big}, **flags)
place = [(f"host{rank // 2}", os.getcwd(), "a 'b'", sys.executable) for rank in range(4)]
for rank, one in enumerate(results):
    assert one[:2] == (rank, 40) and one[2] == big and one[3:5] == (place[rank], 2 * rank), one
    assert len(one[5]) == 5_000_000 and (one[5] == rank).all()
try:
    horovod.run(fail, **flags)
except KeyError as error:
    print("raised", error, "rank 3" in str(error.__cause__))
"""


def call(folder: Path, options: str, on: Host) -> subprocess.CompletedProcess[str]:
    (folder / "beside.py").write_text("def double(x): return 2 * x\n")
    (folder / "caller.py").write_text(CALLER)
    environment = {
        "WORD": "a 'b'",
        "TMPDIR": "/tmp",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOROVOD_RENDEZVOUS_DIRECTORY": str(folder / "meet"),
    }
    command = on.command(sys.executable, "caller.py", options, directory=folder)
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


NO_MPIRUN = shutil.which("mpirun") is None and os.environ.get("REQUIRE_CLUSTER") != "1"


@pytest.mark.slow("a job on several hosts")
@pytest.mark.parametrize(
    "options",
    [
        "{'network_interfaces': ['ib7', 'eth0']}",
        pytest.param(
            "{'use_mpi': True}", marks=pytest.mark.skipif(NO_MPIRUN, reason="not run: there is no mpirun on PATH")
        ),
    ],
)
def test_results_of_two_hosts_by_rank(cluster: MakeCluster, tmp_path: Path, options: str) -> None:
    one, _ = cluster(2).hosts
    known = ["-o", "StrictHostKeyChecking=accept-new"]  # mpirun's ssh asks about hosts that are new
    one.run("ssh", *known, "host1", "true", check=True)
    done = call(tmp_path, options, one)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["raised 'only here' True"]), done
    assert list((tmp_path / "meet").rglob("*")) == []


def test_other_machines_without_the_secret_get_nothing(cluster: MakeCluster, tmp_path: Path) -> None:
    """Neither the task nor a rank's answer: the exchange proves the job's secret first."""
    one, two = cluster(2).hosts
    code = (
        "import os, socket\n"
        "from horovod.launcher.function.exchange import Exchange, ask_for_task, bring_answer\n"
        "open('task', 'wb').write(b'the task')\n"
        "exchange = Exchange(b'x' * 32, '0.0.0.0', 'task', ['answer'])\n"
        "print(exchange.port, flush=True); input(); exchange.close()\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    server = subprocess.Popen(
        one.command(sys.executable, "-c", code, directory=tmp_path),
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None and server.stdin is not None
        port = int(server.stdout.readline())
        client = (
            "import sys; from horovod.launcher.function.exchange import ask_for_task, bring_answer\n"
            f"secret = sys.argv[1].encode() * 32; there = ({one.address!r}, {port}, secret)\n"
            "try: print(ask_for_task(*there)); bring_answer(*there, 0, b'mine')\n"
            "except Exception as error: print(type(error).__name__)\n"
        )
        asked = [
            subprocess.run(
                two.command(sys.executable, "-c", client, secret),
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
            ).stdout.strip()
            for secret in ("y", "x")
        ]
        server.communicate("\n")
    assert asked == ["AuthenticationError", "b'the task'"]
    assert (tmp_path / "answer").read_bytes() == b"mine"
