# SPDX-License-Identifier: Apache-2.0
"""Random programs of operations against the reference, bit by bit: kinds, dtypes (mixed in a group too), shapes, ragged
rows, groups, scales, sets, and each rank's own order and pace of submitting them. Names come back with other meanings
in later programs.

THOROUGH=1 runs 300 examples of it (`make check-all`), otherwise 40.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import reference
from support.world import WorldPool

import horovod.core as hvd
from horovod.core.native import OP_NAMES

WORLDS = [(2, "shm"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "2+2"), (4, "3+1")]
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
DTYPES += ["uint16", "uint32", "uint64"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation. `shapes`: by tensor of a group of one or more. `rows`: by tensor what each rank has of dimension 0
    (allgather); by rank what goes to each rank (alltoall). `members`: the ranks of its process set."""

    kind: str
    name: str
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    grouped: bool
    in_place: bool
    op: int
    scales: tuple[float, float]
    rows: list[list[int]]
    root: int
    members: tuple[int, ...]
    seed: int


@st.composite
def steps(draw: st.DrawFn, size: int, name: str) -> Step:
    kind = draw(st.sampled_from(["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]))
    members = draw(st.sampled_from([tuple(range(size)), (0, size - 1), tuple(range(1, size))]))
    grouped = kind not in ("broadcast", "alltoall") and draw(st.booleans())
    count = draw(st.integers(1, 3)) if grouped else 1
    lowest = 0 if kind in ("allreduce", "broadcast") else 1
    extents = st.one_of(st.integers(0, 5), st.sampled_from([1, 7, 4099]))
    shapes = []
    for _ in range(count):
        first = draw(st.lists(extents, min_size=min(lowest, 1), max_size=1))
        shapes.append((*first, *draw(st.lists(st.integers(0, 3), max_size=2))) if first else ())
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=count, max_size=count))
    are_floats = [dtype.startswith("float") for dtype in dtypes]
    ops = ["Min", "Max"] if "bool" in dtypes else ["Average", "Sum", "Min", "Max", "Product"]
    if not any(are_floats):
        ops += ["BitAnd", "BitOr", "BitXor"]
    scale = st.sampled_from([1.0, 2.0, 0.5]) if all(are_floats) else st.just(1.0)
    lines = len(members) if kind == "alltoall" else count
    return Step(
        kind=kind,
        name=name,
        dtypes=dtypes,
        shapes=shapes,
        grouped=grouped,
        in_place=kind in ("allreduce", "broadcast") and draw(st.booleans()),
        op=OP_NAMES.index(draw(st.sampled_from(ops))),
        scales=(draw(scale), draw(scale)),
        rows=[draw(st.lists(extents, min_size=len(members), max_size=len(members))) for _ in range(lines)],
        root=draw(st.integers(0, len(members) - 1)),
        members=members,
        seed=draw(st.integers(0, 1000)),
    )


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, str], list[Step], list[int], list[float]]:
    """(world, steps, by rank the seed of its order, by rank its pause between two steps in ms)"""
    world = draw(st.sampled_from(WORLDS))
    names = draw(st.lists(st.sampled_from([f"r{number}" for number in range(10)]), min_size=4, max_size=9, unique=True))
    orders = draw(st.lists(st.integers(0, 100), min_size=world[0], max_size=world[0]))
    pauses = draw(st.lists(st.sampled_from([0.0, 0.0, 0.1, 3.0]), min_size=world[0], max_size=world[0]))
    return world, [draw(steps(world[0], name)) for name in names], orders, pauses


def inputs_of(step: Step, member: int) -> list[Any]:
    shapes = step.shapes
    if step.kind == "allgather":
        shapes = [(rows[member], *shape[1:]) for shape, rows in zip(shapes, step.rows, strict=True)]
    elif step.kind == "alltoall":
        shapes = [(sum(step.rows[member]), *shapes[0][1:])]
    both = zip(shapes, step.dtypes, strict=True)
    return [reference.values(member, shape, dtype, step.seed + index) for index, (shape, dtype) in enumerate(both)]


def expected_of(step: Step, member: int) -> list[Any]:
    count = len(step.members)
    by_member = [inputs_of(step, other) for other in range(count)]
    if step.kind == "broadcast":
        return by_member[step.root]
    if step.kind == "alltoall":
        parts = [np.split(whole[0], np.cumsum(rows))[member] for whole, rows in zip(by_member, step.rows, strict=True)]
        return [np.concatenate(parts), np.array([rows[member] for rows in step.rows], np.int32)]
    results = []
    for tensors in zip(*by_member, strict=True):
        if step.kind == "allgather":
            results.append(np.concatenate(tensors))
            continue
        whole = reference.allreduce(list(tensors), step.op, *step.scales, step.members)
        results.append(whole if step.kind == "allreduce" else reference.rows_of(whole, count, member))
    return results


def started(hvd: Any, step: Step, member: int, process_set: Any) -> int:
    """Submits a step; returns its handle."""
    tensors = [array.copy() for array in inputs_of(step, member)]
    arguments: list[Any] = [tensors if step.grouped else tensors[0]]
    options: dict[str, Any] = {"name": step.name, "process_set": process_set}
    if step.kind in ("allreduce", "reducescatter"):
        options |= {"op": step.op, "prescale_factor": step.scales[0], "postscale_factor": step.scales[1]}
    if step.kind == "broadcast":
        arguments.append(step.members[step.root])
    if step.kind == "alltoall":
        arguments.append(step.rows[member])
    function = ("grouped_" if step.grouped else "") + step.kind + "_async" + ("_" if step.in_place else "")
    handle: int = getattr(hvd, function)(*arguments, **options)
    return handle


def execute(program: list[Step], orders: list[int], pauses: list[float]) -> list[str]:
    """Runs in a rank; returns what came out wrong."""
    hvd.init()
    rank = hvd.rank()
    sets: dict[tuple[int, ...], Any] = {tuple(range(hvd.size())): hvd.global_process_set}
    for members in sorted({step.members for step in program} - set(sets)):
        sets[members] = hvd.add_process_set(list(members))
    mine = [step for step in program if rank in step.members]
    order = np.random.default_rng(orders[rank]).permutation(len(mine))
    handles = {}
    for index in order:
        step = mine[index]
        time.sleep(pauses[rank] / 1000)  # a slow rank: nothing waits for it to be over
        handles[step.name] = started(hvd, step, step.members.index(rank), sets[step.members])
    wrong = []
    for step in mine:
        seen = hvd.synchronize(handles[step.name])
        results = list(seen) if isinstance(seen, (list, tuple)) else [seen]
        for index, (a, b) in enumerate(zip(results, expected_of(step, step.members.index(rank)), strict=True)):
            if not reference.same_bits(a, b):
                wrong.append(f"{step}, tensor {index}: expected {b.ravel()[:4]} {b.shape}, got {a.ravel()[:4]}")
    hvd.barrier()
    for members, process_set in sets.items():
        assert process_set is hvd.global_process_set or hvd.remove_process_set(process_set), members
    return wrong


@pytest.mark.slow("40 random programs in six worlds")
@pytest.mark.timeout(1200)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_random_programs_give_the_bits_of_the_reference(worlds: WorldPool, program: Any) -> None:
    (size, transport), steps_of_program, orders, pauses = program
    env = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    for wrong in worlds(size, env).run(execute, steps_of_program, orders, pauses):
        assert wrong == []
