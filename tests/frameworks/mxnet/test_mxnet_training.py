# SPDX-License-Identifier: Apache-2.0
"""Training with horovod.mxnet is training: equal to one process on the whole batch, with Gluon and with Module."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.world import World, WorldPool

mx = pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

import horovod.mxnet as hvd

ROWS, STEPS = 24, 10
Parameters = list[np.ndarray[Any, Any]]


def data() -> tuple[Any, Any]:
    random = np.random.RandomState(1)
    return mx.nd.array(random.randn(ROWS, 1, 6, 6), dtype="float64"), mx.nd.array(random.randint(0, 3, (ROWS,)))


def network(start: int) -> Any:
    """Of which nobody knows the shapes until it sees data. `start`: what its values come from."""
    mx.random.seed(start)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(4, 3, activation="tanh"), mx.gluon.nn.Dense(8, activation="tanh"))
        net.add(mx.gluon.nn.Dense(3))
    net.cast("float64")
    net.initialize(mx.init.Normal(0.3))
    return net


def test_a_job_of_mxnet_cannot_be_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_PROFILE", "profile.json")
    for make in (
        lambda: hvd.DistributedOptimizer(mx.optimizer.SGD()),
        lambda: hvd.DistributedTrainer(network(1).collect_params(), "sgd"),
    ):
        with pytest.raises(ValueError, match="gradients of MXNet cannot be profiled"):
            make()


def gluon_steps(net: Any, trainer: Any, rows: slice, passes: int = 1) -> Parameters:
    images, labels = data()
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(STEPS):
        with mx.autograd.record():
            loss = loss_of(net(images[rows]), labels[rows])
        loss.backward()
        trainer.step(len(loss))
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def gluon_alone() -> Parameters:
    net = network(0)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    return gluon_steps(net, trainer, slice(0, ROWS))


def gluon_distributed(options: dict[str, Any] | None = None) -> Parameters:
    """Runs in a rank."""
    hvd.init()
    net = network(hvd.rank())  # start values come from rank 0
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    arguments = dict(options or {})
    if "compression" in arguments:
        arguments["compression"] = getattr(hvd.Compression, arguments["compression"])
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **arguments)
    return gluon_steps(net, trainer, slice(hvd.rank(), ROWS, hvd.size()))


def distance(a: Parameters, b: Parameters) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def check_equal(outcomes: list[Parameters], expected: Parameters, most: float = 1e-7) -> None:
    """MXNet rounds 1 / batch size to a float32."""
    for parameters in outcomes:
        assert distance(parameters, expected) < most
        for mine, first in zip(parameters, outcomes[0], strict=True):
            assert mine.tobytes() == first.tobytes(), "it differs from rank 0's"


@pytest.fixture(scope="module")
def alone(worlds: WorldPool) -> Parameters:
    (parameters,) = worlds(1).run(gluon_alone)
    return list(parameters)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
def test_gluon_equals_one_process_on_the_whole_batch(
    worlds: WorldPool, alone: Parameters, size: int, transport: str
) -> None:
    check_equal(worlds(size, {"HOROVOD_TRANSPORT": transport}).run(gluon_distributed), alone)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_predivide_factor": 2.0},
        {"num_groups": 2},
        {"num_groups": 100},
        {"prefix": "generator."},
    ],
    ids=str,
)
def test_options_of_the_trainer_that_do_not_change_the_result(
    worlds: WorldPool, alone: Parameters, options: dict[str, Any]
) -> None:
    check_equal(worlds(2).run(gluon_distributed, options), alone)


@pytest.mark.parametrize("options", [{}, {"num_groups": 2}], ids=str)
def test_compressed_gradients_train_all_ranks_alike(
    worlds: WorldPool, alone: Parameters, options: dict[str, Any]
) -> None:
    outcomes = worlds(2).run(gluon_distributed, {"compression": "fp16", **options})
    check_equal(outcomes, alone, most=0.1)
    assert distance(outcomes[0], alone) > 0


def symbol() -> Any:
    net = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3), name="softmax", normalization="batch")


def module_steps(wrapped: Any, rows: slice, start: int, broadcast: Any, **fit: Any) -> Parameters:
    """Momentum with the means of `rows`, from the values of `start`; `broadcast` makes these equal."""
    images, labels = data()
    inputs = images.reshape((ROWS, 36)).astype("float32")
    count = len(range(*rows.indices(ROWS)))
    batches = mx.io.NDArrayIter(inputs[rows], labels[rows], batch_size=count)
    mx.random.seed(start)
    with mx.name.NameManager():
        module = mx.mod.Module(symbol(), context=mx.cpu())
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Normal(0.3))
    arguments, auxiliary = module.get_params()
    broadcast(arguments)
    module.set_params(arguments, auxiliary)
    module.fit(batches, num_epoch=STEPS, optimizer=wrapped, eval_metric=mx.metric.create("ce"), **fit)
    return [value.asnumpy() for _, value in sorted(module.get_params()[0].items())]


def module_alone() -> Parameters:
    optimizer = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, rescale_grad=1.0)
    return module_steps(optimizer, slice(0, ROWS), 0, lambda arguments: None)


def module_distributed(kvstore: Any, options: dict[str, Any]) -> Parameters:
    """Runs in a rank. kvstore "made": one that MXNet uses for a single device, too, and that holds the optimizer."""
    hvd.init()
    kvstore = mx.kv.create("local") if kvstore == "made" else kvstore
    optimizer = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, rescale_grad=1.0)
    wrapped = hvd.DistributedOptimizer(optimizer, **options)
    rows = slice(hvd.rank(), ROWS, hvd.size())
    return module_steps(
        wrapped, rows, hvd.rank(), lambda arguments: hvd.broadcast_parameters(arguments, 0), kvstore=kvstore
    )


@pytest.mark.parametrize(
    ("size", "kvstore", "options"),
    [(2, None, {}), (2, "local", {}), (3, "made", {"gradient_predivide_factor": 2.0}), (2, None, {"num_groups": 2})],
)
def test_module_equals_one_process_on_the_whole_batch(
    worlds: WorldPool, size: int, kvstore: Any, options: dict[str, Any]
) -> None:
    (expected,) = worlds(1).run(module_alone)
    check_equal(worlds(size).run(module_distributed, kvstore, options), expected, most=1e-5)


def test_parameters_are_updated_on_all_ranks_or_on_none_and_mistakes_are_told(two: World) -> None:
    def run() -> tuple[list[float], list[str]]:
        body, head, never = (mx.gluon.Parameter(name, shape=(1,), init="zeros") for name in ("body", "head", "never"))
        for parameter in (body, head, never):
            parameter.initialize()
        trainer = hvd.DistributedTrainer([body, head, never], "sgd", {"learning_rate": 1.0, "wd": 0.5})

        def backward(with_head: bool) -> None:
            with mx.autograd.record():
                loss = body.data() * 2 + (head.data() * 4 if with_head else 0)
            loss.backward()

        backward(with_head=True)
        trainer.step(1, ignore_stale_grad=True)
        backward(with_head=hvd.rank() == 0)
        trainer.step(1, ignore_stale_grad=True)
        values = [float(parameter.data().asnumpy()[0]) for parameter in (body, head, never)]
        backward(with_head=hvd.rank() == 0)
        trainer.allreduce_grads()
        with pytest.raises(ValueError, match="the gradient of head on some ranks only"):
            trainer.update(1, ignore_stale_grad=True)
        backward(with_head=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.update(1, ignore_stale_grad=True)
            backward(with_head=True)
            trainer.allreduce_grads()
            trainer.step(1, ignore_stale_grad=True)
        return values, [str(each.message).splitlines()[0] for each in caught]

    said = ["update() without allreduce_grads()", "step() after allreduce_grads()"]
    (values, warned), others = two.run(run)
    assert values == [-3.0, -4.0, 0.0], "the head: -4, and then half of it and 2 of one of two ranks"
    assert [text.removeprefix("DistributedTrainer: ").startswith(one) for one, text in zip(said, warned, strict=True)]
    assert others == (values, []), "one rank says it"


def test_parameters_that_differ_are_named_before_the_first_step(two: World) -> None:
    def run() -> list[str]:
        weight = mx.gluon.Parameter("weight", shape=(1,), init=mx.init.Constant(hvd.rank()))
        weight.initialize()
        trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})
        with mx.autograd.record():
            loss = weight.data() * 2
        loss.backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.step(1)
        return [str(one.message) for one in caught]

    (text,), others = two.run(run)
    assert "before step 1 of the trainer, the ranks differ in `parameter 0: weight`; rank 0 is unlike rank 1" in text
    assert others == []


def test_a_set_trains_for_itself(worlds: WorldPool) -> None:
    def run() -> tuple[float, Parameters]:
        hvd.init()
        pair = hvd.add_process_set([0, 2])
        weight = mx.gluon.Parameter("weight", shape=(2,))
        weight.initialize(mx.init.One())
        trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0}, process_set=pair)
        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), process_set=pair)
        with mx.autograd.record():
            loss = (weight.data() * hvd.rank()).sum()
        loss.backward()
        trainer.step(1)
        plain = mx.nd.zeros((1,))
        optimizer.update(0, plain, mx.nd.ones((1,)) * hvd.rank(), None)
        result = [weight.data().asnumpy(), plain.asnumpy()]
        hvd.barrier()
        assert hvd.remove_process_set(pair)
        return result

    outcomes = worlds(3, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(run)
    # Ranks 0 and 2 take the mean of their gradients, rank 1 its own; all are 1.
    assert [weight.tolist() for weight, _ in outcomes] == [[0.0, 0.0]] * 3
    assert [plain.tolist() for _, plain in outcomes] == [[-1.0]] * 3


def test_a_set_that_is_not_registered_is_refused(two: World) -> None:
    def run() -> str:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), process_set=hvd.ProcessSet([0, 1]))
        with pytest.raises(ValueError) as caught:
            optimizer.update(0, mx.nd.zeros((1,)), mx.nd.ones((1,)), None)
        return str(caught.value)

    assert all("is not registered" in text for text in two.run(run))
