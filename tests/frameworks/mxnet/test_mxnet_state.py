# SPDX-License-Identifier: Apache-2.0
"""Start values, and what an optimizer and a trainer of horovod.mxnet are, with MXNet."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.world import World, WorldPool

from horovod.core.exceptions import MismatchError

mx = pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

import horovod.mxnet as hvd
from horovod.mxnet import ops


def dense(units: int = 2, **options: Any) -> Any:
    return mx.gluon.nn.Dense(units, prefix="net_", weight_initializer=mx.init.Normal(1.0), **options)


def test_parameters_get_the_roots_values_when_their_shapes_are_known(worlds: WorldPool, tmp_path: Path) -> None:
    """On rank 1, the root, they are known from the start, on rank 0 after the first forward pass, on rank 2 when they
    are loaded."""

    def run(path: str) -> list[Any]:
        hvd.init()
        mx.random.seed(hvd.rank())
        net = dense(in_units=3) if hvd.rank() == 1 else dense()
        net.initialize()
        hvd.broadcast_parameters(net.collect_params(), root_rank=1)
        if hvd.rank() == 2:
            mx.nd.save(path, {"weight": mx.nd.zeros((2, 3)), "bias": mx.nd.zeros((2,))})
            net.load_parameters(path)
        net(mx.nd.ones((1, 3)))
        first = net.weight.data().asnumpy()
        # Only once.
        net.weight.initialize(mx.init.One(), force_reinit=True)
        hvd.barrier()
        return [first.tolist(), net.weight.data().asnumpy().tolist()]

    outcomes = worlds(3).run(run, str(tmp_path / "net.params"))
    assert all(first == outcomes[1][0] for first, _ in outcomes)
    assert len({str(value) for value in np.ravel(outcomes[1][0])}) == 6, "they are random"
    assert all(later == np.ones((2, 3)).tolist() for _, later in outcomes)


def test_arrays_of_a_module_and_a_prefix(two: World) -> None:
    def run() -> list[float]:
        arguments = {name: mx.nd.ones((2,)) * hvd.rank() for name in ("b", "a")}
        auxiliary = {"a": mx.nd.ones((3, 1)) * hvd.rank()}
        hvd.broadcast_parameters(arguments, root_rank=1)
        hvd.broadcast_parameters(auxiliary, root_rank=0, prefix="auxiliary.")
        hvd.broadcast_parameters({})
        return [float(value.asnumpy().ravel()[0]) for value in (arguments["a"], arguments["b"], auxiliary["a"])]

    assert two.run(run) == [[1.0, 1.0, 0.0]] * 2


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (lambda: [mx.nd.ones((1,))], "expected a dict of parameters, got list\nhint: give net.collect_params"),
    "number": (lambda: {"a": 3}, "`a` is a int: expected an array or a parameter"),
    "fresh": (lambda: dense(in_units=3).collect_params(), "`net_bias` is not initialized\nhint: call net.initialize"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_broadcast_is_named_and_the_others_do_not_wait(two: World, case: str) -> None:
    def run(case: str) -> str:
        given = WRONG[case][0]() if hvd.rank() == 1 else {"a": mx.nd.ones((1,))}
        with pytest.raises(ValueError if hvd.rank() == 1 else mx.base.MXNetError) as caught:
            hvd.broadcast_parameters(given)
        return str(caught.value)

    for text in two.run(run, case):
        assert "rank 1" in text and WRONG[case][1] in text, text


def test_ranks_with_other_parameters_are_told(two: World) -> None:
    def run() -> str:
        names = ["a", "b"] if hvd.rank() == 1 else ["a"]
        with pytest.raises(mx.base.MXNetError) as caught:
            hvd.broadcast_parameters({name: mx.nd.ones((1,)) for name in names})
        return str(caught.value)

    for text in two.run(run):
        assert "rank 0 lacks `b`, which rank 1 has" in text


def test_what_is_set_on_a_wrapped_optimizer_is_set_on_the_optimizer(two: World) -> None:
    def run() -> None:
        plain = mx.optimizer.Adam(learning_rate=0.5, lr_scheduler=mx.lr_scheduler.FactorScheduler(10, base_lr=0.5))
        wrapped = hvd.DistributedOptimizer(plain)
        assert isinstance(wrapped, mx.optimizer.Optimizer)
        assert (wrapped.beta1, wrapped.learning_rate, wrapped.lr_scheduler) == (plain.beta1, 0.5, plain.lr_scheduler)
        wrapped.rescale_grad = 0.25
        wrapped.idx2name = {0: "weight"}
        wrapped.set_wd_mult({"weight": 3.0})
        assert (plain.rescale_grad, plain.idx2name, plain.wd_mult) == (0.25, {0: "weight"}, {"weight": 3.0})
        weight, gradient = mx.nd.ones((2,)), mx.nd.ones((2,)) * hvd.rank()
        wrapped.update(0, weight, gradient, wrapped.create_state(0, weight))
        assert gradient.asnumpy().tolist() == [0.5, 0.5] and plain.num_update == 1
        for made in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
            assert type(made) is hvd.DistributedOptimizer and made.num_update == 1
        with pytest.raises(AttributeError):
            wrapped.nothing  # noqa: B018

    two.run(run)


def test_options_that_cannot_be(two: World) -> None:
    def run() -> None:
        sgd = mx.optimizer.SGD()
        one, weight = (mx.gluon.Parameter(name, shape=(2,)) for name in ("one", "weight"))
        one.initialize()
        weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        wrong = [
            (lambda: hvd.DistributedOptimizer("sgd"), TypeError, "expected an mxnet.optimizer.Optimizer, got 'sgd'"),
            (lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd)), ValueError, "is a DistributedOptimizer"),
            (lambda: hvd.DistributedOptimizer(sgd, num_groups=-1), ValueError, "num_groups=-1: expected a number"),
            (lambda: hvd.DistributedOptimizer(sgd, 0.0), ValueError, "gradient_predivide_factor=0.0: expected"),
            (lambda: hvd.DistributedOptimizer(sgd, process_set=[0]), ValueError, "expected a ProcessSet"),
            (lambda: hvd.DistributedTrainer([], "sgd", compression="fp16"), ValueError, "hint: hvd.Compression.fp16"),
            (
                lambda: hvd.DistributedTrainer([], "sgd", kvstore="device"),
                TypeError,
                "does not take kvstore: Horovod re",
            ),
            (lambda: hvd.DistributedTrainer([], "sgd", kvstor=None), TypeError, "unexpected keyword argument 'kvstor'"),
            (lambda: hvd.DistributedTrainer([weight], "sgd"), ValueError, "start a process for each device"),
        ]
        for make, kind, text in wrong:
            with pytest.raises(kind, match=text):
                make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = hvd.DistributedTrainer([one], hvd.DistributedOptimizer(sgd))
        assert len([1 for each in caught if "the wrapped optimizer is used" in str(each.message)]) == (hvd.rank() == 0)
        assert trainer.optimizer is sgd

    two.run(run)


def test_the_first_gradients_have_the_highest_priority(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        push = ops.push

        def pushed(label: str, request: Any, inputs: Any, outputs: Any, order: Any, priority: int, step: Any) -> None:
            seen.append((request.name.decode(), priority))
            push(label, request, inputs, outputs, order, priority, step)

        parameters = {f"weight{number}": mx.gluon.Parameter(f"weight{number}", shape=(2,)) for number in (2, 10, 3)}
        parameters["fixed"] = mx.gluon.Parameter("fixed", shape=(2,), grad_req="null")
        for parameter in parameters.values():
            parameter.initialize()
        trainer = hvd.DistributedTrainer(parameters, "sgd", prefix="net.")
        ops.push = pushed
        try:
            trainer.allreduce_grads()
            hvd.allreduce(mx.nd.ones((1,)), name="mine", priority=7)
        finally:
            ops.push = push
        mx.nd.waitall()
        return seen

    expected = [(f"allreduce.net.gradient.{place}", -place) for place in range(3)] + [("allreduce.mine", 7)]
    assert two.run(run) == [expected] * 2


def test_the_last_gradient_of_a_step_does_not_wait_for_more(worlds: WorldPool) -> None:
    """Though what is ready may wait for more for minutes here."""

    def run() -> list[float]:
        hvd.init()
        parameters = [mx.gluon.Parameter(f"weight{number}", shape=(2,)) for number in range(40)]
        for parameter in parameters:
            parameter.initialize()
            parameter.grad()[:] = hvd.rank()
        trainer = hvd.DistributedTrainer(parameters, "sgd")
        for _ in range(3):
            trainer.allreduce_grads()
        return sorted({float(parameter.grad().asnumpy()[0]) for parameter in parameters})

    assert worlds(2, {"HOROVOD_CYCLE_TIME": "200000"}).run(run) == [[0.5]] * 2


def test_replicas_are_compared_with_the_trainers_state(two: World) -> None:
    def run() -> list[str]:
        rank = hvd.rank()
        mx.random.seed(0)
        net = dense(in_units=3)
        net.initialize()
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})

        def said(*arguments: Any) -> str:
            try:
                hvd.check_replicas(*arguments)
            except MismatchError as error:
                return str(error).splitlines()[0].removeprefix("check_replicas: the ranks differ in ")
            return ""

        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 3))).sum()
        loss.backward()
        trainer.step(1)
        texts = [said(net, trainer), said(net.collect_params()), said({"a": mx.nd.ones((2,))})]
        momentum = trainer._updaters[0].states[0]
        momentum[:] = momentum + rank
        texts += [said(net), said(net, trainer)]
        net.bias.set_data(mx.nd.array([0, rank]))
        texts += [said(net), said({"x": mx.nd.array([rank], dtype="int64")})]
        with pytest.raises(ValueError, match="check_replicas: expected a block or a dict of parameters"):
            hvd.check_replicas(3)
        return texts

    unlike = "rank 0 is unlike rank 1"
    state = f"`0 of state`; {unlike}"
    expected = ["", "", "", "", state, f"`parameter 1: net_bias`; {unlike}", f"`parameter 0`; {unlike}"]
    assert two.run(run) == [expected, expected]
