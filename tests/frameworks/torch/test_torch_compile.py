# SPDX-License-Identifier: Apache-2.0
"""Collectives inside torch.compile: the same values and gradients as eagerly, and none is dropped or reordered."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.extent import THOROUGH
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd
from horovod.torch.tensors import collectives


def rows(rank: int, count: int = 4) -> Any:
    return (torch.arange(float(count * 3)).reshape(count, 3) + 1) * (rank + 1)


# Each takes (hvd, x, y), where x has 6 rows and y as many as the rank's number and one more, and gives a list.
CASES: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "allreduce": lambda hvd, x, y: [hvd.allreduce(x * 2, name="a") * x],
    "unnamed": lambda hvd, x, y: [hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5) - hvd.allreduce(x)],
    "compressed": lambda hvd, x, y: [hvd.allreduce(x, name="c", compression=hvd.Compression.fp16)],
    "grouped_allreduce": lambda hvd, x, y: hvd.grouped_allreduce([x, 2 * x, x.sum()], name="ga", op=hvd.Sum),
    "one_of_a_group": lambda hvd, x, y: hvd.grouped_allreduce([x, 2 * x], name="one")[:1],
    "allgather": lambda hvd, x, y: [hvd.allgather(y, name="g") * 3],
    "grouped_allgather": lambda hvd, x, y: list(hvd.grouped_allgather([x, y * y], name="gg")),
    "broadcast": lambda hvd, x, y: [hvd.broadcast(x * x, hvd.size() - 1, name="b")],
    "alltoall": lambda hvd, x, y: [hvd.alltoall(x, name="t") * 2],
    "alltoall_list": lambda hvd, x, y: [hvd.alltoall(x, [1] * hvd.size(), name="tl")[0]],
    "alltoall_tensor": lambda hvd, x, y: list(hvd.alltoall(x, torch.ones(hvd.size(), dtype=torch.int32), name="tt")),
    "reducescatter": lambda hvd, x, y: [hvd.reducescatter(x, name="s", op=hvd.Sum, postscale_factor=3.0) * 2],
    "uneven": lambda hvd, x, y: [hvd.reducescatter(x[:5], name="u")],
    "grouped_reducescatter": lambda hvd, x, y: hvd.grouped_reducescatter([x, x[:4] * 2], name="gs"),
}


def checked(hvd: Any, case: str, call: Callable[[Any, Any, Any], list[Any]], backend: str) -> None:
    """Fails where the compiled call differs from the eager one."""

    def run(x: Any, y: Any) -> list[Any]:
        return call(hvd, x, y)

    torch._dynamo.reset()  # every case is compiled from this one `run`
    seen = []
    for function in (run, torch.compile(run, fullgraph=True, backend=backend)):
        for round_ in (1, 2):  # the second meets what the first has compiled and cached
            x = (rows(hvd.rank(), 6) * round_).requires_grad_()
            y = (rows(hvd.rank(), hvd.rank() + 1) * round_).requires_grad_()
            results = function(x, y)
            sum((result.float() * (index + 1)).square().sum() for index, result in enumerate(results)).backward()
            seen.append([*results, x.grad, y.grad])
    assert len(seen) == 4
    for eager, compiled in zip(seen[:2], seen[2:], strict=True):
        for a, b in zip(eager, compiled, strict=True):
            assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b)), (case, a, b)


def dynamic_outputs() -> Any:
    """A graph may hold operations whose outputs' shapes are known only when they run."""
    from torch._dynamo import config  # as torch._dynamo.config it would be pickled with what names it, and cannot

    return config.patch(capture_dynamic_output_shape_ops=True)


@pytest.mark.slow("compiles with PyTorch")
def test_compiled_collectives_have_the_values_and_gradients_of_eager_ones(worlds: WorldPool) -> None:
    def run() -> int:
        hvd.init()
        with dynamic_outputs():
            for case, call in CASES.items():
                checked(hvd, case, call, "aot_eager")
        return len(CASES)

    assert worlds(2, {"HOROVOD_TRANSPORT": "tcp"}).run(run) == [len(CASES)] * 2


