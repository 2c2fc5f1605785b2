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
from support.extent import THOROUGH
from support.frameworks import NAMES, Array, loaded
from support.world import WorldPool

import horovod.core as hvd
from horovod.core.native import DTYPE_NAMES, OP_NAMES

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 4), (70001,)]
WORLDS = [(1, "auto"), (2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "tcp"), (4, "2+2"), (4, "3+1")]
WORLDS += [(4, "2+2 tcp")]  # the bits depend on the hosts, not on how data travels
SET_WORLDS = [(3, "shm"), (4, "tcp"), (4, "3+1")]
# Every day: the core on every world and PyTorch on some, there with one dtype, and both with every dtype on one world.
# The code between a kernel and a transport has no dtype, and frameworks share all that is behind their tensors. The
# core takes bfloat16 where PyTorch takes float32, and across hosts of several ranks, where sums travel.
WORLDS_OF_ALL_DTYPES = [(2, "shm")]
WORLDS_OF_TORCH = [(1, "auto"), (2, "shm"), (3, "tcp"), (4, "3+1")]
REDUCTIONS = ["Average", "Sum", "Min", "Max", "Product"]
BITWISE = ["BitAnd", "BitOr", "BitXor"]
SCALES = [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (0.5, 4.0)]

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


def out_of_place(framework: Any) -> list[str]:
    """The forms of operations whose result may have another shape."""
    return [form for form in framework.forms if "in_place" not in form]


def ops_of(dtype: Any) -> list[str]:
    kind = np.dtype(dtype).kind
    return ["Min", "Max", *BITWISE] if kind == "b" else [*REDUCTIONS, *(BITWISE if kind in "iu" else [])]


def allreduce_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    ops = ops_of(dtype)
    shapes_and_layouts = [(shape, "dense") for shape in SHAPES] + [((3, 4), layout) for layout in framework.layouts[1:]]
    for op, (shape, layout), form in itertools.product(ops, shapes_and_layouts, framework.forms):
        yield _reduced(framework, dtype, rank, size, "allreduce", op, shape, layout, form, (1.0, 1.0))
    scales = [] if dtype == np.bool_ else SCALES[1:]
    for scale, form in itertools.product(scales, framework.forms):
        yield _reduced(framework, dtype, rank, size, "allreduce", "Sum", (5,), "dense", form, scale)
    for op, form in itertools.product(ops, framework.forms):
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
        ranks = getattr(framework.hvd, "ranks", None)  # of a set
        return seen, [reference.allreduce(by_rank, number, *scale, ranks) for by_rank in inputs]

    return label, run


def allgather_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    uneven = [lambda r: (r, 3), lambda r: (2 - r % 2, 0), lambda r: (5000 * r + 1,), lambda r: (0, 2)]
    for index, (shape_of, form) in enumerate(itertools.product(uneven, out_of_place(framework))):

        def run(shape_of: Any = shape_of, form: str = form, index: int = index) -> tuple[list[Array], list[Array]]:
            inputs = [reference.values(r, shape_of(r), dtype, index) for r in range(size)]
            tensor = framework.tensor(inputs[rank])
            seen = called(framework, "allgather", form, tensor, name=None if index % 2 else f"rows {index}")
            return seen, [np.concatenate(inputs)]

        yield f"allgather {form} of {shape_of(0)} on rank 0", run
    for form in out_of_place(framework):

        def group(form: str = form) -> tuple[list[Array], list[Array]]:
            by_tensor = [[reference.values(r, of(r), dtype, i) for r in range(size)] for i, of in enumerate(uneven)]
            tensors = [framework.tensor(inputs[rank]) for inputs in by_tensor]
            seen = called(framework, "grouped_allgather", form, tensors, name=None if form == "sync" else "group")
            return seen, [np.concatenate(inputs) for inputs in by_tensor]

        yield f"grouped_allgather {form}", group


