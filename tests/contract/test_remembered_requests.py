# SPDX-License-Identifier: Apache-2.0
"""The contract, remembered requests: a call whose like was made before gives what it would give alone.

Every parameter of every operation changes by itself, back and forth, with calls enough in between that whatever is
remembered is used. The parameters come from the signatures, and the fields of a request from the C interface: one that
is added has no row here, and that is a failure.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.test_process_sets import dynamic
from support.frameworks import loaded
from support.world import WorldPool

import horovod.core as core
from horovod.core import native
from horovod.core.compression import NoneCompressor


class Doubling(NoneCompressor):
    """Sends twice the tensor, so that results show it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor + tensor, None


# By parameter: the values that it takes in turn. `tensor` stands for `tensors` as well.
ROWS: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "tensor": lambda framework, hvd, sets: [(np.float32, (6,)), (np.float64, (6,)), (np.float32, (3, 2))],
    "name": lambda framework, hvd, sets: [None, "one", "another"],
    "op": lambda framework, hvd, sets: [hvd.Sum, hvd.Max, hvd.Average, np.int64(1)],
    "average": lambda framework, hvd, sets: [True, False],
    "prescale_factor": lambda framework, hvd, sets: [1.0, 2.0, 0.5, 0.0, -0.0, 3],
    "postscale_factor": lambda framework, hvd, sets: [1.0, 3.0, 0.25],
    "root_rank": lambda framework, hvd, sets: [0, 2, 1],
    "splits": lambda framework, hvd, sets: [None, [6, 0, 0], [1, 2, 3], [3, 2, 1]],
    "process_set": lambda framework, hvd, sets: [hvd.global_process_set, sets[0], hvd.global_process_set, sets[1]],
    "compression": lambda framework, hvd, sets: [NoneCompressor, Doubling],
    "device_dense": lambda framework, hvd, sets: ["", "/cpu:0"],
    "device_sparse": lambda framework, hvd, sets: ["", "/cpu:0"],
    "ignore_name_scope": lambda framework, hvd, sets: [False, True],
    "priority": lambda framework, hvd, sets: [0, 7],
}
SAME_RESULT = {"name", "device_dense", "device_sparse", "ignore_name_scope", "priority"}
# Other names that an operation's package exports. The last four take no part in what is remembered.
NO_ROWS = {*native.OP_NAMES, "poll", "synchronize", "join", "barrier", "send", "recv", "sparse_allreduce_async"}
NO_ROWS |= {"local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op", "remove_process_set"}
NO_ROWS |= {"send_async", "recv_async"}

# By field of the C interface: the row that changes it, or the reason why a remembered request does not depend on it.
FIELDS = {
    **dict.fromkeys(("op", "process_set", "root_rank", "name", "splits"), ...),
    "kind": "operation",
    "prescale": "prescale_factor",
    "postscale": "postscale_factor",
    "nsplits": "splits",
    **dict.fromkeys(("shape", "ndim", "dtype", "ntensors", "tensors"), "tensor"),
    **dict.fromkeys(("tag", "output_bytes"), "test_messages_and_given_outputs"),
    **dict.fromkeys(("place", "device"), "a GPU has keys of its own: tests/frameworks/torch/gpu"),
    **dict.fromkeys(("input", "output", "flags", "done", "user"), "given at each submission"),
    **dict.fromkeys(("size", "tensor_size", "reserved"), "the layout of the interface"),
}


def test_every_field_of_a_request_is_known() -> None:
    fields = [name for struct in (native.Request, native.Tensor) for name, *_ in struct._fields_]
    assert sorted(FIELDS) == sorted(fields)
    assert {name for name, row in FIELDS.items() if row is ...} <= set(ROWS)


