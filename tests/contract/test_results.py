# SPDX-License-Identifier: Apache-2.0
"""The contract, results: every operation x dtype x shape x form, for every framework, against NumPy bit by bit.

One table (`table`) of calls; a world runs all rows of a dtype at once and returns the rows that went wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import frameworks, reference
from support.frameworks import NAMES, Array
from support.world import WorldPool

from horovod.core.native import DTYPE_NAMES, OP_NAMES

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 4), (70001,)]
WORLDS = [(1, "auto"), (2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "tcp")]
REDUCTIONS = ["Average", "Sum", "Min", "Max", "Product"]
SCALES = [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (0.5, 4.0)]
FORMS = ["sync", "async", "in_place", "async_in_place"]
LAYOUTS = ["dense", "transposed", "strided"]

# A row: what is called, for messages; a function that calls it and returns (seen, expected).
Row = tuple[str, Callable[[], tuple[list[Array], list[Array]]]]


def called(framework: Any, operation: str, form: str, tensors: Any, *arguments: Any, **options: Any) -> list[Array]:
    """Calls one of the four forms; checks what all forms promise about handles and memory; returns the results."""
    hvd = framework.hvd
    name = operation + ("_async" if "async" in form else "") + ("_" if "in_place" in form else "")
    before = [framework.array(t).copy() for t in (tensors if isinstance(tensors, list) else [tensors])]
    result = getattr(hvd, name)(tensors, *arguments, **options)
    if "async" in form:
        handle = result
        hvd.poll(handle)
        result = hvd.synchronize(handle)
        assert hvd.synchronize(handle) is None, "a handle can be synchronized once"
    given = tensors if isinstance(tensors, list) else [tensors]
    results = list(result) if isinstance(tensors, list) else [result]
    if "in_place" in form:
        assert all(r is g for r, g in zip(results, given, strict=True)), "the tensor given is returned"
    else:
        kept = [framework.array(t) for t in given]
        assert all(map(reference.same_bits, kept, before)), "the tensor given is unchanged"
    return [framework.array(r).copy() for r in results]


def allreduce_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    ops = ["Min", "Max"] if dtype == np.bool_ else REDUCTIONS
    shapes_and_layouts = [(shape, "dense") for shape in SHAPES] + [((3, 4), layout) for layout in LAYOUTS[1:]]
    for op, (shape, layout), form in itertools.product(ops, shapes_and_layouts, FORMS):
        yield _reduced(framework, dtype, rank, size, "allreduce", op, shape, layout, form, (1.0, 1.0))
    scales = [] if dtype == np.bool_ else SCALES[1:]
    for scale, form in itertools.product(scales, FORMS):
        yield _reduced(framework, dtype, rank, size, "allreduce", "Sum", (5,), "dense", form, scale)
    for op, form in itertools.product(ops, FORMS):
        yield _reduced(framework, dtype, rank, size, "grouped_allreduce", op, (5,), "dense", form, (1.0, 1.0))


def _reduced(
    framework: Any,
    dtype: Any,
    rank: int,
    size: int,
    operation: str,
    op: str,
    shape: tuple[int, ...],
    layout: str,
    form: str,
    scale: tuple[float, float],
) -> Row:
    grouped = operation.startswith("grouped")
    shapes = [shape, (), (3, 4), (0,)] if grouped else [shape]
    label = f"{operation} {form} {op} {shape} {layout} scales {scale}"

    def run() -> tuple[list[Array], list[Array]]:
        inputs = [[reference.values(r, s, dtype, seed) for r in range(size)] for seed, s in enumerate(shapes)]
        tensors = [framework.tensor(by_rank[rank], layout) for by_rank in inputs]
        number = OP_NAMES.index(op)
        seen = called(
            framework,
            operation,
            form,
            tensors if grouped else tensors[0],
            name=None if op == "Max" else label,
            op=number,
            prescale_factor=scale[0],
            postscale_factor=scale[1],
        )
        return seen, [reference.allreduce(by_rank, number, *scale) for by_rank in inputs]

    return label, run


def allgather_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    uneven = [lambda r: (r, 3), lambda r: (2 - r % 2, 0), lambda r: (5000 * r + 1,), lambda r: (0, 2)]
    for index, (shape_of, form) in enumerate(itertools.product(uneven, FORMS[:2])):

        def run(shape_of: Any = shape_of, form: str = form, index: int = index) -> tuple[list[Array], list[Array]]:
            inputs = [reference.values(r, shape_of(r), dtype, index) for r in range(size)]
            tensor = framework.tensor(inputs[rank])
            seen = called(framework, "allgather", form, tensor, name=None if index % 2 else f"rows {index}")
            return seen, [np.concatenate(inputs)]

        yield f"allgather {form} of {shape_of(0)} on rank 0", run


def broadcast_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    cases = [(shape, "dense") for shape in SHAPES] + [((3, 4), layout) for layout in LAYOUTS[1:]]
    for (shape, layout), form, root in itertools.product(cases, FORMS, range(size)):

        def run(
            shape: Any = shape, layout: str = layout, form: str = form, root: int = root
        ) -> tuple[list[Array], list[Array]]:
            tensor = framework.tensor(reference.values(rank, shape, dtype), layout)
            seen = called(framework, "broadcast", form, tensor, root, name=None if root else f"{shape} {layout} {form}")
            return seen, [reference.values(root, shape, dtype)]

        yield f"broadcast {form} of {shape} {layout} from {root}", run


def wrong_rows(framework_name: str, dtype_name: str) -> list[str]:
    """Runs in a rank: every row of the dtype; returns those that went wrong, and how many there were."""
    framework = frameworks.load(framework_name)
    dtype = frameworks.dtype_of(dtype_name)
    rank, size = framework.hvd.rank(), framework.hvd.size()
    wrong, count = [], 0
    for rows in (allreduce_rows, allgather_rows, broadcast_rows):
        for label, run in rows(framework, dtype, rank, size):
            seen, expected = run()
            count += 1
            for index, (a, b) in enumerate(zip(seen, expected, strict=True)):
                if not reference.same_bits(a, b):
                    wrong.append(f"{label}, tensor {index}: expected {b.ravel()[:4]} {b.shape}, seen {a.ravel()[:4]}")
        framework.hvd.barrier()
    assert count > 100, count  # the table is not empty by mistake
    return wrong


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize(("size", "transport"), WORLDS)
@pytest.mark.parametrize("framework", NAMES)
def test_results_are_those_of_the_reference(
    worlds: WorldPool, framework: str, size: int, transport: str, dtype: str
) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="not run: ml_dtypes is not installed")
    for wrong in worlds(size, {"HOROVOD_TRANSPORT": transport}).run(wrong_rows, framework, dtype):
        assert wrong == []


@pytest.mark.parametrize("framework", NAMES)
def test_special_floats_propagate_and_zeros_keep_their_sign(worlds: WorldPool, framework: str) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)

    def run(framework_name: str) -> list[str]:
        framework = frameworks.load(framework_name)
        rank, size = framework.hvd.rank(), framework.hvd.size()
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 5e-324]
        wrong = []
        for dtype_name in ("float16", "float32", "float64"):
            inputs = [np.roll(np.array(special), r).astype(dtype_name) for r in range(size)]
            for op in REDUCTIONS:
                number = OP_NAMES.index(op)
                expected = reference.allreduce(inputs, number)
                seen = framework.array(framework.hvd.allreduce(framework.tensor(inputs[rank]), op=number))
                if not reference.same_bits(seen, expected):
                    wrong.append(f"{op} {dtype_name}: expected {expected}, seen {seen}")
        return wrong

    for wrong in worlds(3, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework):
        assert wrong == []


@pytest.mark.parametrize("framework", NAMES)
def test_many_operations_in_flight_may_start_in_another_order_on_every_rank(worlds: WorldPool, framework: str) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)

    def run(framework_name: str) -> bool:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
        names = [f"tensor.{index}" for index in range(100)]
        order = np.random.default_rng(hvd.rank()).permutation(len(names))
        handles = {}
        for index in order:
            tensor = framework.tensor(np.full(index + 1, hvd.rank() + index, np.float32))
            handles[index] = hvd.allreduce_async(tensor, name=names[index], op=hvd.Sum)
        for index in reversed(range(len(names))):
            seen = framework.array(hvd.synchronize(handles[index]))
            assert seen.shape == (index + 1,)
            assert np.all(seen == sum(range(hvd.size())) + index * hvd.size())
        return True

    assert worlds(3, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework) == [True] * 3


@pytest.mark.parametrize("framework", NAMES)
@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (3, "shm"), (3, "tcp")])
def test_objects_travel(worlds: WorldPool, framework: str, size: int, transport: str) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)

    def run(framework_name: str) -> bool:
        hvd = frameworks.load(framework_name).hvd
        rank, size = hvd.rank(), hvd.size()
        value = {"rank": rank, "list": list(range(rank)), "function": lambda: rank}
        received = hvd.broadcast_object(value, root_rank=size - 1, name="named")
        assert received["rank"] == received["function"]() == size - 1
        assert hvd.broadcast_object("only the root's", root_rank=0) == "only the root's"
        assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]
        assert hvd.allgather_object(None, name="named") == [None] * size
        return True

    assert worlds(size, {"HOROVOD_TRANSPORT": transport}).run(run, framework) == [True] * size