def alltoall_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    # name: (rows that rank s sends to rank d, rows that go to nobody, shape of a row)
    patterns: dict[str, tuple[Callable[[int, int], int], int, tuple[int, ...]]] = {
        "uneven": (lambda s, d: (s + 2 * d) % 4, 1, (3,)),
        "one pair": (lambda s, d: 40000 if s == 0 and d == size - 1 else 0, 0, ()),
        "nothing": (lambda s, d: 0, 2, (2,)),
        "empty rows": (lambda s, d: d, 0, (0, 2)),
        "even": (lambda s, d: 2 + s, 0, (2, 2)),
    }
    for (label, (rows_of, tail, row)), form in itertools.product(patterns.items(), out_of_place(framework)):
        for kind in ("none", "list", "tensor", "int64 tensor") if label == "even" else ("list", "tensor"):

            def run(
                rows_of: Any = rows_of, tail: int = tail, row: Any = row, form: str = form, kind: str = kind
            ) -> tuple[list[Array], list[Array]]:
                hvd = framework.hvd
                inputs, counts = [], []
                for r in range(size):
                    counts.append([rows_of(r, d) for d in range(size)])
                    inputs.append(reference.values(r, (sum(counts[r]) + tail, *row), dtype))
                as_tensor = framework.tensor(np.array(counts[rank], np.int64 if "int64" in kind else np.int32))
                splits: Any = {"none": None, "list": counts[rank]}.get(kind, as_tensor)
                tensor = framework.tensor(inputs[rank])
                name = None if kind == "list" else f"{counts[0]} {kind}"
                if form == "async":
                    result = hvd.synchronize(hvd.alltoall_async(tensor, splits, name=name))
                else:
                    result = hvd.alltoall(tensor, splits, name=name)
                expected = [np.split(inputs[s], np.cumsum(counts[s]))[rank] for s in range(size)]
                received = np.array([counts[s][rank] for s in range(size)], np.int32)
                assert reference.same_bits(framework.array(tensor), inputs[rank]), "the tensor given is unchanged"
                if kind == "none" and form == "sync":
                    return [framework.array(result)], [np.concatenate(expected)]
                output, seen_splits = result
                return [framework.array(output), framework.array(seen_splits)], [np.concatenate(expected), received]

            yield f"alltoall {form} {label}, splits {kind}", run


def reducescatter_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    ops = ops_of(dtype)
    shapes_and_layouts = [(shape, "dense") for shape in SHAPES[1:]]
    shapes_and_layouts += [((3, 4), layout) for layout in framework.layouts[1:]]
    for op, (shape, layout), form in itertools.product(ops, shapes_and_layouts, out_of_place(framework)):
        yield _scattered(framework, dtype, rank, size, False, op, shape, layout, form, (1.0, 1.0))
    scales = [] if dtype == np.bool_ else SCALES[1:]
    for scale, grouped, form in itertools.product(scales, (False, True), out_of_place(framework)):
        yield _scattered(framework, dtype, rank, size, grouped, "Sum", (5,), "dense", form, scale)
    for op, form in itertools.product(ops, out_of_place(framework)):
        yield _scattered(framework, dtype, rank, size, True, op, (5,), "dense", form, (1.0, 1.0))


def _scattered(
    framework: Any,
    dtype: Any,
    rank: int,
    size: int,
    grouped: bool,
    op: str,
    shape: tuple[int, ...],
    layout: str,
    form: str,
    scale: tuple[float, float],
) -> Row:
    """This rank's rows of what an allreduce gives."""
    shapes = [shape, (3, 4), (0,), (size, 2)] if grouped else [shape]
    operation = "grouped_reducescatter" if grouped else "reducescatter"
    label = f"{operation} {form} {op} {shape} {layout} scales {scale}"

    def run() -> tuple[list[Array], list[Array]]:
        inputs = [[reference.values(r, s, dtype, seed) for r in range(size)] for seed, s in enumerate(shapes)]
        tensors = [framework.tensor(by_rank[rank], layout) for by_rank in inputs]
        number = OP_NAMES.index(op)
        options = {"op": number, "prescale_factor": scale[0], "postscale_factor": scale[1]}
        given = tensors if grouped else tensors[0]
        seen = called(framework, operation, form, given, name=None if op == "Max" else label, **options)
        ranks = getattr(framework.hvd, "ranks", None)  # of a set
        whole = [reference.allreduce(by_rank, number, *scale, ranks) for by_rank in inputs]
        return seen, [reference.rows_of(array, size, rank) for array in whole]

    return label, run


def broadcast_rows(framework: Any, dtype: Any, rank: int, size: int) -> Iterator[Row]:
    cases = [(shape, "dense") for shape in SHAPES] + [((3, 4), layout) for layout in framework.layouts[1:]]
    for (shape, layout), form, root in itertools.product(cases, framework.forms, range(size)):

        def run(
            shape: Any = shape, layout: str = layout, form: str = form, root: int = root
        ) -> tuple[list[Array], list[Array]]:
            tensor = framework.tensor(reference.values(rank, shape, dtype), layout)
            seen = called(framework, "broadcast", form, tensor, root, name=None if root else f"{shape} {layout} {form}")
            return seen, [reference.values(root, shape, dtype)]

        yield f"broadcast {form} of {shape} {layout} from {root}", run


def wrong_rows(framework_name: str, dtype_name: str) -> list[str]:
    """Runs in a rank: every row of the dtype; returns those that went wrong, and how many there were."""
    return wrong_rows_of(frameworks.load(framework_name), dtype_name)[0]


