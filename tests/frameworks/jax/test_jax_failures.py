# SPDX-License-Identifier: Apache-2.0
"""What a rank learns inside of a compiled function of JAX: who is gone, and whose model differs."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV, jax_world
from support.jobs import run_job
from support.world import WorldPool

jax = pytest.importorskip("jax", reason="not run: jax is not installed")

import jax.numpy as jnp

import horovod.jax as hvd

STEP = """
import os, signal, sys, time
from pathlib import Path
import jax, jax.numpy as jnp
import horovod.jax as hvd
hvd.init()
x = jnp.ones((200, 200))
step = jax.jit(lambda x: hvd.allreduce_gradients({"w": x @ x * 1e-3}, name="model")["w"])
for _ in range(3):
    x = step(x)
x.block_until_ready()
# Rank 1 may have its result before rank 0, and ends only when rank 0 has it, too.
done = Path(__file__).with_name("done")
if hvd.rank() == 0: done.touch()
while not done.exists(): time.sleep(0.01)
"""
# Rank 0 ends with an error, rank 1 is the cause.
LEFT = STEP + "if hvd.rank() == 1: sys.exit(0)\nstep(x).block_until_ready()\n"
KILLED = STEP + "if hvd.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\nstep(x).block_until_ready()\n"
AT_ONCE = STEP + "if hvd.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\nhvd.allreduce(x, name='model')\n"
# JAX before 0.5 has another name for it, and another code in front of what went wrong later.
IN_COMPILED = "(JaxRuntimeError: UNAVAILABLE|XlaRuntimeError: .*Buffer Definition Event): .*rank 1 "


@pytest.mark.slow("jobs that import JAX")
@pytest.mark.parametrize(
    ("script", "cause", "error"),
    [
        (
            LEFT,
            "exited with code 0 while other ranks still waited for it",
            IN_COMPILED,
        ),
        pytest.param(KILLED, "was killed by SIGKILL", IN_COMPILED, marks=pytest.mark.thorough),
        pytest.param(AT_ONCE, "was killed by SIGKILL", "RankLostError: .*rank 1 ", marks=pytest.mark.thorough),
    ],
    ids=["left", "killed", "at once"],
)
def test_a_rank_that_is_gone_is_named(tmp_path: Path, script: str, cause: str, error: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=TENSORFLOW_ENV)
    assert done.code != 0
    last_words = done.stderr.rpartition("horovodrun: ")[2]
    assert last_words.startswith(f"rank 1 on host localhost {cause}"), done.stderr
    assert re.search(error, done.stderr) and "model" in done.stderr, done.stderr


GONE_ON = (
    STEP
    + """
if hvd.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(50):
    x = step(x)
try:
    hvd.allreduce(x)
except hvd.HorovodInternalError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
"""
)


@pytest.mark.slow("jobs that import JAX")
def test_a_call_outside_of_compiled_functions_raises_the_jobs_error_for_results_of_many_steps(tmp_path: Path) -> None:
    """JAX's own error for such an array says once for each step that it could not go on."""
    (tmp_path / "train.py").write_text(GONE_ON)
    env = {**TENSORFLOW_ENV, "HOROVOD_TERMINATION_GRACE_SECONDS": "60"}
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=env)
    found = re.findall(r"(\w+Error): (.*)", done.stderr)
    assert [kind for kind, _ in found] == ["RankLostError"], done.stderr
    assert "rank 1 " in found[0][1] and "dispatching" not in done.stderr, done.stderr


UNDER_WAY = """
import jax, jax.numpy as jnp
import horovod.jax as hvd
hvd.init()
@jax.jit
def step(x):
    x = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ y), x)
    return hvd.allreduce_gradients([x])[0]
x = jnp.ones((300, 300)) * 1e-3
for _ in range(4):
    x = step(x)
if hvd.rank() == 0:
    print(float(x.sum()) >= 0, flush=True)
"""


@pytest.mark.slow("jobs that import JAX")
def test_a_rank_that_is_done_finishes_what_is_under_way(tmp_path: Path) -> None:
    """JAX returns before a function has run. Rank 1 ends without looking at its results."""
    (tmp_path / "train.py").write_text(UNDER_WAY)
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=TENSORFLOW_ENV)
    assert (done.code, done.stdout) == (0, "[0]<stdout>:True\n"), done.stderr


TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


# An old XLA crashes with a result that failed and another device.
@pytest.mark.parametrize("devices", [1] if version("jax").startswith("0.4.") else [1, 2])
def test_an_operation_that_failed_leaves_later_functions_as_they_are(worlds: WorldPool, devices: int) -> None:
    """Also those that were called before anybody learned of the failure, on that device or on another one of the
    process, and those of the next generation."""

    def run() -> list[Any]:
        hvd.init()

        @jax.jit
        def total(x: Any) -> Any:
            late = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ y), x)
            return hvd.allreduce(late.sum(0) * 0 + 1, op=hvd.Sum)

        good = jax.device_put(jnp.ones((200, 200)), jax.devices()[-1])
        bad = jnp.ones((200 + 100 * hvd.rank(),) * 2)
        total.lower(bad).compile()
        total(good).block_until_ready()
        seen = []
        for _ in range(2):
            failed, called_before = total(bad), total(good)
            with pytest.raises(jax.errors.JaxRuntimeError, match="the ranks disagree"):
                failed.block_until_ready()
            if jax.__version_info__ < (0, 5):  # all that was called before the error was known has it, too
                with pytest.raises(jax.errors.JaxRuntimeError, match="the ranks disagree"):
                    called_before.block_until_ready()
            else:
                seen.append(float(called_before.max()))
            seen += [float(hvd.allreduce(jnp.ones(2), op=hvd.Sum)[0]), float(total(good).max())]
        total(bad)
        hvd.shutdown()
        hvd.init()
        return [*seen, float(total(good).max())]

    first, second = jax_world(worlds, **(TWO_DEVICES if devices > 1 else {})).run(run)
    assert first == second and set(first) == {2.0}


def test_a_function_that_runs_on_several_devices_of_a_process_is_refused(worlds: WorldPool) -> None:
    def run() -> None:
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        hvd.init()
        rows = NamedSharding(Mesh(np.array(jax.devices()), "devices"), PartitionSpec("devices"))
        spread = jax.device_put(jnp.ones((2, 3)), rows)
        with pytest.raises(NotImplementedError, match="runs on 2 devices of this process"):
            jax.jit(hvd.allreduce_gradients)([spread])
        with pytest.raises(ValueError, match=r"not supported for more than 1 device: \[Horovod\]"):
            jax.jit(hvd.allreduce)(spread)
        assert hvd.allreduce(spread, op=hvd.Sum).tolist() == [[2.0] * 3] * 2

    jax_world(worlds, **TWO_DEVICES).run(run)