def operations_of(hvd: Any) -> Iterator[tuple[str, list[str]]]:
    """The operations of a package, with their parameters but for the tensor."""
    exported = hvd.ops.__all__ if hasattr(hvd, "ops") else core._OPERATIONS.split()
    for name in exported:
        if name not in NO_ROWS:
            tensor, *others = inspect.signature(getattr(hvd, name)).parameters
            assert tensor in ("tensor", "tensors", "variables"), name
            assert set(others) <= set(ROWS), f"{name} has a parameter without a row"
            if tensor != "variables":
                yield name, others


class Case:
    """An operation with one parameter that changes."""

    def __init__(self, framework: Any, hvd: Any, name: str, function: Callable[..., Any], varied: str) -> None:
        self.framework, self.hvd, self.name, self.function, self.varied = framework, hvd, name, function, varied

    def outcome(self, value: Any, called: str | None) -> Any:
        """What the call gives, as something that can be compared; an error as its text."""
        dtype, shape = value if self.varied == "tensor" else (np.float64, (6,))
        options = {} if self.varied == "tensor" else {self.varied: value}
        if self.name.startswith("broadcast"):
            options.setdefault("root_rank", options.get("process_set", self.hvd.global_process_set).ranks[0])
        options.setdefault("name", called)
        array = np.arange(1, 1 + np.prod(shape)).reshape(shape) * (self.hvd.rank() + 1.03)
        tensor = self.framework.tensor(array.astype(dtype))
        given = [tensor, tensor + tensor] if self.name.startswith("grouped") else tensor
        try:
            result = self.function(given, **options)
            if "_async" in self.name:
                result = self.hvd.synchronize(result)
        except ValueError as error:
            return re.sub(r"`[^`]*`|unnamed", "", str(error))
        parts = result if isinstance(result, (list, tuple)) else [result]
        return str([np.asarray(self.framework.array(part)).tolist() for part in parts])  # -0.0 is not 0.0

    def wrong(self, values: list[Any]) -> tuple[bool, list[str]]:
        """Whether the values decide the result of this rank, and what has gone wrong."""
        alone = [self.outcome(value, f"{self.name} by {self.varied} {number}") for number, value in enumerate(values)]
        order = [number for number in range(len(values)) for _ in range(3)]
        return any(each != alone[0] for each in alone), [
            f"{self.name}: {self.varied}={values[number]!r} after other calls: expected {alone[number]}, got {seen}"
            for number in [*order, *reversed(order)]
            if (seen := self.outcome(values[number], "remembered")) != alone[number]
        ]


def wrong_calls(framework: Any, hvd: Any, kept: Callable[[Callable[..., Any], list[str]], Any]) -> tuple[Any, Any]:
    """What has gone wrong, and by case whether the values decide the result of this rank.

    `kept` makes of an operation what is called, such as a compiled function that is called again and again.
    """
    sets = [hvd.add_process_set(ranks) for ranks in ([0], [1, 2])]
    mine = [one for one in sets if one.included()] + [hvd.global_process_set]
    wrong: list[str] = []
    decided: dict[str, bool] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of `average`
        for name, others in operations_of(hvd):
            for varied in ["tensor", *others]:
                case = Case(framework, hvd, name, kept(getattr(hvd, name), others), varied)
                decided[f"{name}: {varied}"], faults = case.wrong(ROWS[varied](framework, hvd, mine))
                wrong += faults
    for one in sets:
        hvd.remove_process_set(one)
    return wrong, decided


def check(outcomes: list[tuple[list[str], dict[str, bool]]]) -> None:
    for wrong, _ in outcomes:
        assert wrong == []
    cases = outcomes[0][1]
    idle = {case for case in cases if not any(decided[case] for _, decided in outcomes)}
    assert len(cases) > 30 and {case.partition(": ")[2] for case in idle} <= SAME_RESULT, idle


