# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow's operations: eagerly, in tf.function, in graphs of TensorFlow 1 and in what XLA compiles; their
gradients and errors."""

from __future__ import annotations

import os
import pickle
import re
from typing import Any

import numpy as np
import pytest
from support.frameworks import TENSORFLOW_ENV
from support.world import World, WorldPool

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

import horovod.tensorflow as hvd
from horovod.tensorflow import xla


def modes(function: Any) -> Any:
    """`function(*tensors)` run eagerly, in tf.function, and in a graph of TensorFlow 1: what it returns, as arrays."""

    def of_graph(*tensors: Any) -> Any:
        with tf.Graph().as_default() as graph:
            placeholders = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in tensors]
            results = function(*placeholders)
            with tf.compat.v1.Session(graph=graph) as session:
                return session.run(results, {p: t.numpy() for p, t in zip(placeholders, tensors, strict=True)})

    return {"eager": function, "function": tf.function(function), "graph": of_graph}


@pytest.mark.oldest_tensorflow
def test_places_are_operations_in_every_mode(world: World) -> None:
    def run() -> list[Any]:
        def places(_: Any) -> list[Any]:
            known = [hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op()]
            return [*known, hvd.process_set_included_op()]

        return [[int(place) for place in function(tf.ones(1))] for function in modes(places).values()]

    assert world.run(run) == [[[2, rank, 2, rank, 1]] * 3 for rank in range(2)]


def test_a_function_takes_tensors_of_changing_shape(world: World) -> None:
    def run() -> list[list[float]]:
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def total(tensor: Any) -> Any:
            return hvd.allreduce(tensor, op=hvd.Sum, name="changing")

        return [total(tf.ones([length])).numpy().tolist() for length in (1, 3, 3, 3, 2, 0)]

    assert world.run(run) == [[[2.0] * length for length in (1, 3, 3, 3, 2, 0)]] * 2


def test_a_function_takes_changing_splits_of_one_shape(world: World) -> None:
    first_rows = (1, 2, 0, 3, 2, 2, 1)

    def run() -> list[Any]:
        @tf.function(input_signature=[tf.TensorSpec([3], tf.int32), tf.TensorSpec([2], tf.int32)])
        def exchange(rows: Any, splits: Any) -> Any:
            return hvd.alltoall(rows, splits=splits, name="changing_splits")

        sent = tf.range(3) + 10 * hvd.rank()
        return [[part.numpy().tolist() for part in exchange(sent, [first, 3 - first])] for first in first_rows]

    to_rank_0 = [[[*range(first), *range(10, 10 + first)], [first] * 2] for first in first_rows]
    to_rank_1 = [[[*range(first, 3), *range(10 + first, 13)], [3 - first] * 2] for first in first_rows]
    assert world.run(run) == [to_rank_0, to_rank_1]


def test_sparse_tensors_are_gathered(world: World) -> None:
    def run() -> list[Any]:
        rank = hvd.rank()
        slices = tf.IndexedSlices(tf.ones([2, 1]) * (rank + 1), tf.constant([rank, 3]), tf.constant([5, 1]))
        average, total = hvd.allreduce(slices), hvd.grouped_allreduce([slices, tf.ones(2)], op=hvd.Sum)
        with pytest.raises(NotImplementedError, match="Average and Sum"):
            hvd.allreduce(slices, op=hvd.Max)
        dense = [tf.convert_to_tensor(each).numpy().ravel().tolist() for each in (average, total[0])]
        return [*dense, total[1].numpy().tolist()]

    expected = [[0.5, 1, 0, 1.5, 0], [1, 2, 0, 3, 0], [2, 2]]
    assert world.run(run) == [expected] * 2


@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_the_average_of_sparse_integers_is_not_rounded(world: World, how: str, dtype: str) -> None:
    """As in Horovod; a dense one keeps its dtype."""

    def run(how: str, dtype: str) -> list[Any]:
        def averages(values: Any) -> Any:
            slices = tf.IndexedSlices(values, tf.constant([hvd.rank(), 3]), tf.constant([5, 1]))
            single, (grouped, dense) = hvd.allreduce(slices), hvd.grouped_allreduce([slices, values])
            sums = hvd.allreduce(slices, op=hvd.Sum)
            assert (sums.values.dtype, dense.dtype) == (values.dtype, values.dtype)
            assert single.values.dtype == grouped.values.dtype == (values / values).dtype
            return [tf.reshape(tf.convert_to_tensor(each), [-1]) for each in (single, grouped, sums)]

        called = averages if how == "eager" else tf.function(averages, autograph=False)
        return [each.numpy().tolist() for each in called(tf.constant([[3], [1]], dtype))]

    expected = [[1.5, 1.5, 0, 1.0, 0]] * 2 + [[3, 3, 0, 2, 0]]
    assert world.run(run, how, dtype) == [expected] * 2


@pytest.mark.oldest_tensorflow
def test_gradients_of_every_operation(world: World) -> None:
    def run() -> list[str]:
        rank = hvd.rank()
        weights = tf.constant([1.0, 2.0, 3.0, 4.0]) * (rank + 1)  # of the results, in rank order
        cases: dict[str, tuple[Any, Any]] = {
            "allreduce": (lambda x: hvd.allreduce(x) * weights[:2], [1.5, 3.0]),
            "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum) * weights[:2], [3.0, 6.0]),
            "grouped": (lambda x: tf.concat(hvd.grouped_allreduce([x, x * x]), 0) * weights, [10.5, 27.0]),
            "allgather": (lambda x: hvd.allgather(x) * weights, ([1.5, 3.0], [4.5, 6.0])[rank]),
            "broadcast": (lambda x: hvd.broadcast(x, 1) * weights[:2], ([0, 0], [1.5, 3.0])[rank]),
            "alltoall": (lambda x: hvd.alltoall(x) * weights[:2], ([1.0, 2.0], [2.0, 4.0])[rank]),
            "alltoall splits": (
                lambda x: hvd.alltoall(x, splits=[1, 0])[0] * (rank + 1.0),
                [1.0, 0.0],
            ),
            "reducescatter": (lambda x: hvd.reducescatter(x) * (rank + 1.0), [1.0, 2.0]),
            "reducescatter sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum) * (rank + 1.0), [2.0, 4.0]),
        }
        wrong = []
        for name, (call, expected) in cases.items():

            def gradient(x: Any, call: Any = call) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = tf.reduce_sum(call(x))
                return tape.gradient(loss, x)

            x = tf.constant([1.0, 2.0])
            seen = [gradient(x).numpy(), tf.function(gradient)(x).numpy()]
            if not np.array_equal(seen[0], seen[1]) or not np.array_equal(seen[0], expected):
                wrong.append(f"{name}: {seen}, expected {expected}")
        return wrong

    assert world.run(run) == [[], []]


def test_gradients_of_one_node_may_be_taken_apart(world: World) -> None:
    def run() -> list[str]:
        cases: dict[str, tuple[Any, list[float]]] = {
            "grouped_allreduce": (lambda x: hvd.grouped_allreduce(x), [1.5, 15.0, 150.0]),
            "grouped_allgather": (lambda x: hvd.grouped_allgather(x), [1.5, 15.0, 150.0]),
            "grouped_reducescatter": (lambda x: hvd.grouped_reducescatter(x), [1.0, 10.0, 100.0]),
        }
        wrong = []
        for name, (operation, expected) in cases.items():
            with tf.Graph().as_default() as graph:
                inputs = [tf.ones([50_000]) for _ in expected]
                results = operation(inputs)
                factors = [tf.constant(factor * (hvd.rank() + 1)) for factor in (1.0, 10.0, 100.0)]
                nodes = [
                    tf.gradients(result * factor, tensor)[0][0]
                    for result, factor, tensor in zip(results, factors, inputs, strict=True)
                ]
                with tf.compat.v1.Session(graph=graph) as session:
                    for _ in range(10):
                        seen = [float(value) for value in session.run(nodes)]
            if seen != expected:
                wrong.append(f"{name}: {seen}, expected {expected}")
        return wrong

    assert world.run(run) == [[], []]


def test_the_gradient_of_alltoall_has_the_inputs_type(world: World) -> None:
    def run() -> list[Any]:
        with tf.Graph().as_default() as graph:
            sent = tf.ones([3], tf.float64)
            received, _ = hvd.alltoall(sent, splits=[1, 1])
            (gradient,) = tf.gradients(received, sent, grad_ys=tf.fill([2], np.float32(hvd.rank() + 1)))
            assert gradient.dtype == tf.float64
            with tf.compat.v1.Session(graph=graph) as session:
                return list(session.run(gradient).tolist())

    assert world.run(run) == [[1.0, 2.0, 0.0]] * 2


def test_more_rows_than_received_splits_can_count_are_an_error(world: World) -> None:
    def run() -> str:
        try:
            hvd.alltoall(tf.zeros((3 << 30, 0)), splits=tf.constant([3 << 30, 0], tf.int64))  # no bytes
        except tf.errors.UnimplementedError as error:
            return str(error)
        return "none"

    counted, none = world.run(run)
    assert "alltoall: 3221225472 rows came from member 0, and TensorFlow's received splits are int32" in counted
    assert none == "none"  # it gets no rows


@pytest.mark.oldest_tensorflow
def test_errors_are_tensorflows_with_the_engines_text(world: World) -> None:
    def run() -> bool:
        rank = hvd.rank()
        with pytest.raises(ValueError if rank == 0 else tf.errors.FailedPreconditionError, match="0-d"):
            hvd.allgather(tf.constant(1.0) if rank == 0 else tf.ones(2), name="scalar")
        with pytest.raises(ValueError, match="dtype string: expected one of"):
            hvd.allreduce(tf.constant(["text"]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {rank}: .*root_rank=7") as caught:
            hvd.broadcast(tf.ones(2), 7)  # what Horovod raised for it; and a ValueError, as in the other frameworks
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        return bool(hvd.allreduce(tf.ones(2), op=hvd.Sum).numpy().tolist() == [2, 2])

    assert world.run(run) == [True, True]


def test_a_lost_rank_is_named(worlds: WorldPool) -> None:
    def run() -> str:
        hvd.init()
        hvd.allreduce(tf.ones(2))
        if hvd.rank() == 1:
            os._exit(3)
        try:
            hvd.allreduce(tf.ones(2), name="lonely")
        except tf.errors.UnknownError as error:
            return str(error)
        return "no error"

    with World(2, TENSORFLOW_ENV) as world:
        outcomes = world.run_each(run)
    assert "rank 1" in outcomes[0].value and "lonely" in outcomes[0].value
    assert outcomes[1].died


@pytest.mark.oldest_tensorflow
def test_steps_that_xla_compiles_reduce(world: World) -> None:
    def run() -> list[Any]:
        assert xla.problem() is None
        rank = hvd.rank()

        @tf.function(jit_compile=True)
        def step(x: Any, y: Any) -> Any:
            return [each + 1 for each in hvd.grouped_allreduce([x * (rank + 1.0), y], op=hvd.Sum)]

        before = xla.calls()
        seen = [each.numpy().tolist() for each in step(tf.ones(3), tf.ones(2, tf.float64))]
        assert xla.calls() == before + 1
        with pytest.raises(tf.errors.InternalError, match=r"rank 1: expected shape \[3\], got \[4\]"):
            tf.function(lambda x: hvd.allreduce(x, name="compiled"), jit_compile=True)(tf.ones(3 + rank))
        with pytest.raises(NotImplementedError, match="jit_compile=False"):
            tf.function(lambda x: hvd.allgather(x), jit_compile=True, autograph=False)(tf.ones(3))
        return seen

    assert world.run(run) == [[[4.0] * 3, [3.0] * 2]] * 2


@pytest.mark.slow("trains with TensorFlow")
def test_torch_and_tensorflow_share_one_engine(world: World) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")

    def run() -> list[float]:
        import torch

        import horovod.torch

        assert horovod.torch.is_initialized() and horovod.torch.rank() == hvd.rank()
        started = horovod.torch.allreduce_async(torch.ones(2), name="torch", op=horovod.torch.Sum)
        return [float(hvd.allreduce(tf.ones(2), op=hvd.Sum)[0]), float(horovod.torch.synchronize(started)[0])]

    assert world.run(run) == [[2.0, 2.0]] * 2


# name: (what rank 1 calls, the operation in which rank 0 waits, what the text holds)
WRONG: dict[str, tuple[Any, Any, str]] = {
    "one variable": (
        lambda hvd, tf: hvd.broadcast_variables(tf.Variable([1.0, 2.0]), 0),
        lambda hvd, tf: hvd.broadcast_variables([tf.Variable([1.0, 2.0])], 0),
        r"broadcast of `broadcast_variables`: variables: expected a list of variables, got \w+\n"
        "hint: put it into a list",
    ),
    "no variable": (
        lambda hvd, tf: hvd.broadcast_variables([tf.constant([1.0, 2.0])], 0),
        lambda hvd, tf: hvd.broadcast_variables([tf.Variable([1.0, 2.0])], 0),
        r"variables: expected a list of variables, got \w+ in it",
    ),
    "a number": (
        lambda hvd, tf: hvd.broadcast_(5, 0, name="numbers"),
        lambda hvd, tf: hvd.broadcast_([tf.Variable([1.0, 2.0])], 0, name="numbers"),
        "broadcast of `numbers`: variables: expected a list of variables, got int",
    ),
    "sparse": (
        lambda hvd, tf: hvd.allreduce(tf.IndexedSlices([1.0], [0]), op=hvd.Max, name="sparse"),
        lambda hvd, tf: hvd.allreduce(tf.IndexedSlices([1.0], [0]), name="sparse"),
        "sparse_allreduce of `sparse`: tf.IndexedSlices can be reduced by Average and Sum, got op=Max",
    ),
    "Adasum of dense and sparse": (
        lambda hvd, tf: hvd.grouped_allreduce(
            [tf.ones(3), tf.IndexedSlices([1.0], [0])], op=hvd.Adasum, name="Adasum of dense and sparse"
        ),
        lambda hvd, tf: hvd.grouped_allreduce([tf.ones(3)], op=hvd.Adasum, name="Adasum of dense and sparse"),
        "grouped_allreduce of `Adasum of dense and sparse`: tf.IndexedSlices can be reduced by Average and Sum",
    ),
    "sparse in a list": (
        lambda hvd, tf: hvd.allreduce(tf.IndexedSlices([1.0], [0]), process_set=[0, 1], name="sparse in a list"),
        lambda hvd, tf: hvd.allreduce(tf.IndexedSlices([1.0], [0]), name="sparse in a list"),
        r"process_set: expected a ProcessSet, got \[0, 1\]",
    ),
    "one tensor": (
        lambda hvd, tf: hvd.grouped_allreduce(tf.ones(3), name="one tensor"),
        lambda hvd, tf: hvd.grouped_allreduce([tf.ones(3)], name="one tensor"),
        "a grouped operation takes a list of tensors, got EagerTensor",
    ),
    "barrier": (
        lambda hvd, tf: hvd.barrier(process_set=[0, 1]),
        lambda hvd, tf: hvd.barrier(),
        r"process_set: expected a ProcessSet, got \[0, 1\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_named_and_the_other_rank_does_not_wait(world: World, case: str) -> None:
    def run(case: str) -> str:
        wrong, right, _ = WRONG[case]
        kinds = (TypeError, ValueError, NotImplementedError) if hvd.rank() == 1 else tf.errors.FailedPreconditionError
        with pytest.raises(kinds) as caught:
            (wrong if hvd.rank() == 1 else right)(hvd, tf)
        assert hvd.allreduce(tf.ones(1), op=hvd.Sum).numpy().tolist() == [2.0]
        return str(caught.value)

    here, there = reversed(world.run(run, case))
    assert re.search(WRONG[case][2], here), here
    assert re.search(WRONG[case][2].partition("`: ")[2] or WRONG[case][2], there) and "rank 1" in there, there
