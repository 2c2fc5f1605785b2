# SPDX-License-Identifier: Apache-2.0
"""The contract, errors: what every rank is told when a call cannot work, and that the job goes on afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.frameworks import loaded
from support.world import World, WorldPool

WORLDS = [(2, "shm"), (3, "tcp"), (4, "shm"), (4, "2+2"), (4, "3+1")]


def ones(framework: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return framework.tensor(np.ones(shape, dtype))


Call = Callable[[Any, Any, str], Any]  # of a framework's package, the framework, and a name


def call(operation: str, *tensors: Any, dtype: Any = np.float32, **options: Any) -> Call:
    """A call with tensors of ones, given by their shapes, or with what functions of the framework give."""

    def made(hvd: Any, framework: Any, name: str) -> Any:
        given = [ones(framework, *one, dtype=dtype) if isinstance(one, list) else one(framework) for one in tensors]
        more = {key: value(hvd, framework) if callable(value) else value for key, value in options.items()}
        if isinstance(more.get("op"), str):
            more["op"] = getattr(hvd, more["op"])
        if name:
            more["name"] = name
        return getattr(hvd, operation)(*([given] if operation.startswith("grouped") else given), **more)

    return made


SAME = "hint: all ranks must give the same"
CALLS = "hint: all ranks must make the same calls in the same order"

# name: (what rank 1 calls, what the others call, what the text must hold); one name on all ranks
DISAGREEMENTS: dict[str, tuple[Call, Call, list[str]]] = {
    "shape": (call("allreduce", [4]), call("allreduce", [3]), ["[4]", "[3]", f"{SAME} shape"]),
    "dimensions": (call("allreduce", [2, 2]), call("allreduce", [4]), ["shape", "[2, 2]", "[4]"]),
    "dtype": (
        call("allreduce", [3], dtype=np.float64),
        call("allreduce", [3]),
        ["float64", "float32", f"{SAME} dtype"],
    ),
    "op": (call("allreduce", [3], op="Sum"), call("allreduce", [3], op="Max"), ["Sum", "Max", f"{SAME} argument"]),
    "scale": (
        call("allreduce", [3], prescale_factor=0.5),
        call("allreduce", [3], prescale_factor=0.25),
        ["0.5", "0.25"],
    ),
    "root": (call("broadcast", [3], root_rank=1), call("broadcast", [3], root_rank=0), ["0", "1", f"{SAME} argument"]),
    "columns": (call("allgather", [2, 4]), call("allgather", [2, 3]), ["shape", "4", "3"]),
    "group": (call("grouped_allreduce", [3]), call("grouped_allreduce", [3], [3]), ["1", "2", f"{SAME} list"]),
    "group member": (call("grouped_allreduce", [3], [5]), call("grouped_allreduce", [3], [3]), ["shape", "[5]", "[3]"]),
    "alltoall columns": (call("alltoall", [12, 4]), call("alltoall", [24, 3]), ["shape", "[any, 4]", "[any, 3]"]),
    "alltoall dtype": (
        call("alltoall", [12], dtype=np.float64),
        call("alltoall", [12]),
        ["dtype", "float64", "float32"],
    ),
    "scattered shape": (call("reducescatter", [5, 2]), call("reducescatter", [4, 2]), ["shape", "[5, 2]", "[4, 2]"]),
    "scattered op": (
        call("reducescatter", [4], op="Sum"),
        call("reducescatter", [4], op="Average"),
        ["Sum", "Average"],
    ),
    "scattered scale": (
        call("reducescatter", [4], postscale_factor=0.5),
        call("reducescatter", [4], postscale_factor=0.25),
        ["postscale", "0.5", "0.25"],
    ),
    "gathered member": (
        call("grouped_allgather", [3], [1, 5]),
        call("grouped_allgather", [2], [2, 3]),
        ["shape of tensor 2", "[any, 5]", "[any, 3]"],
    ),
    "scattered member": (
        call("grouped_reducescatter", [3], [5]),
        call("grouped_reducescatter", [3], [3]),
        ["shape of tensor 2", "[5]", "[3]"],
    ),
    "two members": (
        call("grouped_allreduce", [3], [5], [6]),
        call("grouped_allreduce", [3], [3], [3]),
        ["shape of tensor 2", "[5]", "[3]"],  # the first of them
    ),
    "two reasons": (
        call("grouped_allreduce", [5], lambda f: ones(f, 3, dtype=np.int32)),
        call("grouped_allreduce", [3], [3]),
        ["shape of tensor 1", "[5]", "[3]"],
    ),
    "postscale": (call("allreduce", [3], postscale_factor=0.5), call("allreduce", [3]), ["postscale", "0.5", "1"]),
    "zero-dimensional": (call("allreduce", []), call("allreduce", [1]), ["shape", "[]", "[1]"]),
    "gathered dimensions": (call("allgather", [2, 3]), call("allgather", [2]), ["shape", "[any, 3]", "[any]"]),
    "broadcast shape": (
        call("broadcast", [2], root_rank=0),
        call("broadcast", [3], root_rank=0),
        ["shape", "[2]", "[3]"],
    ),
    "unnamed": (call("allreduce", [4]), call("allreduce", [3]), ["shape", "[4]", "[3]"]),
    "kind": (call("allgather", [3]), call("barrier"), ["allgather", "barrier", "about unnamed barrier", CALLS]),
}


def works_afterwards(framework: Any) -> None:
    hvd = framework.hvd
    for name in ("after", None):
        seen = framework.array(hvd.allreduce(ones(framework, 3), name=name, op=hvd.Sum))
        assert np.all(seen == hvd.size()), seen


@pytest.mark.parametrize("case", DISAGREEMENTS)
@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_every_rank_is_told_who_disagrees_about_what(
    worlds: WorldPool, framework: str, size: int, transport: str, case: str
) -> None:
    rank_1, others, expected = DISAGREEMENTS[case]

    name = "" if case in ("unnamed", "kind") else case

    def run(framework: Any, hvd: Any, call: Call) -> str:
        texts = []
        for _ in range(2):  # the second time it is a known name that changes
            try:
                call(hvd, framework, name)
                texts.append("no error")
            except hvd.HorovodInternalError as error:
                assert type(error).__name__ == framework.mismatch
                texts.append(framework.text(error))
            works_afterwards(framework)
        assert texts[0] == texts[1] or not name, texts
        return texts[0]

    calls = [(framework, rank_1 if rank == 1 else others) for rank in range(size)]
    texts = worlds(size, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), per_rank=calls)
    assert len(set(texts)) == 1, texts
    for part in ["rank 1", "expected", "got", *expected, name]:
        assert part in texts[0], f"{part!r} is not in: {texts[0]}"


Wrong = tuple[str, Call, type[Exception], str]  # the operation, a wrong call of it, its exception, what its text holds


def wrong(text: str, operation: str, *tensors: Any, kind: type[Exception] = ValueError, **options: Any) -> Wrong:
    return operation, call(operation, *tensors, **options), kind, text


def unsupported(framework: Any) -> Any:
    return framework.unsupported()


# By name: calls that are wrong on one rank alone.
LOCAL_ERRORS: dict[str, Wrong] = {
    "unsupported": wrong("float8_e5m2.*expected.*float32", "allreduce", unsupported),
    "no tensor": ("broadcast", lambda hvd, f, name: hvd.broadcast_("text", 0, name=name), TypeError, "got str"),
    "root": wrong("root_rank=99: expected 0 to", "broadcast", [2], root_rank=99),
    "negative root": wrong("root_rank=-1", "broadcast", [2], root_rank=-1),
    "op": wrong("op=17: expected one of", "allreduce", [2], op=17),
    "adasum": wrong("for floating-point tensors, got int32", "allreduce", [2], dtype=np.int32, op="Adasum"),
    "both": wrong("both op=Sum and average=True", "allreduce", [2], average=True, op="Sum"),
    "bool sum": wrong("bool.*got op=Sum", "allreduce", [2], dtype=np.bool_, op="Sum"),
    "bool average": wrong("bool.*got op=Average", "allreduce", [2], dtype=np.bool_),
    "bits of floats": wrong("op=BitOr is for integers and bool, got float32", "allreduce", [2], op="BitOr"),
    "scaled bits": wrong(
        "op=BitXor cannot be scaled.*postscale_factor=0.5", "reducescatter", [2], op="BitXor", postscale_factor=0.5
    ),
    "scalar": wrong("0-d", "allgather", []),
    "empty group": wrong("empty list", "grouped_allreduce"),
    "no list": (
        "grouped_allreduce",
        lambda hvd, f, name: hvd.grouped_allreduce_async(3, name=name),
        TypeError,
        "takes a list",
    ),
    "too many splits": wrong("expected one split for each of . members, got 9", "alltoall", [9], splits=[1] * 9),
    "splits beyond": wrong("at most the 1 rows there are", "alltoall", [1], splits=lambda hvd, f: [2] * hvd.size()),
    "negative split": wrong(
        "zero or more rows, got -1",
        "alltoall",
        [1],
        splits=lambda hvd, f: [3] * (hvd.size() > 1) + [-1] * max(1, hvd.size() - 1),
    ),
    "splits 2-d": wrong(
        r"one-dimensional.*tensor, got.* shape \[1, 1\]",
        "alltoall",
        [1],
        splits=lambda hvd, f: f.tensor(np.zeros((1, 1), np.int32)),
    ),
    "splits dtype": wrong(
        "int32 or int64 tensor, got int8",
        "alltoall",
        [1],
        splits=lambda hvd, f: f.tensor(np.zeros(hvd.size(), np.int8)),
    ),
    "splits of floats": wrong(
        r"splits=\[0.5.*expected a list of ints|splits: expected integers, got float32",
        "alltoall",
        [1],
        kind=TypeError,
        splits=lambda hvd, f: [0.5] * hvd.size(),
    ),
    "alltoall scalar": wrong("0-d", "alltoall", []),
    "scattered scalar": wrong("0-d", "reducescatter", []),
    "scattered adasum": wrong("Adasum", "reducescatter", [2], kind=NotImplementedError, op="Adasum"),
    "scattered bool": wrong("bool.*got op=Sum", "reducescatter", [2], dtype=np.bool_, op="Sum"),
    "gathered list": wrong("empty list", "grouped_allgather"),
    "scattered list": (
        "grouped_reducescatter",
        lambda hvd, f, name: hvd.grouped_reducescatter(3, name=name),
        TypeError,
        "takes a list",
    ),
    "reduced list": (
        "grouped_allreduce",
        lambda hvd, f, name: hvd.grouped_allreduce(3, name=name),
        TypeError,
        "takes a list",
    ),
    "scale": wrong("prescale_factor='big': expected a number", "allreduce", [2], prescale_factor="big"),
    "scale not-a-number": wrong(
        "postscale_factor=nan: expected a number", "allreduce", [2], postscale_factor=float("nan")
    ),
    "root of truth": wrong("root_rank=False: expected the number of a rank", "broadcast", [2], root_rank=False),
    "group of nothing": wrong("float8_e5m2", "grouped_allreduce", [2], unsupported),
    "dimensions": wrong("at most 16 dimensions, got 17", "allreduce", [1] * 17),
    "5": ("allreduce", lambda hvd, f, _: hvd.allreduce(ones(f, 2), name=5), TypeError, "name: expected a str, got int"),
    "nul": ("allreduce", lambda hvd, f, _: hvd.allreduce(ones(f, 2), name="nul\0x"), ValueError, "cannot hold a NUL"),
    "process set": wrong("is not registered", "allreduce", [2], process_set=lambda hvd, f: hvd.ProcessSet([0])),
}


@pytest.mark.parametrize("case", LOCAL_ERRORS)
@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), *WORLDS])
def test_a_call_that_is_wrong_on_one_rank_fails_there_and_the_others_do_not_wait(
    worlds: WorldPool, framework: str, size: int, transport: str, case: str
) -> None:
    world = worlds(size, {"HOROVOD_TRANSPORT": transport})
    check_that_the_others_are_told(world, framework, case, LOCAL_ERRORS[case])


def check_that_the_others_are_told(world: World, framework: str, case: str, wrong: Wrong) -> None:
    """The last rank makes a wrong call, and the others the operation of that name, as it should be."""
    operation, wrong_call, kind, pattern = wrong
    last = world.size - 1

    def run(framework: Any, hvd: Any) -> str:
        wanted = (kind, *framework.wrong_here) if hvd.rank() == last else hvd.HorovodInternalError
        try:
            if hvd.rank() == last:
                wrong_call(hvd, framework, case)
            else:
                tensor = ones(framework, 2 * hvd.size())
                arguments = (0,) if operation == "broadcast" else ()
                getattr(hvd, operation)([tensor] if "grouped" in operation else tensor, *arguments, name=case)
        except wanted as error:
            text = framework.text(error)
            assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__), (
                "one traceback"
            )
        else:
            text = "no error"
        works_afterwards(framework)
        return text

    texts = world.run(loaded(run), framework)
    assert all(text.endswith("\nmore: horovodrun --explain refused") for text in texts[:last]), texts
    for rank, text in enumerate(texts):
        assert re.search(pattern, text, re.DOTALL), f"rank {rank}: {text}"
        assert f"rank {last}" in text and case in text, f"rank {rank}: {text}"
        assert text.count(f"rank {last}") == 1, f"rank {rank}, named twice: {text}"


def test_a_name_in_flight_is_refused_at_once_and_does_not_hurt_the_first(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> tuple[str, float]:
        text = ""
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(ones(framework, 3), name="twice", op=hvd.Sum)
            with pytest.raises(ValueError) as caught:
                hvd.allreduce_async(ones(framework, 3), name="twice", op=hvd.Sum)
            text = str(caught.value)
            hvd.barrier()
        else:
            hvd.barrier()  # the first cannot be done before this rank has called it as well
            handle = hvd.allreduce_async(ones(framework, 3), name="twice", op=hvd.Sum)
        result = float(framework.array(hvd.synchronize(handle))[0])
        works_afterwards(framework)
        return text, result

    outcomes = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework)
    assert [result for _, result in outcomes] == [2.0, 2.0]
    assert "rank 0" in outcomes[0][0] and "`allreduce.twice`" in outcomes[0][0], outcomes


def test_what_cannot_be_pickled_fails_on_all_ranks(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> str:
        value = (i for i in range(3))  # a generator has no pickle
        wanted = TypeError if hvd.rank() == 0 else hvd.HorovodInternalError
        try:
            hvd.broadcast_object(value, 0, name="object")
        except wanted as error:
            text = str(error)
        else:
            text = "no error"
        works_afterwards(framework)
        return text

    for text in worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework):
        assert "cannot pickle generator" in text and "rank 0" in text, text


NAMES_APART = [("line\nbreak", "line break"), ("💡", "💡💡"), ("", " "), ("x" * 4000, "x" * 4001)]


def test_names_may_hold_any_text(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any, names: list[tuple[str, str]]) -> bool:
        for pair in names:
            order = pair if hvd.rank() == 0 else pair[::-1]
            handles = {name: hvd.allreduce_async(ones(framework, len(name)), name=name, op=hvd.Sum) for name in order}
            for name, handle in handles.items():
                assert framework.array(hvd.synchronize(handle)).tolist() == [2.0] * len(name)
            with pytest.raises(ValueError, match="op=17"):
                hvd.allreduce(ones(framework, 1), name=pair[0], op=17)
        for name, pattern in (("x" * 5000, "4096 bytes"), ("\udce9", "surrogates")):
            with pytest.raises(ValueError, match=pattern) as caught:
                hvd.allreduce(ones(framework, 1), name=name)
            assert "x" * 100 not in str(caught.value)
        works_afterwards(framework)
        return True

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework, NAMES_APART) == [True, True]


def test_handles_that_are_unknown(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        assert hvd.synchronize(10**9) is None
        with pytest.raises(ValueError, match="handle 1000000000 is unknown"):
            hvd.poll(10**9)
        return True

    assert worlds(1).run(loaded(run), framework) == [True]


def test_average_still_works_and_warns(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> list[float]:
        results = []
        for average in (True, False):
            with pytest.warns(DeprecationWarning, match="average= is deprecated"):
                results.append(float(framework.array(hvd.allreduce(ones(framework, 1), average))[0]))
        return results

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework) == [[1.0, 2.0]] * 2


def test_an_operation_in_place_needs_memory_to_write_to(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        if hvd.__name__ == "horovod.core":
            tensor = np.ones(3)
            tensor.flags.writeable = False
            pattern = "read-only"
        else:
            tensor = framework.tensor(np.ones(1)).expand(3)
            pattern = "expanded"
        with pytest.raises(ValueError, match=pattern):
            hvd.allreduce_(tensor, name="read-only")
        works_afterwards(framework)
        return True

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework) == [True] * 2


def test_a_wrong_call_after_a_rank_has_left_says_what_is_wrong_and_no_more(framework: str) -> None:
    def run(framework: Any, hvd: Any) -> str:
        if hvd.rank() == 0:
            hvd.shutdown()
            return ""
        with pytest.raises(Exception, match="rank 0 has left"):
            while True:
                hvd.allreduce(ones(framework, 3), name="left alone")
        with pytest.raises(ValueError, match="float8_e5m2") as caught:
            hvd.allreduce(framework.unsupported(), name="wrong")
        hvd.shutdown()
        return str(caught.value)

    with World(2) as world:
        _, text = world.run(loaded(run), framework)
    assert "could not be told" not in text
