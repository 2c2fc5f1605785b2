# SPDX-License-Identifier: Apache-2.0
"""The contract, errors: what every rank is told when a call cannot work, and that the job goes on afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import frameworks
from support.frameworks import NAMES
from support.world import World, WorldPool

WORLDS = [(2, "shm"), (3, "tcp"), (4, "shm"), (4, "2+2"), (4, "3+1")]


@pytest.fixture(params=NAMES)
def framework(request: pytest.FixtureRequest) -> str:
    if why := frameworks.missing(request.param):
        pytest.skip(why)
    return str(request.param)


def ones(framework: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return framework.tensor(np.ones(shape, dtype))


# name: (what rank 1 calls, what the others call, what the text must hold); one name on all ranks
DISAGREEMENTS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], list[str]]] = {
    "shape": (
        lambda hvd, f: hvd.allreduce(ones(f, 4), name="shape"),
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="shape"),
        ["shape", "[4]", "[3]", "hint: all ranks must give the same shape"],
    ),
    "dimensions": (
        lambda hvd, f: hvd.allreduce(ones(f, 2, 2), name="dimensions"),
        lambda hvd, f: hvd.allreduce(ones(f, 4), name="dimensions"),
        ["shape", "[2, 2]", "[4]"],
    ),
    "dtype": (
        lambda hvd, f: hvd.allreduce(ones(f, 3, dtype=np.float64), name="dtype"),
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="dtype"),
        ["dtype", "float64", "float32", "hint: all ranks must give the same dtype"],
    ),
    "op": (
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="op", op=hvd.Sum),
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="op", op=hvd.Max),
        ["Sum", "Max", "hint: all ranks must give the same argument"],
    ),
    "scale": (
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="scale", prescale_factor=0.5),
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="scale", prescale_factor=0.25),
        ["0.5", "0.25"],
    ),
    "root": (
        lambda hvd, f: hvd.broadcast(ones(f, 3), 1, name="root"),
        lambda hvd, f: hvd.broadcast(ones(f, 3), 0, name="root"),
        ["root", "0", "1", "hint: all ranks must give the same argument"],
    ),
    "columns": (
        lambda hvd, f: hvd.allgather(ones(f, 2, 4), name="columns"),
        lambda hvd, f: hvd.allgather(ones(f, 2, 3), name="columns"),
        ["shape", "4", "3"],
    ),
    "group": (
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3)], name="group"),
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3), ones(f, 3)], name="group"),
        ["1", "2", "hint: all ranks must give the same list"],
    ),
    "group member": (
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3), ones(f, 5)], name="group member"),
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3), ones(f, 3)], name="group member"),
        ["shape", "[5]", "[3]"],
    ),
    "alltoall columns": (
        lambda hvd, f: hvd.alltoall(ones(f, hvd.size(), 4), name="alltoall columns"),
        lambda hvd, f: hvd.alltoall(ones(f, 2 * hvd.size(), 3), name="alltoall columns"),
        ["shape", "[any, 4]", "[any, 3]"],
    ),
    "alltoall dtype": (
        lambda hvd, f: hvd.alltoall(ones(f, hvd.size(), dtype=np.float64), name="alltoall dtype"),
        lambda hvd, f: hvd.alltoall(ones(f, hvd.size()), name="alltoall dtype"),
        ["dtype", "float64", "float32"],
    ),
    "scattered shape": (
        lambda hvd, f: hvd.reducescatter(ones(f, 5, 2), name="scattered shape"),
        lambda hvd, f: hvd.reducescatter(ones(f, 4, 2), name="scattered shape"),
        ["shape", "[5, 2]", "[4, 2]"],
    ),
    "scattered op": (
        lambda hvd, f: hvd.reducescatter(ones(f, 4), name="scattered op", op=hvd.Sum),
        lambda hvd, f: hvd.reducescatter(ones(f, 4), name="scattered op", op=hvd.Average),
        ["Sum", "Average"],
    ),
    "scattered scale": (
        lambda hvd, f: hvd.reducescatter(ones(f, 4), name="scattered scale", postscale_factor=0.5),
        lambda hvd, f: hvd.reducescatter(ones(f, 4), name="scattered scale", postscale_factor=0.25),
        ["postscale", "0.5", "0.25"],
    ),
    "gathered member": (
        lambda hvd, f: hvd.grouped_allgather([ones(f, 3), ones(f, 1, 5)], name="gathered member"),
        lambda hvd, f: hvd.grouped_allgather([ones(f, 2), ones(f, 2, 3)], name="gathered member"),
        ["shape of tensor 2", "[any, 5]", "[any, 3]"],
    ),
    "scattered member": (
        lambda hvd, f: hvd.grouped_reducescatter([ones(f, 3), ones(f, 5)], name="scattered member"),
        lambda hvd, f: hvd.grouped_reducescatter([ones(f, 3), ones(f, 3)], name="scattered member"),
        ["shape of tensor 2", "[5]", "[3]"],
    ),
    "two members": (
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3), ones(f, 5), ones(f, 6)], name="two members"),
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3), ones(f, 3), ones(f, 3)], name="two members"),
        ["shape of tensor 2", "[5]", "[3]"],  # the first of them
    ),
    "two reasons": (
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 5), ones(f, 3, dtype=np.int32)], name="two reasons"),
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 3), ones(f, 3)], name="two reasons"),
        ["shape of tensor 1", "[5]", "[3]"],
    ),
    "postscale": (
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="postscale", postscale_factor=0.5),
        lambda hvd, f: hvd.allreduce(ones(f, 3), name="postscale"),
        ["postscale", "0.5", "1"],
    ),
    "zero-dimensional": (
        lambda hvd, f: hvd.allreduce(ones(f), name="zero-dimensional"),
        lambda hvd, f: hvd.allreduce(ones(f, 1), name="zero-dimensional"),
        ["shape", "[]", "[1]"],
    ),
    "gathered dimensions": (
        lambda hvd, f: hvd.allgather(ones(f, 2, 3), name="gathered dimensions"),
        lambda hvd, f: hvd.allgather(ones(f, 2), name="gathered dimensions"),
        ["shape", "[any, 3]", "[any]"],
    ),
    "broadcast shape": (
        lambda hvd, f: hvd.broadcast(ones(f, 2), 0, name="broadcast shape"),
        lambda hvd, f: hvd.broadcast(ones(f, 3), 0, name="broadcast shape"),
        ["shape", "[2]", "[3]"],
    ),
    "unnamed": (
        lambda hvd, f: hvd.allreduce(ones(f, 4)),
        lambda hvd, f: hvd.allreduce(ones(f, 3)),
        ["shape", "[4]", "[3]"],
    ),
    "kind": (
        lambda hvd, f: hvd.allgather(ones(f, 3)),
        lambda hvd, f: hvd.barrier(),
        ["allgather", "barrier", "about unnamed barrier", "hint: all ranks must make the same calls in the same order"],
    ),
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

    def run(framework_name: str, call: Callable[[Any, Any], Any]) -> str:
        framework = frameworks.load(framework_name)
        texts = []
        for _ in range(2):  # the second time it is a known name that changes
            try:
                call(framework.hvd, framework)
                texts.append("no error")
            except framework.hvd.HorovodInternalError as error:
                assert type(error).__name__ == framework.mismatch
                texts.append(framework.text(error))
            works_afterwards(framework)
        assert texts[0] == texts[1] or case in ("unnamed", "kind"), texts
        return texts[0]

    calls = [(framework, rank_1 if rank == 1 else others) for rank in range(size)]
    texts = worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run, per_rank=calls)
    assert len(set(texts)) == 1, texts
    for part in ["rank 1", "expected", "got", *expected, *([] if case in ("unnamed", "kind") else [case])]:
        assert part in texts[0], f"{part!r} is not in: {texts[0]}"


# name: (a call that is wrong on this rank alone, its exception, what its text holds)
LOCAL_ERRORS: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "unsupported": (
        lambda hvd, f: hvd.allreduce(f.unsupported(), name="unsupported"),
        ValueError,
        "float8_e5m2.*expected.*float32",
    ),
    "no tensor": (lambda hvd, f: hvd.broadcast_("text", 0, name="no tensor"), TypeError, "got str"),
    "root": (lambda hvd, f: hvd.broadcast(ones(f, 2), 99, name="root"), ValueError, "root_rank=99: expected 0 to"),
    "negative root": (lambda hvd, f: hvd.broadcast(ones(f, 2), -1, name="negative root"), ValueError, "root_rank=-1"),
    "op": (lambda hvd, f: hvd.allreduce(ones(f, 2), op=17, name="op"), ValueError, "op=17: expected one of"),
    "adasum": (
        lambda hvd, f: hvd.allreduce(ones(f, 2, dtype=np.int32), op=hvd.Adasum, name="adasum"),
        ValueError,
        "Adasum is for floating-point tensors, got int32",
    ),
    "both": (
        lambda hvd, f: hvd.allreduce(ones(f, 2), average=True, op=hvd.Sum, name="both"),
        ValueError,
        "both op=Sum and average=True",
    ),
    "bool sum": (
        lambda hvd, f: hvd.allreduce(ones(f, 2, dtype=np.bool_), op=hvd.Sum, name="bool sum"),
        ValueError,
        "bool.*got op=Sum",
    ),
    "bool average": (
        lambda hvd, f: hvd.allreduce(ones(f, 2, dtype=np.bool_), name="bool average"),
        ValueError,
        "bool.*got op=Average",
    ),
    "bits of floats": (
        lambda hvd, f: hvd.allreduce(ones(f, 2), op=hvd.BitOr, name="bits of floats"),
        ValueError,
        "op=BitOr is for integers and bool, got float32",
    ),
    "scaled bits": (
        lambda hvd, f: hvd.reducescatter(ones(f, 2), op=hvd.BitXor, postscale_factor=0.5, name="scaled bits"),
        ValueError,
        "op=BitXor cannot be scaled.*postscale_factor=0.5",
    ),
    "scalar": (lambda hvd, f: hvd.allgather(ones(f), name="scalar"), ValueError, "0-d"),
    "empty group": (lambda hvd, f: hvd.grouped_allreduce([], name="empty group"), ValueError, "empty list"),
    "no list": (lambda hvd, f: hvd.grouped_allreduce_async(3, name="no list"), TypeError, "takes a list"),
    "too many splits": (
        lambda hvd, f: hvd.alltoall(ones(f, 9), [1] * 9, name="too many splits"),
        ValueError,
        "expected one split for each of . members, got 9",
    ),
    "splits beyond": (
        lambda hvd, f: hvd.alltoall(ones(f, 1), [2] * hvd.size(), name="splits beyond"),
        ValueError,
        "at most the 1 rows there are",
    ),
    "negative split": (
        lambda hvd, f: hvd.alltoall(
            ones(f, 1), [3] * (hvd.size() > 1) + [-1] * max(1, hvd.size() - 1), name="negative split"
        ),
        ValueError,
        "zero or more rows, got -1",
    ),
    "splits 2-d": (
        lambda hvd, f: hvd.alltoall(ones(f, 1), f.tensor(np.zeros((1, 1), np.int32)), name="splits 2-d"),
        ValueError,
        r"one-dimensional.*tensor, got.* shape \[1, 1\]",
    ),
    "splits dtype": (
        lambda hvd, f: hvd.alltoall(ones(f, 1), f.tensor(np.zeros(hvd.size(), np.int8)), name="splits dtype"),
        ValueError,
        "int32 or int64 tensor, got int8",
    ),
    "splits of floats": (
        lambda hvd, f: hvd.alltoall(ones(f, 1), [0.5] * hvd.size(), name="splits of floats"),
        TypeError,
        r"splits=\[0.5.*expected a list of ints|splits: expected integers, got float32",
    ),
    "alltoall scalar": (lambda hvd, f: hvd.alltoall(ones(f), name="alltoall scalar"), ValueError, "0-d"),
    "scattered scalar": (lambda hvd, f: hvd.reducescatter(ones(f), name="scattered scalar"), ValueError, "0-d"),
    "scattered adasum": (
        lambda hvd, f: hvd.reducescatter(ones(f, 2), op=hvd.Adasum, name="scattered adasum"),
        NotImplementedError,
        "Adasum",
    ),
    "scattered bool": (
        lambda hvd, f: hvd.reducescatter(ones(f, 2, dtype=np.bool_), op=hvd.Sum, name="scattered bool"),
        ValueError,
        "bool.*got op=Sum",
    ),
    "gathered list": (lambda hvd, f: hvd.grouped_allgather([], name="gathered list"), ValueError, "empty list"),
    "scattered list": (lambda hvd, f: hvd.grouped_reducescatter(3, name="scattered list"), TypeError, "takes a list"),
    "reduced list": (lambda hvd, f: hvd.grouped_allreduce(3, name="reduced list"), TypeError, "takes a list"),
    "scale": (
        lambda hvd, f: hvd.allreduce(ones(f, 2), prescale_factor="big", name="scale"),
        ValueError,
        "prescale_factor='big': expected a number",
    ),
    "scale not-a-number": (
        lambda hvd, f: hvd.allreduce(ones(f, 2), postscale_factor=float("nan"), name="scale not-a-number"),
        ValueError,
        "postscale_factor=nan: expected a number",
    ),
    "root of truth": (
        lambda hvd, f: hvd.broadcast(ones(f, 2), False, name="root of truth"),
        ValueError,
        "root_rank=False: expected the number of a rank",
    ),
    "group of nothing": (
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 2), f.unsupported()], name="group of nothing"),
        ValueError,
        "float8_e5m2",
    ),
    "dimensions": (
        lambda hvd, f: hvd.allreduce(ones(f, *[1] * 17), name="dimensions"),
        ValueError,
        "at most 16 dimensions, got 17",
    ),
    "5": (lambda hvd, f: hvd.allreduce(ones(f, 2), name=5), TypeError, "name: expected a str, got int"),
    "nul": (lambda hvd, f: hvd.allreduce(ones(f, 2), name="nul\0x"), ValueError, "cannot hold a NUL"),
    "process set": (
        lambda hvd, f: hvd.allreduce(ones(f, 2), process_set=hvd.ProcessSet([0]), name="process set"),
        ValueError,
        "is not registered",
    ),
}


@pytest.mark.parametrize("case", LOCAL_ERRORS)
@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), *WORLDS])
def test_a_call_that_is_wrong_on_one_rank_fails_there_and_the_others_do_not_wait(
    worlds: WorldPool, framework: str, size: int, transport: str, case: str
) -> None:
    label = {"root of truth": "broadcast", "group of nothing": "grouped_allreduce"}
    label |= {"no tensor": "broadcast", "root": "broadcast", "negative root": "broadcast", "scalar": "allgather"}
    label |= {"empty group": "grouped_allreduce", "no list": "grouped_allreduce", "reduced list": "grouped_allreduce"}
    label |= dict.fromkeys(
        ("too many splits", "splits beyond", "negative split", "splits 2-d", "splits dtype", "splits of floats"),
        "alltoall",
    )
    label |= {"alltoall scalar": "alltoall", "gathered list": "grouped_allgather"}
    label |= dict.fromkeys(("scattered scalar", "scattered adasum", "scattered bool", "scaled bits"), "reducescatter")
    label |= {"scattered list": "grouped_reducescatter"}
    wrong = (label.get(case, "allreduce"), *LOCAL_ERRORS[case])
    check_that_the_others_are_told(worlds(size, {"HOROVOD_TRANSPORT": transport}), framework, case, wrong)


def check_that_the_others_are_told(
    world: World, framework: str, case: str, wrong: tuple[str, Callable[[Any, Any], Any], type[Exception], str]
) -> None:
    """The last rank makes a wrong call, and the others the operation of that name, as it should be.

    `wrong`: (the operation, the wrong call, its exception, what its text holds).
    """
    operation, call, kind, pattern = wrong
    last = world.size - 1

    def run(framework_name: str) -> str:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
        wanted = (kind, *framework.wrong_here) if hvd.rank() == last else hvd.HorovodInternalError
        try:
            if hvd.rank() == last:
                call(hvd, framework)
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

    texts = world.run(run, framework)
    assert all(text.endswith("\nmore: horovodrun --explain refused") for text in texts[:last]), texts
    for rank, text in enumerate(texts):
        assert re.search(pattern, text, re.DOTALL), f"rank {rank}: {text}"
        assert f"rank {last}" in text and case in text, f"rank {rank}: {text}"
        assert text.count(f"rank {last}") == 1, f"rank {rank}, named twice: {text}"


def test_a_name_in_flight_is_refused_at_once_and_does_not_hurt_the_first(worlds: WorldPool, framework: str) -> None:
    def run(framework_name: str) -> tuple[str, float]:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
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

    outcomes = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework)
    assert [result for _, result in outcomes] == [2.0, 2.0]
    assert "rank 0" in outcomes[0][0] and "`allreduce.twice`" in outcomes[0][0], outcomes


def test_what_cannot_be_pickled_fails_on_all_ranks(worlds: WorldPool, framework: str) -> None:
    def run(framework_name: str) -> str:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
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

    for text in worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework):
        assert "cannot pickle generator" in text and "rank 0" in text, text


NAMES_APART = [("line\nbreak", "line break"), ("💡", "💡💡"), ("", " "), ("x" * 4000, "x" * 4001)]


def test_names_may_hold_any_text(worlds: WorldPool, framework: str) -> None:
    def run(framework_name: str, names: list[tuple[str, str]]) -> bool:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
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

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework, NAMES_APART) == [True, True]


def test_handles_that_are_unknown(worlds: WorldPool, framework: str) -> None:
    def run(framework_name: str) -> bool:
        hvd = frameworks.load(framework_name).hvd
        assert hvd.synchronize(10**9) is None
        with pytest.raises(ValueError, match="handle 1000000000 is unknown"):
            hvd.poll(10**9)
        return True

    assert worlds(1).run(run, framework) == [True]


def test_average_still_works_and_warns(worlds: WorldPool, framework: str) -> None:
    def run(framework_name: str) -> list[float]:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
        results = []
        for average in (True, False):
            with pytest.warns(DeprecationWarning, match="average= is deprecated"):
                results.append(float(framework.array(hvd.allreduce(ones(framework, 1), average))[0]))
        return results

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework) == [[1.0, 2.0]] * 2


def test_an_operation_in_place_needs_memory_to_write_to(worlds: WorldPool, framework: str) -> None:
    def run(framework_name: str) -> bool:
        framework = frameworks.load(framework_name)
        if framework_name == "core":
            tensor = np.ones(3)
            tensor.flags.writeable = False
            pattern = "read-only"
        else:
            tensor = framework.tensor(np.ones(1)).expand(3)
            pattern = "expanded"
        with pytest.raises(ValueError, match=pattern):
            framework.hvd.allreduce_(tensor, name="read-only")
        works_afterwards(framework)
        return True

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework) == [True] * 2


def test_a_wrong_call_after_a_rank_has_left_says_what_is_wrong_and_no_more(framework: str) -> None:
    def run(framework_name: str) -> str:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
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
        _, text = world.run(run, framework)
    assert "could not be told" not in text