def wrong_rows_of(
    framework: Any, dtype_name: str, same: Callable[[Array, Array], bool] = reference.same_bits
) -> tuple[list[str], int]:
    dtype = frameworks.dtype_of(dtype_name)
    rank, size = framework.hvd.rank(), framework.hvd.size()
    wrong, count = [], 0
    for rows in (allreduce_rows, allgather_rows, broadcast_rows, alltoall_rows, reducescatter_rows):
        if framework.has_fixed_shapes and rows in (allgather_rows, alltoall_rows):
            continue
        for label, run in rows(framework, dtype, rank, size):
            seen, expected = run()
            count += 1
            for index, (a, b) in enumerate(zip(seen, expected, strict=True)):
                if not same(a, b):
                    wrong.append(f"{label}, tensor {index}: expected {b.ravel()[:4]} {b.shape}, got {a.ravel()[:4]}")
        framework.hvd.barrier()
    assert count > 25 * len(framework.forms), count  # the table is not empty by mistake
    return wrong, count


def cases(
    worlds: list[tuple[int, str]], worlds_of_all_dtypes: list[tuple[int, str]]
) -> list[tuple[str, int, str, str]]:
    """(framework, size, transport, dtype), world by world."""
    found = []
    for name, world, dtype in itertools.product(NAMES, worlds, DTYPE_NAMES):
        if name == "core":
            daily = "bfloat16" if world in WORLDS_OF_TORCH or "+" in world[1] else "float32"
        else:
            daily = "float32" if world in WORLDS_OF_TORCH else ""
        if THOROUGH or world in worlds_of_all_dtypes or dtype == daily:
            found.append((name, *world, dtype))
    return found


@pytest.mark.parametrize(("framework", "size", "transport", "dtype"), cases(WORLDS, WORLDS_OF_ALL_DTYPES))
def test_results_are_those_of_the_reference(
    worlds: WorldPool, framework: str, size: int, transport: str, dtype: str
) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="not run: ml_dtypes is not installed")
    for wrong in worlds(size, {"HOROVOD_TRANSPORT": transport}).run(wrong_rows, framework, dtype):
        assert wrong == []


@pytest.mark.parametrize(("framework", "size", "transport", "dtype"), cases(WORLDS[1:] if THOROUGH else SET_WORLDS, []))
def test_results_over_overlapping_sets_are_those_of_the_reference(
    worlds: WorldPool, framework: str, size: int, transport: str, dtype: str
) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="not run: ml_dtypes is not installed")

    def run(framework: Any, hvd: Any, dtype_name: str) -> list[str]:
        # The first is without the host's leader; of three ranks or more the last is in both.
        lists = [sorted({1, hvd.size() - 1}), [rank for rank in range(hvd.size()) if rank != 1]]
        sets = [hvd.add_process_set(ranks) for ranks in lists]
        wrong = []
        for process_set in sets:
            if process_set.included():
                wrong += wrong_rows_of(frameworks.InSet(framework, process_set), dtype_name)[0]
        hvd.barrier()
        assert [hvd.remove_process_set(process_set) for process_set in sets] == [True, True]
        return wrong

    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    for wrong in worlds(size, env).run(loaded(run), framework, dtype):
        assert wrong == []


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_reducescatter_has_the_bits_of_the_allreduce(worlds: WorldPool, framework: str, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        array = framework.array
        rank, size = hvd.rank(), hvd.size()
        wrong = []
        for dtype, rows, op in itertools.product(
            ("float16", "float32", "float64"), (1, 7, 1000, 300007), ("Average", "Sum", "Product")
        ):
            tensor = framework.tensor((np.random.default_rng(rank).standard_normal((rows, 2)) + 0.1).astype(dtype))
            number = OP_NAMES.index(op)
            whole = array(hvd.allreduce(tensor, op=number, prescale_factor=0.3, name="whole"))
            part = array(hvd.reducescatter(tensor, op=number, prescale_factor=0.3, name="part"))
            if not reference.same_bits(part, reference.rows_of(whole, size, rank)):
                wrong.append(f"{dtype} {rows} {op}")
        return wrong

    for wrong in worlds(3, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework):
        assert wrong == []


def test_special_floats_propagate_and_zeros_keep_their_sign(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> list[str]:
        rank, size = hvd.rank(), hvd.size()
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 5e-324]
        wrong = []
        for dtype_name in ("float16", "float32", "float64"):
            inputs = [np.roll(np.array(special), r).astype(dtype_name) for r in range(size)]
            for op in REDUCTIONS:
                number = OP_NAMES.index(op)
                expected = reference.allreduce(inputs, number)
                seen = framework.array(hvd.allreduce(framework.tensor(inputs[rank]), op=number))
                if not reference.same_bits(seen, expected):
                    wrong.append(f"{op} {dtype_name}: expected {expected}, got {seen}")
        return wrong

    for wrong in worlds(3, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework):
        assert wrong == []


def test_many_operations_in_flight_may_start_in_another_order_on_every_rank(worlds: WorldPool, framework: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
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

    assert worlds(3, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework) == [True] * 3


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (3, "shm"), (3, "tcp")])
def test_objects_travel(worlds: WorldPool, framework: str, size: int, transport: str) -> None:
    def run(framework: Any, hvd: Any) -> bool:
        rank, size = hvd.rank(), hvd.size()
        value = {"rank": rank, "list": list(range(rank)), "function": lambda: rank}
        received = hvd.broadcast_object(value, root_rank=size - 1, name="named")
        assert received["rank"] == received["function"]() == size - 1
        assert hvd.broadcast_object("only the root's", root_rank=0) == "only the root's"
        assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]
        assert hvd.allgather_object(None, name="named") == [None] * size
        return True

    assert worlds(size, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework) == [True] * size


