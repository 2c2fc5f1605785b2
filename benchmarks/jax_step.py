#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of JAX with 160 gradients, compiled, on the CPU, beside JAX's own data parallelism:

    alone       the step without any communication
    one tensor  reduces one array of as many bytes, at the same place: after the last gradient, before the first update
    horovod     with hvd.DistributedGradientTransformation
    jax         jax.distributed, parameters on all processes and the batch spread over them (Gloo carries the gradients)

    horovodrun -np 2 python benchmarks/jax_step.py --json benchmarks/records/jax-step-np2.json

The sides take turns; a round's time is the median of its calls, the slowest rank's. What a side adds to a step is the
median over the rounds of the difference to `alone`, here for each tensor. Most of it is no matter of their number: the
ranks wait for the slowest of them, and the bytes are added. So the last column is the difference to `one tensor`.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from in_turns import measure, parser_of
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import horovod.jax as hvd
from horovod.bench.record import Session

Step = Callable[[], Any]


def loss_of(weights: list[Any], batch: jax.Array) -> jax.Array:
    for weight in weights:
        batch = jnp.tanh(batch @ weight)
    return (batch**2).mean()


def make_side(optimizer: Any, weights: Any, batch: Any, place: Callable[[Any], Any]) -> Step:
    """A step that keeps its own weights and state."""
    held = [jax.tree_util.tree_map(place, weights), jax.tree_util.tree_map(place, optimizer.init(weights))]

    def one(weights: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    compiled = jax.jit(one, donate_argnums=(0, 1))

    def step() -> Any:
        held[0], held[1], loss = compiled(*held, batch)
        jax.block_until_ready(held)
        return loss

    return step


def with_one_tensor(optimizer: Any, weights: list[Any]) -> Any:
    """An optimizer that trains alone, and reduces one array as large as all weights between gradients and updates."""

    def init(params: Any) -> Any:
        return jnp.zeros(sum(weight.size for weight in weights)), optimizer.init(params)

    def update(gradients: list[Any], state: Any, params: Any) -> Any:
        array, inner = state
        # It needs a value of each gradient, and each update one of its result.
        array = array.at[: len(gradients)].set(jnp.stack([gradient[0, 0] for gradient in gradients]))
        array = hvd.allreduce_gradients(array)
        gradients = [gradient + 0 * array[index] for index, gradient in enumerate(gradients)]
        updates, inner = optimizer.update(gradients, inner, params)
        return updates, (array, inner)

    return optax.GradientTransformation(init, update)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    arguments = parser_of(__doc__, calls=20, tensors=160, width=64).parse_args()
    session = Session(arguments.json, ("python", "benchmarks/jax_step.py"))
    hvd.init()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    port = hvd.broadcast_object(free_port())
    jax.distributed.initialize(f"127.0.0.1:{port}", hvd.size(), hvd.rank())

    random = np.random.default_rng(1)
    shape = (arguments.tensors, arguments.width, arguments.width)
    weights = list((random.standard_normal(shape) / arguments.width**0.5).astype(np.float32))
    batch = np.random.default_rng(hvd.rank()).standard_normal((32, arguments.width)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    everywhere, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("ranks"))
    mine = jax.local_devices()[0]
    sgd = optax.sgd(0.01, momentum=0.9)
    local = lambda array: jax.device_put(array, mine)  # noqa: E731
    whole = lambda array: jax.make_array_from_process_local_data(everywhere, np.asarray(array))  # noqa: E731
    sides = {
        "alone": make_side(sgd, weights, local(batch), local),
        "one tensor": make_side(with_one_tensor(sgd, weights), weights, local(batch), local),
        "horovod": make_side(hvd.DistributedGradientTransformation(sgd), weights, local(batch), local),
        "jax": make_side(sgd, weights, jax.make_array_from_process_local_data(spread, batch), whole),
    }
    losses: dict[str, Any] = {}
    for name, side in sides.items():
        for _ in range(3):
            losses[name] = side()
    ours = float(hvd.allreduce(losses["horovod"]))
    theirs = float(np.asarray(losses["jax"].addressable_data(0)))
    if not np.isclose(ours, theirs, rtol=1e-5):
        raise AssertionError(f"the sides train differently: the loss is {ours} with Horovod, {theirs} with JAX")
    session.begin("not a side of this measurement")
    seconds = measure(sides, arguments.rounds, arguments.calls)
    count_bytes = sum(weight.nbytes for weight in weights)
    session.rows.append({"tensors": len(weights), "bytes": count_bytes, "jax": jax.__version__, "seconds": seconds})
    session.print(f"{'side':>10} {'us a step':>10} {'us a tensor over alone':>23} {'over one tensor':>16}")
    for name, times in seconds.items():
        over_alone, over_one = [
            statistics.median(b - a for a, b in zip(seconds[other], times, strict=True)) * 1e6 / len(weights)
            for other in ("alone", "one tensor")
        ]
        session.print(f"{name:>10} {statistics.median(times) * 1e6:>10.0f} {over_alone:>23.2f} {over_one:>16.2f}")
    return session.end()


if __name__ == "__main__":
    sys.exit(main())
