# SPDX-License-Identifier: Apache-2.0
"""horovodrun --profile: jobs of one and of two ranks leave a profile, which python -m horovod.simulate reads."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.extent import later
from support.forecasts import undisturbed, warnings_of
from support.jobs import Job, python, run_job

from horovod.simulate.__main__ import main

TRAIN = """
import torch, horovod.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
unused = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
names = [*model.named_parameters(), ("unused", unused)]
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names, backward_passes_per_step=PASSES)
for step in range(STEPS):
    optimizer.zero_grad()
    for _ in range(PASSES):
        model(torch.randn(4, 8)).square().mean().backward()
    assert unused.grad is None
    optimizer.step()
print("weight", float(model[0].weight[0, 0].detach()), flush=True)
"""

# 60 steps must not be over before the signal comes.
SAY_STEP = '    optimizer.step(); print("step", step, flush=True); __import__("time").sleep(0.02 * (step > 35))'


def environment(tmp_path: Path) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}  # torch's folder would stay in TMPDIR


def script(steps: int, passes: int = 1) -> list[str]:
    return python(TRAIN.replace("STEPS", str(steps)).replace("PASSES", str(passes)))


# The profile of TensorFlow is one of two ranks.
@pytest.mark.slow("trains in PyTorch, and forecasts")
@pytest.mark.parametrize(("ranks", "passes"), [(1, 2), later(2, 1)])
def test_a_job_leaves_a_profile_that_can_be_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: int, passes: int
) -> None:
    env = {**environment(tmp_path), "HOROVOD_REPLICA_CHECK_STEPS": "2", "HOROVOD_REPLICA_CHECK": "error"}
    done = run_job(tmp_path, "-np", str(ranks), "--profile", "profile.json", script(45, passes), env=env)
    assert done.code == 0, done
    for text in "the ranks train apart, gradients are not reduced", "the profile of 34 steps is in profile.json; end":
        assert text in done.stderr
    assert not warnings_of(done.stderr), done
    assert "exchanged nothing" not in done.stderr
    content = json.loads((tmp_path / "profile.json").read_text())
    assert content["busy_ranks"] == ranks and content["device"] == "cpu" and content["packages"]["torch"]
    gradients = content["gradients"]
    sizes = dict(zip(gradients["name"], gradients["bytes"], strict=True))
    assert sizes == {"2.bias": 4, "2.weight": 64, "0.bias": 64, "0.weight": 512, "unused": 12}
    assert gradients["name"][0].startswith("2.") and gradients["name"][-1] == "unused"
    assert len(content["step_ms"]) == 34 and content["backward_ms"]["median"] > 0 < content["update_ms"]["median"]
    words = [word for line in done.stdout.splitlines() for word in line.split()[1:]]
    assert len(set(words)) == ranks, "ranks train apart"
    arguments = ["forecast", undisturbed(tmp_path / "profile.json"), "--link", "1gbit-tcp", "--ranks-a-host", "2"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "5 gradients, 0.0 MB, step of a rank " in printed
    assert ("warning: the profile is of 1 busy rank on its host, not of 2\nhint: " in printed) == (ranks == 1)


NONE_WRITTEN = "horovodrun: warning: no profile was written to profile.json\nhint: rank 0 says why, above; "
# It knows of profiles as the package of every framework does, which takes longer to import.
PLAIN = """
import numpy, horovod.core as hvd, horovod.gradients.recording
hvd.init()
for _ in range(40):
    hvd.allreduce(numpy.ones(2), name="gradient")
"""


def test_a_job_that_leaves_no_profile_says_so(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "1", "--profile", "profile.json", [sys.executable, "-c", "pass"])
    assert done.code == 0 and NONE_WRITTEN in done.stderr


def test_a_script_that_reduces_by_plain_allreduce_is_told_what_is_recorded(tmp_path: Path) -> None:
    flags = ["-np", "2", "--profile", "profile.json", "--report", "report"]
    done = run_job(tmp_path, *flags, python(PLAIN))
    assert done.code == 0 and done.stderr.count("no profile was written: no gradient was recorded\n") == 1, done
    assert "DistributedOptimizer, DistributedGradientTape or value_and_grad" in done.stderr
    assert NONE_WRITTEN in done.stderr and "31" not in done.stderr


@pytest.mark.slow("a job in PyTorch")
def test_a_job_that_is_ended_by_ctrl_c_leaves_what_it_has(tmp_path: Path) -> None:
    endless = python(TRAIN.replace("STEPS", "10**9").replace("PASSES", "1").replace("    optimizer.step()", SAY_STEP))
    with Job(tmp_path, "-np", "1", "--profile", "profile.json", endless, env=environment(tmp_path)) as job:
        job.wait_for_line("step 40")
        os.kill(job.launcher(), signal.SIGINT)
        done = job.wait()
    assert done.code == 130, done
    assert "steps is in profile.json; end" in done.stderr and "no profile" not in done.stderr, done
    assert len(json.loads((tmp_path / "profile.json").read_text())["step_ms"]) >= 29


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-np", "2", "-H", "localhost:1,other:1"], "--profile records the ranks of one host, these are on 2\nhint: "),
        (["-np", "2", "--min-np", "1"], "--profile is not for elastic jobs: their workers come and go\nhint: "),
        (["-np", "1", "--profile", ""], "--profile got an empty name\nhint: give the name of a file"),
        (["-np", "1", "--profile", "none/p"], "--profile none/p: No such file or directory\nhint: give a file"),
    ],
)
def test_jobs_that_cannot_be_profiled_are_refused(tmp_path: Path, flags: list[str], text: str) -> None:
    done = run_job(tmp_path, "--profile", "profile.json", *flags, "true")
    assert done.code == 2 and text in done.stderr


@pytest.mark.parametrize("flag", ["--timeline-filename", "--output-filename", "--report", "--hostfile"])
def test_a_file_that_is_given_twice_is_refused_and_left_as_it_is(tmp_path: Path, flag: str) -> None:
    (tmp_path / "x").write_text("localhost slots=1\n")
    done = run_job(tmp_path, "-np", "1", flag, "./x", "--profile", "x", "true")
    assert done.code == 2 and f"x is given twice, as {flag} and as --profile\nhint: " in done.stderr
    assert (tmp_path / "x").read_text() == "localhost slots=1\n"