def test_a_scale_that_is_an_array_counts_with_its_value_of_the_moment(worlds: WorldPool) -> None:
    def run() -> list[float]:
        hvd.init()
        scale, results = np.array(1.0), []
        for value in (1.0, 2.0, 4.0):
            scale[...] = value
            one = np.ones(1, np.float32)
            results.append(float(hvd.allreduce(one, name="scaled", op=hvd.Sum, prescale_factor=scale)[0]))
        return results

    assert worlds(2).run(run) == [[2.0, 4.0, 8.0]] * 2


@pytest.mark.parametrize("framework", [*NAMES, "jax"])
@pytest.mark.parametrize("world", [(2, "shm"), (3, "tcp")])
def test_complex_tensors_are_reduced_and_moved_as_numbers(
    worlds: WorldPool, framework: str, world: tuple[int, str]
) -> None:
    if why := frameworks.missing(framework):
        pytest.skip(why)

    def run(f: Any, hvd: Any) -> None:
        rank, size = hvd.rank(), hvd.size()
        for dtype in (np.complex64,) if framework == "jax" else (np.complex64, np.complex128):

            def of(rank: int, shape: tuple[int, ...] = (6, 2), dtype: Any = dtype) -> Array:
                values: Array = (np.arange(np.prod(shape)).reshape(shape) * (1 + 1j) + 1j * rank).astype(dtype)
                return values

            def check(seen: Any, expected: Array, dtype: Any = dtype) -> None:
                array = f.array(seen)
                assert array.dtype == dtype and array.shape == expected.shape
                np.testing.assert_allclose(array, expected, rtol=1e-6)

            total = sum(map(of, range(size)))
            for layout in f.layouts:
                given = f.tensor(of(rank), layout)
                check(hvd.allreduce(given, op=hvd.Sum), total)
                check(given, of(rank))
            check(hvd.allreduce(f.tensor(of(rank))), total / size)
            check(hvd.allreduce(f.tensor(of(rank, ())), op=hvd.Sum), sum(of(each, ()) for each in range(size)))
            check(hvd.grouped_allreduce([f.tensor(of(rank)), f.tensor(np.ones(2, np.float32))], op=hvd.Sum)[0], total)
            check(
                hvd.allgather(f.tensor(of(rank, (rank + 1, 2)))),
                np.concatenate([of(r, (r + 1, 2)) for r in range(size)]),
            )
            check(hvd.broadcast(f.tensor(of(rank)), 1), of(1))
            each = 6 // size
            check(hvd.alltoall(f.tensor(of(rank))), np.concatenate([of(r)[rank * each :][:each] for r in range(size)]))
            check(hvd.reducescatter(f.tensor(of(rank)), op=hvd.Sum), total[rank * each :][:each])
            if "in_place" in f.forms:
                for layout in f.layouts:
                    given = f.tensor(of(rank), layout)
                    assert hvd.allreduce_(given, op=hvd.Sum) is given
                    check(given, total)
                    check(hvd.broadcast_(f.tensor(of(rank), layout), 1), of(1))
        for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            for call in (hvd.allreduce, lambda tensor, op: hvd.grouped_allreduce([tensor], op=op)):
                with pytest.raises(NotImplementedError, match="complex tensors: expected op Average or Sum"):
                    call(f.tensor(of(rank)), op=op)
        for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match="expected at least one dimension, got a 0-d tensor"):
                call(f.tensor(of(rank, ())))

    size, transport = world
    worlds(size, {"HOROVOD_TRANSPORT": transport}).run(loaded(run), framework)