@pytest.mark.thorough
@pytest.mark.skipif(
    torch.__version__ < (2, 8), reason="PyTorch's inductor takes no operators with an effect and several results"
)
def test_inductor_compiles_them_as_well(two: World) -> None:
    """Results go out and gradients come in as they are: there is nothing that a C++ compiler would work on for long."""

    def run() -> int:
        def first(hvd: Any, x: Any, y: Any) -> list[Any]:
            return [hvd.allreduce(x, name="x"), hvd.allgather(y, name="y"), hvd.broadcast(x.detach(), 0, name="b")]

        def second(hvd: Any, x: Any, y: Any) -> list[Any]:
            scattered = hvd.grouped_reducescatter([x.detach()[:5], x.detach()], name="s")
            return [hvd.alltoall(x, [1] * hvd.size(), name="x")[0], hvd.broadcast(y[:1], 1, name="y"), *scattered]

        with dynamic_outputs():
            for call in (first, second):
                checked(hvd, call.__name__, call, "inductor")
        return len(vars(sys.modules["horovod.torch.compiled"])["_results"])  # nothing is kept for good

    assert two.run(run) == [0] * 2


@pytest.mark.slow("compiles with PyTorch")
def test_the_operators_are_what_torch_expects_of_them(two: World) -> None:
    def run() -> list[str]:
        ops, size, index = vars(torch)["ops"].horovod, hvd.size(), hvd.rank()
        x = [rows(hvd.rank(), 4).requires_grad_(), rows(hvd.rank(), 2).requires_grad_()]
        how = ("name", None, None, 0.5, 2.0, 0)
        place = (0, size, index)
        own, all_rows = torch.full((2, size), 4), [torch.ones(4 * size, 3), torch.ones(4 * size, 3)]
        splits = torch.ones(size, dtype=torch.int32)
        ticket, given_rows = ops.allgather_run(x, True, "name", *place)
        exchange, received = ops.alltoall_run(x[0], None, splits, "name", *place)
        calls = {
            "allreduce": (x, True, *how),
            "allgather_run": ([t.detach() for t in x], True, "name", *place),
            "allgather": (x, ticket, given_rows, True, "name", 0),
            "allgather_gradient": (all_rows, own, [4, 4], True, "name", 0),
            "broadcast": (x[:1], 0, None, 0),
            "broadcast_gradient": (all_rows[:1], 0, "name", 0),
            "barrier": (0,),
            "alltoall_run": (x[0].detach(), None, splits, "name", *place),
            "alltoall": (x[:1], exchange, received, "name", 0),
            "alltoall_gradient": (all_rows[:1], own[0].int(), [4 * size], "name", 0),
            "reducescatter": (x, True, *how, size, index),
            "reducescatter_gradient": (all_rows, [4 * size * size] * 2, True, *how),
        }
        known = {*calls, "refuse"}  # which only raises
        assert known == {name for name in dir(ops) if not name.startswith("_") and name != "name"}, dir(ops)
        checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
        for name, arguments in calls.items():
            # The ticket of a <name>_run is another one each time, which the last check would call a difference.
            last = [] if name.endswith("_run") else ["test_aot_dispatch_dynamic"]
            torch.library.opcheck(getattr(ops, name).default, arguments, test_utils=checks + last)
        return sorted(calls)

    assert len(two.run(run)[0]) == 12


def test_a_compiled_barrier_waits_for_all(two: World, tmp_path: Path) -> None:
    def run(directory: Path) -> list[bool]:
        @torch.compile(fullgraph=True, backend="aot_eager")
        def step(x: Any) -> Any:
            hvd.barrier()
            return x + 1

        seen = []
        for round_ in range(3):
            if hvd.rank() == 1:
                time.sleep(0.2)
                (directory / str(round_)).touch()
            step(torch.ones(3))
            seen.append((directory / str(round_)).exists())
        return seen

    assert two.run(run, tmp_path) == [[True] * 3] * 2


def test_what_a_gather_gave_may_be_taken_again_after_it_was_written_into(two: World) -> None:
    """A compiler computes in place where nobody else needs the result, and repeats what has no effect in backward."""

    def run() -> list[float]:
        ops, place = vars(torch)["ops"].horovod, (0, hvd.size(), hvd.rank())
        x = torch.ones(2, 3)
        gathered, exchanged = ops.allgather_run([x], False, "g", *place), ops.alltoall_run(x, None, None, "x", *place)
        sums = []
        for operator, ticket, more in (
            (ops.allgather, gathered, (False, "g", 0)),
            (ops.alltoall, exchanged, ("x", 0)),
        ):
            for _ in range(2):
                (result,) = operator([x], *ticket, *more)
                sums.append(float(result.sum()))
                result.mul_(10)
        return sums

    assert two.run(run) == [[12.0, 12.0, 6.0, 6.0]] * 2