def test_a_call_gives_what_it_would_give_alone(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> Any:
        return wrong_calls(framework, getattr(hvd, "_hvd", hvd), lambda operation, _: operation)

    check(worlds(3, dynamic("tcp")).run(loaded(run), framework))


@pytest.mark.slow("compiles every operation for each value")
@pytest.mark.parametrize("framework", ["torch"])
def test_compiled_functions_give_what_they_would_give_alone(worlds: WorldPool, framework: str) -> None:
    """Of one function for each operation and parameter, which its framework compiles anew if it must."""

    pytest.importorskip(framework, reason=f"not run: {framework} is not installed")

    def run(framework: Any, hvd: Any) -> Any:
        package = getattr(hvd, "_hvd", hvd)
        return wrong_calls(framework, package, COMPILERS[package.__name__])

    check(worlds(3, dynamic("tcp")).run(loaded(run), framework))


def compiled_by_jax(operation: Callable[..., Any], others: list[str]) -> Any:
    import jax

    return operation if operation.__name__.endswith("_async") else jax.jit(operation, static_argnames=others)


def compiled_by_tensorflow(operation: Callable[..., Any], _: list[str]) -> Any:
    import tensorflow as tf

    # One of the two that XLA can compile.
    return tf.function(operation, autograph=False, jit_compile=operation.__name__ == "grouped_allreduce" or None)


def compiled_by_torch(operation: Callable[..., Any], _: list[str]) -> Any:
    import torch

    if operation.__name__.endswith(("_async", "_async_")):
        return operation
    return torch.compile(functools.partial(operation), backend="aot_eager")


COMPILERS: dict[str, Any] = {
    "horovod.jax": compiled_by_jax,
    "horovod.tensorflow": compiled_by_tensorflow,
    "horovod.torch": compiled_by_torch,
}


def test_single_and_grouped_calls_of_one_name_are_apart(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> list[float]:
        seen = []
        for _ in range(4):
            one = hvd.allreduce_async(framework.tensor(np.ones(2)), name="shared", op=hvd.Sum)
            several = hvd.grouped_allreduce_async([framework.tensor(np.full(2, 2.0))], name="shared", op=hvd.Sum)
            seen += [framework.array(hvd.synchronize(one))[0], framework.array(hvd.synchronize(several)[0])[0]]
        return seen

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework) == [[2.0, 4.0] * 4] * 2


@pytest.mark.parametrize("wrong", [1.0, True, np.True_, "1"])
def test_what_only_equals_an_op_or_a_root_is_refused_at_any_time(worlds: WorldPool, framework: str, wrong: Any) -> None:
    def run(framework: Any, hvd: Any) -> None:
        for _ in range(4):
            hvd.allreduce_(framework.tensor(np.ones(2)), name="of an op", op=hvd.Sum)
            hvd.broadcast(framework.tensor(np.ones(2)), 1, name="of a root")
            with pytest.raises((ValueError, TypeError), match="op="):
                hvd.allreduce_(framework.tensor(np.ones(2)), name="of an op", op=wrong)
            with pytest.raises((ValueError, TypeError), match="root_rank="):
                hvd.broadcast(framework.tensor(np.ones(2)), wrong, name="of a root")

    worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework)


def test_messages_and_given_outputs(worlds: WorldPool) -> None:
    def run() -> list[Any]:
        from horovod.core.arrays import operations

        core.init()
        collectives, rank = operations.collectives, core.rank()
        seen = []
        for repeat in range(4):
            for tag in (0, 1, 2):
                if rank == 0:
                    core.send(np.full(2, 10.0 * tag + repeat), 1, tag=tag)
                else:
                    received = np.zeros(2)
                    core.recv(received, 0, tag=tag)
                    seen.append(received[0] == 10.0 * tag + repeat)
        for _ in range(4):
            output = np.zeros(4)
            collectives.allgather_into(np.full((1, 2), rank + 1.0), output, "given", None).wait()
            seen.append(output.tolist())
            with pytest.raises(ValueError, match="expected an output of float64, got float32"):
                collectives.allgather_into(np.ones((1, 2)), np.zeros(4, np.float32), "given", None)
        return seen

    first, second = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run)
    assert first == [[1.0, 1.0, 2.0, 2.0]] * 4 and second == [True] * 12 + first
