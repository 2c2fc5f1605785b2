# SPDX-License-Identifier: Apache-2.0
"""MXNetState, in worlds of real ranks that end and begin again."""

from __future__ import annotations

from typing import Any

import pytest
from support.elastic.elastic_session import check_that_training_survives, trained
from support.world import World

mx = pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

import horovod.mxnet as hvd
from horovod.mxnet.elastic_state import MXNetState


def built(seed: int) -> tuple[Any, Any]:
    """A network with statistics, and a trainer, that differ from seed to seed."""
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Dense(3, in_units=4), mx.gluon.nn.BatchNorm(in_channels=3), mx.gluon.nn.Dense(1, in_units=3)
        )
    net.initialize(mx.init.Normal(1.0))
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.9, base_lr=0.1 * (seed + 1))
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"lr_scheduler": schedule})
    return net, trainer


def step(net: Any, trainer: Any, seed: int) -> None:
    data = mx.nd.array([[seed + place + 1.0 for place in range(4)], [1.0, -seed, 2.0, 0.0]])
    with mx.autograd.record():
        loss = (net(data) ** 2).mean()
    loss.backward()
    trainer.step(1)


def numbers(net: Any, trainer: Any) -> Any:
    slots = [[part.asnumpy().tolist() for part in slot] for _, slot in sorted(trainer._updaters[0].states.items())]
    named = net.collect_params()
    return [named[name].data().asnumpy().tolist() for name in sorted(named)], slots, trainer.learning_rate


def test_a_sync_gives_all_ranks_rank_0s_state_and_saves_it(two: World) -> None:
    def run() -> Any:
        net, trainer = built(hvd.rank())
        arrays = {"b": mx.nd.ones((2,)) * hvd.rank(), "a": mx.nd.ones((1, 1), dtype="float16") * hvd.rank()}
        state = MXNetState(net, trainer, averages=arrays, epoch=hvd.rank())
        for place in range(3):
            step(net, trainer, place)
        state.sync()
        synced = numbers(net, trainer)
        assert state.params is net and state.trainer is trainer and state.averages is arrays
        facts = synced, [arrays[name].asnumpy().tolist() for name in "ab"], state.epoch
        for _ in range(2):
            step(net, trainer, 7)
            arrays["a"][:] = 5
            state.epoch = 9
            assert numbers(net, trainer) != synced
            state.restore()
            assert (numbers(net, trainer), [arrays[name].asnumpy().tolist() for name in "ab"], state.epoch) == facts
        return facts

    first, second = two.run(run)
    assert first == second and first[1:] == ([[[0.0]], [0.0, 0.0]], 0)
    assert len(first[0][1]) > 0, "the optimizer has slots"


def test_parameters_without_values_are_named() -> None:
    net = mx.gluon.nn.Dense(2, prefix="net_")
    net.initialize()
    with pytest.raises(ValueError, match=r"MXNetState: the parameter `net_\w+` has no values yet\nhint: net.init"):
        MXNetState(net)


def test_training_survives_losses_and_changes_and_ends_as_if_nothing_had_been(two: World) -> None:
    """What fails is in MXNet's arrays, which must not become what is saved."""

    def run(events: dict[int, str]) -> Any:
        net, trainer = built(hvd.rank())
        state = MXNetState(net, trainer, batch=0)

        def train(batch: int) -> None:
            step(net, trainer, batch + hvd.rank())

        return trained(state, train, lambda: numbers(net, trainer), events)

    check_that_training_survives(two, run)  # on rank 0: the statistics are each rank's own
