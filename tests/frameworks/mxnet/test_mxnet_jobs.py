# SPDX-License-Identifier: Apache-2.0
"""Scripts of MXNet in horovodrun: how they end, and what they may do beside."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks.test_examples import horovodrun
from support.pages import ROOT

pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

BEGIN = """
import mxnet as mx
import horovod.mxnet as hvd
hvd.init()
"""

# A busy machine may need more than the second that others have to print their errors.
UNTIL_ITS_OWN_END = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def run(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    file = folder / "script.py"
    file.write_text(BEGIN + script)
    return horovodrun("-np", "2", sys.executable, str(file), **env)


def test_a_script_may_end_while_calls_wait_for_ranks_that_never_call(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
if hvd.rank() == 0:
    for _ in range(5):
        hvd.allreduce(mx.nd.ones((3,)), name="alone")
hvd.broadcast_object(None)  # none of them ends before the other
hvd.shutdown()
print("end")
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(">:end") == 2
    assert "Traceback" not in done.stderr


def test_a_bug_on_one_rank_ends_the_job_and_stands_in_the_report(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        f"""{UNTIL_ITS_OWN_END}
weight = mx.gluon.Parameter("weight", shape=(4,))
weight.initialize(mx.init.One())
trainer = hvd.DistributedTrainer([weight], "sgd")
for step in range(100000):
    with mx.autograd.record():
        loss = (weight.data() * weight.data()).sum()
    loss.backward()
    trainer.step(1)
    if step == 5 and hvd.rank() == 1:
        raise ValueError("a bug of its own")
    loss.asscalar()
""",
        HOROVOD_TERMINATION_GRACE_SECONDS="60",
    )
    assert done.returncode == 1
    assert "ValueError: a bug of its own" in done.stderr
    assert "horovodrun: rank 1 on host localhost exited with code 1" in done.stderr
    assert "[0]<stderr>:horovod.core.exceptions.RankLeftError" in done.stderr, done.stderr
    assert "NotRunningError" not in done.stderr, "what fails because a rank ends itself is no news there"


# Rank 1 has its result before rank 0, and waits until rank 0 has it, too.
LOST = f"""{UNTIL_ITS_OWN_END}
import os, time
from pathlib import Path
array = mx.nd.ones((3,))
hvd.allreduce(array, name="before").wait_to_read()
done = Path(__file__).with_name("done")
if hvd.rank() == 1:
    while not done.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
done.touch()
results = [hvd.allreduce(array, name="result%d" % number) for number in range(3)]
"""


# Until the operations have failed, of which nobody reads one.
WAIT = """
import time
from horovod.core import context
while context.current().end_seen() is None:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("results[0].asnumpy()", "Traceback "),
        (WAIT, "horovod: error in a result that was never read: RankLostError: "),
    ],
    ids=["read", "not read"],
)
def test_a_lost_rank_is_told_once_though_several_results_have_failed(tmp_path: Path, rest: str, expected: str) -> None:
    done = run(tmp_path, f"{LOST}{rest}\n", HOROVOD_TERMINATION_GRACE_SECONDS="60")
    assert done.returncode != 0
    said = r"^\[0\]<stderr>:(Traceback |horovod: error in a result that was never read: \w+: |Exception ignored)"
    told = re.findall(said, done.stderr, re.MULTILINE)
    assert told == [expected], done.stderr


@pytest.mark.thorough
def test_mxnet_and_pytorch_share_one_world(tmp_path: Path) -> None:
    """PyTorch, which works with MXNet's NumPy, comes from the environment of the other tests."""
    other = ROOT / ".venv" / "bin" / "python"
    find = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
    found = (
        subprocess.run([str(other), "-c", find], capture_output=True, text=True, check=False)
        if other.exists()
        else None
    )
    if found is None or found.returncode != 0:
        pytest.skip("not run: torch is not installed")
    done = run(
        tmp_path,
        f"""
import sys
sys.path.append({str(Path(found.stdout).parent)!r})
import torch
import horovod.torch as of_torch
for step in range(3):
    arrays = hvd.allreduce(mx.nd.ones((2,)) * hvd.rank(), name="array", op=hvd.Sum)
    handle = of_torch.allreduce_async(torch.full((2,), float(step)), name="tensor", op=of_torch.Sum)
    print(arrays.asnumpy().tolist(), of_torch.synchronize(handle).tolist())
one = hvd.allgather(mx.nd.ones((1,)), name="both") if hvd.rank() else of_torch.allgather(torch.zeros(1), name="both")
print(one.asnumpy().tolist() if hvd.rank() else one.tolist())
print(of_torch.statistics()["batches"] == hvd.statistics()["batches"])
hvd.shutdown()
print(of_torch.is_initialized())
""",
    )
    assert done.returncode == 0, done.stderr
    said = [f"[1.0, 1.0] [{2.0 * step}, {2.0 * step}]" for step in range(3)] + ["[0.0, 1.0]", "True", "False"]
    for rank in range(2):
        assert [line.partition(">:")[2] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")] == said


def test_data_loader_workers_are_no_ranks(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
random = mx.nd.random.normal(shape=(64, 4))
data = mx.gluon.data.ArrayDataset(random.asnumpy(), random.sum(axis=1, keepdims=True).asnumpy())
net = mx.gluon.nn.Dense(1)
net.initialize()
hvd.broadcast_parameters(net.collect_params())
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
count = 0
for inputs, targets in mx.gluon.data.DataLoader(data, batch_size=8, num_workers=2):
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(net(inputs), targets)
    loss.backward()
    trainer.step(8)
    count += len(inputs)
weight = net.weight.data()
print(count, bool((hvd.allreduce(weight, op=hvd.Max) == hvd.allreduce(weight, op=hvd.Min)).min().asscalar()))
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(">:64 True") == 2


def test_the_other_threaded_engine_of_mxnet_keeps_errors(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
try:
    hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="uneven").asnumpy()
except mx.base.MXNetError as error:
    print("expected" in str(error), hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).asscalar())
""",
        MXNET_ENGINE_TYPE="ThreadedEngine",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(">:True 2.0") == 2
