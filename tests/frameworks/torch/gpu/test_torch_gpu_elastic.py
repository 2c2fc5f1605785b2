# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose tensors lie on GPUs, which the stand-in has."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from support.elastic.elastic_jobs import ElasticJob
from support.gpu import standin

pytest.importorskip("torch", reason="not run: torch is not installed")

# After n steps the weight is -n, if none is lost or done twice: the average of the gradients is 1, and each rank's own
# gradient is something else. `ACT`: code for the moment before a gradient is reduced.
SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, os.environ["TESTS"])
from support.gpu import standin
import torch
import horovod.torch as hvd
from horovod.core.objects import allgather_object

worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
act = compile(os.environ.get("ACT", ""), "act", "exec")
hvd.init()
standin.with_gpus()
device = hvd.local_rank()
standin._current_device = lambda: device  # as torch.cuda.set_device
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
standin.module_to_gpu(model)
model.weight.register_post_accumulate_grad_hook(lambda _: exec(act, globals()))  # runs before the optimizer's own
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
)
state = hvd.elastic.TorchState(model, optimizer, step=0)

def right():
    return -float(model.weight.cpu()) == state.step

@hvd.elastic.run
def train(state):
    print("enter", worker, hvd.rank(), hvd.size(), state.step, os.getpid(), flush=True)
    assert right(), (state.step, model.weight)
    over = False
    while not over:
        over = bool(max(allgather_object(os.path.exists("end"))))
        time.sleep(0.02)
        optimizer.zero_grad()
        mine = hvd.size() if hvd.rank() == hvd.size() - 1 else 0
        model(standin.to_gpu(torch.full((1, 1), float(mine)))).backward()
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
races = standin.races()
print(races, end="")
batches = hvd.statistics()["batches_by_nccl"]
is_right = right() and not races and batches > 0
print("finished", worker, hvd.rank(), hvd.size(), state.step, batches, is_right, flush=True)
"""


def job_of(tmp_path: Path, *flags: str, act: str = "") -> ElasticJob:
    # PyTorch keeps this cache for its next process.
    more = {"TESTS": str(Path(__file__).parents[3]), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    env = standin.environment("nccl", **more)
    return ElasticJob(tmp_path, *flags, script=SCRIPT, act=act, env=env)


@pytest.mark.thorough
def test_survivors_leave_nccl_and_meet_in_it_again(tmp_path: Path) -> None:
    with job_of(tmp_path, "-np", "3", "--min-np", "1") as job:
        pids = job.wait_for_world(3)
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_line(r"enter 3 \d 3 [1-9]")  # the one in its place has got the others' state
        os.kill(pids[2], signal.SIGKILL)
        job.wait_for_line(r"enter 4 \d 3 [1-9]")
        said = job.finish()
    assert "2 losses survived" in said
    assert "cannot carry" not in said


@pytest.mark.thorough
def test_what_nccl_left_behind_when_it_was_aborted_is_saved_by_nobody(tmp_path: Path) -> None:
    """A worker is lost while the other one's GPU waits for it. The step goes on with what its memory has then."""
    is_lost = (
        "if worker == 0 and state.step == 5:\n"
        "    standin.library().standin_hold(standin.gpu().current_stream())\n"
        "    threading.Timer(1.5, os.kill, (os.getpid(), 9)).start()"
    )
    with job_of(tmp_path, "-np", "2", "--min-np", "1", act=is_lost) as job:
        job.wait_for_world(2)
        job.wait_for_line(r"enter 1 0 1 5 ")
        job.wait_for_line(r"enter 2 \d 2 [1-9]")
        assert "1 loss survived" in job.finish()


@pytest.mark.thorough
@pytest.mark.parametrize("call", ["cuEventQuery", pytest.param("cuStreamWaitEvent", marks=pytest.mark.thorough)])
def test_a_worker_whose_gpu_has_failed_is_replaced(tmp_path: Path, call: str) -> None:
    fails = f"if worker == 1 and state.step == 5: standin.library().standin_fail(b'{call}', 0, 700, 1 << 30)"
    with job_of(tmp_path, "-np", "2", "--min-np", "1", act=fails) as job:
        job.wait_for_world(2)
        job.wait_for_line(r"enter 0 0 1 [56] ")
        job.wait_for_line(r"enter 2 \d 2 [1-9]")
        said = job.finish()
    assert "1 loss survived" in said
    assert re.search(r"worker 1 .*DeviceLostError: .*CUDA error 700.* at .*train\.py:\d", said), said