def test_no_pass_of_the_compiler_drops_folds_or_reorders_a_collective(two: World) -> None:
    """The ranks' functions differ around their collectives, which the compiler would otherwise order by what they
    need: they block one after the other, so a different order is a deadlock."""

    def run(backend: str) -> list[str]:
        torch._dynamo.reset()
        x = rows(hvd.rank()).requires_grad_()
        order: list[str] = []
        before = type(collectives).allreduce

        def noted(self: Any, tensor: Any, name: Any, *rest: Any) -> Any:
            order.append(str(name))
            return before(self, tensor, name, *rest)

        @torch.compile(fullgraph=True, backend=backend)
        def step(x: Any, rank: int) -> Any:
            hvd.allreduce(x, name="unused")
            first = hvd.allreduce(x, name="twice")
            second = hvd.allreduce(x, name="twice")  # of the same value, under the same name
            hvd.broadcast_(x.detach() + 1, 0, name="unused, in place")
            late, early = hvd.allreduce(x, name="late"), hvd.allreduce(x * 3, name="early")
            if rank == 0:
                return (first + second) * (late.sin() + early)
            return early.cos() + (first + late.exp() * second)

        type(collectives).allreduce = noted
        try:
            for _ in range(3):
                step(x, hvd.rank()).sum().backward()
        finally:
            type(collectives).allreduce = before
        forward = ["unused", "twice", "twice", "late", "early"]
        assert [name for name in order if "backward" not in name] == forward * 3, order
        return order

    for backend in ("aot_eager", "inductor") if THOROUGH else ("aot_eager",):
        orders = two.run(run, backend)
        assert [name for name in orders[0] if "late" in name] == [name for name in orders[1] if "late" in name]


@pytest.mark.slow("compiles with PyTorch")
def test_in_place_forms_ranks_and_sets_in_a_compiled_function(worlds: WorldPool) -> None:
    def run() -> bool:
        hvd.init()
        torch._dynamo.reset()
        pair, single = hvd.add_process_set([0, 2]), hvd.add_process_set([1])

        @torch.compile(fullgraph=True, backend="aot_eager")
        def step(a: Any, b: Any, c: Any, process_set: Any) -> Any:
            assert hvd.allreduce_(a, name="a", op=hvd.Sum) is a
            given = hvd.grouped_allreduce_([b, c], name="bc", op=hvd.Max)
            hvd.broadcast_(b, 1, name="b")
            part = hvd.allreduce(a + hvd.rank() * hvd.size(), name="part", op=hvd.Sum, process_set=process_set)
            return part, given[1]

        member = pair.included()
        mine = pair if member else single
        for _ in range(2):
            a, b, c = (torch.full((2,), float(hvd.rank() + shift)) for shift in range(3))
            part, given = step(a, b, c, mine)
            assert a.tolist() == [3.0] * 2 and b.tolist() == [3.0] * 2 and c.tolist() == [4.0] * 2, (a, b, c)
            assert given is c
            assert part.tolist() == [12.0 if member else 6.0] * 2, part
        hvd.barrier()
        for process_set in (pair, single):
            hvd.remove_process_set(process_set)
        with pytest.raises(ValueError, match="not registered"):
            step(a, b, c, mine)
        return True

    env = {"HOROVOD_TRANSPORT": "shm", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert worlds(3, env).run(run) == [True] * 3


def test_models_and_steps_that_are_compiled_train_as_eager_ones(two: World) -> None:
    def run(what: str) -> bool:
        torch._dynamo.reset()

        def trained(compiled: str) -> list[Any]:
            torch.manual_seed(0)
            layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).double()
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=layers.named_parameters())
            model = torch.compile(layers, backend="aot_eager") if compiled == "model" else layers

            def step(x: Any) -> Any:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                return loss

            step = torch.compile(step, backend="aot_eager") if compiled == "step" else step
            random = torch.Generator().manual_seed(hvd.rank())
            losses = [step(torch.randn(6, 4, dtype=torch.float64, generator=random)) for _ in range(4)]
            return [loss.detach() for loss in losses] + [parameter.detach() for parameter in layers.parameters()]

        assert all(map(torch.equal, trained(what), trained("nothing")))
        return True

    for what in ("model", "step"):
        assert two.run(run, what) == [True] * 2


def test_an_error_in_a_compiled_function_is_the_operation_s_own(two: World) -> None:
    def run() -> str:
        torch._dynamo.reset()
        step = torch.compile(lambda x: hvd.allreduce(x * 2, name="shapes"), fullgraph=True, backend="aot_eager")
        with pytest.raises(hvd.HorovodInternalError, match="allreduce.shapes.*rank 1") as caught:
            step(torch.ones(2 + hvd.rank()))
        assert step(torch.ones(5)).tolist() == [2.0] * 5
        return str(caught.value).splitlines()[0]  # PyTorch 2.7 and 2.8 print the graph below

    texts = two.run(run)
    assert texts[0] == texts[1]


def test_a_graph_that_may_not_hold_a_gather_is_broken_there_and_meets_ranks_that_compile_nothing(
    two: World,
) -> None:
    def run() -> list[Any]:
        torch._dynamo.reset()

        def step(x: Any) -> Any:
            whole = hvd.allgather(x * 2, name="whole")
            return hvd.alltoall(whole[:4], name="part").sum() + x.sum()

        compiled = torch.compile(step, backend="aot_eager")
        seen = []
        for function in (step, compiled, compiled if hvd.rank() == 0 else step):
            x = rows(hvd.rank(), 3).requires_grad_()
            result = function(x)
            result.backward()
            seen.append((float(result.detach()), x.grad.tolist()))
        return seen

    for seen in two.run(run):
        assert seen[0] == seen[1] == seen[2]


CALLS: dict[str, Callable[..., Any]] = {
    "reduced": lambda x, **wrong: hvd.allreduce(x, name="reduced", **wrong),
    "grouped": lambda x, **wrong: hvd.grouped_allreduce([x, x], name="grouped", **wrong)[0],
    "gathered": lambda x, **wrong: hvd.allgather(x, name="gathered", **wrong),
    "scattered": lambda x, **wrong: hvd.reducescatter(x, name="scattered", **wrong),
}


@pytest.mark.slow("compiles with PyTorch")
@pytest.mark.parametrize(
    ("wrong", "names", "expected"),
    [
        (
            {"process_set": [0, 1]},
            ["reduced", "gathered", "scattered"],
            "the process_set of a compiled function is not registered\nhint: ",
        ),
        (
            {"compression": "fp16"},
            ["reduced", "grouped", "scattered"],
            "compression='fp16': expected a class with compress and decompress\nhint: hvd.Compr",
        ),
    ],
    ids=["process set", "compression"],
)
def test_a_wrong_argument_is_refused_and_the_other_rank_does_not_wait(
    worlds: WorldPool, wrong: dict[str, Any], names: list[str], expected: str
) -> None:
    def run(names: list[str], wrong: dict[str, Any]) -> list[str]:
        hvd.init()
        torch._dynamo.reset()
        wrong = wrong if hvd.rank() == 1 else {}
        texts = []
        for name in names:
            step = torch.compile(functools.partial(CALLS[name], **wrong), fullgraph=True, backend="eager")
            with dynamic_outputs(), pytest.raises(ValueError if wrong else hvd.HorovodInternalError) as caught:
                step(torch.ones(2))
            texts.append(f"{name}: {caught.value}")
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0
        return texts

    for texts in worlds(2).run(run, names, wrong):
        for text in texts:
            assert expected in text, text
            assert "rank 1" in text and text.partition(":")[0] in text.partition(":")[2], text


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this PyTorch cannot be told so")
def test_operators_are_left_out_of_cuda_graphs() -> None:
    import horovod.torch  # noqa: F401

    found = [getattr(torch.ops.horovod, name) for name in dir(torch.ops.horovod)]
    operators = [each.default for each in found if isinstance(each, torch._ops.OpOverloadPacket)]
    assert len(operators) > 5
    assert [each for each in operators if torch._C.Tag.cudagraph_unsafe not in each.tags] == []


class Exported(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return hvd.reducescatter(hvd.allreduce(x, op=hvd.Sum), op=hvd.Sum) + 1


@pytest.mark.slow("ranks of their own")
def test_an_exported_module_runs_after_init_alone(two: World, worlds: WorldPool, tmp_path: Path) -> None:
    def save(file: Path) -> None:
        program = torch.export.export(Exported(), (torch.ones(4),))
        if hvd.rank() == 0:
            torch.export.save(program, file)
        hvd.barrier()

    def load(file: Path) -> list[Any]:
        hvd.init()
        module, seen = torch.export.load(file).module(), []
        for _ in range(2):
            seen.append(module(torch.full((4,), hvd.rank() + 1.0)).tolist())
            hvd.shutdown()
            hvd.init()
        return seen

    two.run(save, tmp_path / "module.pt2")
    fresh = worlds(2, {"HOROVOD_TRANSPORT": "shm", "LOADED": "exported"})
    assert fresh.run(load, tmp_path / "module.pt2") == [[[7.0, 7.0]] * 2] * 2
