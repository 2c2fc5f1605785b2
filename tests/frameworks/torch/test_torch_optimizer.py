# SPDX-License-Identifier: Apache-2.0
"""What DistributedOptimizer promises besides the numbers: when it reduces, what it refuses, what it leaves alone."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from typing import Any

import pytest
from support.world import World, WorldPool

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from horovod.torch.tensors import collectives


def wrapped(parameters: Any, **options: Any) -> Any:
    hvd.init()
    torch.set_num_threads(1)
    return hvd.DistributedOptimizer(torch.optim.SGD(list(parameters), lr=0.1), **options)


def test_the_first_reduction_starts_before_the_last_gradient_exists(two: World) -> None:
    def run() -> tuple[int, int, int, list[str]]:
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
        optimizer = wrapped(model.parameters(), named_parameters=model.named_parameters())
        trace: list[tuple[str, str, int]] = []
        optimizer._hvd_reducer.trace = trace
        model(torch.randn(64, 256)).sum().backward()
        times = {event: [ns for e, _, ns in trace if e == event] for event in ("ready", "start", "done")}
        early = [name for event, name, ns in trace if event == "start" and ns < times["ready"][-1]]
        assert not optimizer._hvd_reducer.in_flight
        return times["start"][0], times["ready"][-1], times["done"][0], early

    for first_start, last_ready, first_done, early in two.run(run):
        assert first_start < last_ready <= first_done
        assert len(early) == 15, "all but the last gradient start while backward goes on"
        assert early[0].startswith("7.")


def test_gradients_are_reduced_when_backward_returns(three: World) -> None:
    def run() -> tuple[list[float], float]:
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = wrapped([weight])
        (weight * float(hvd.rank() + 1)).sum().backward()  # an expanded gradient, too
        seen = weight.grad.tolist()
        norm = float(torch.nn.utils.clip_grad_norm_([weight], 1.0))
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        assert torch.equal(weight.detach(), -0.1 * weight.grad)
        return seen, norm

    for seen, norm in three.run(run):
        assert seen == [2.0, 2.0, 2.0]
        assert norm == pytest.approx(12**0.5)


def test_layouts_of_gradients_are_all_legal(three: World) -> None:
    def run() -> None:
        factor = float(hvd.rank() + 1)
        image = torch.nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
        empty = torch.nn.Parameter(torch.zeros(0, 5))
        scalar = torch.nn.Parameter(torch.tensor(1.0))
        frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        optimizer = wrapped([image, empty, scalar, frozen])
        values = torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last)
        ((image * values * factor).sum() + empty.sum() + scalar * factor).backward()
        assert not image.grad.is_contiguous()
        assert torch.equal(image.grad, values * 2)
        assert empty.grad.shape == (0, 5) and float(scalar.grad) == 2.0 and frozen.grad is None
        optimizer.step()

    three.run(run)


def test_gradients_are_freed_when_they_are_cleared(two: World) -> None:
    def run() -> bool:
        weight = torch.nn.Parameter(torch.zeros(1000))
        optimizer = wrapped([weight])
        weight.sum().backward()
        gradient = weakref.ref(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return gradient() is None

    assert two.run(run) == [True, True]


def test_a_closure_and_a_scheduler_work(three: World) -> None:
    def run() -> tuple[float, float]:
        weight = torch.nn.Parameter(torch.zeros(1))
        base = torch.optim.SGD([weight], lr=1.0)
        before = torch.optim.lr_scheduler.StepLR(base, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(base)
        after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (weight * (hvd.rank() + 1)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch's, of schedulers that see no step
            before.step()
            after.step()
        return float(weight), optimizer.param_groups[0]["lr"]

    assert three.run(run) == [(-2.0, 0.25)] * 3


def test_the_wrapped_optimizer_is_one_of_its_class_with_its_state(two: World) -> None:
    def run() -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        adam = torch.optim.Adam([weight], lr=0.1)
        weight.sum().backward()
        adam.step()
        optimizer = hvd.DistributedOptimizer(adam, named_parameters=[("weight", weight)])
        assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
        assert float(optimizer.state[weight]["step"]) == 1.0
        late = torch.nn.Parameter(torch.zeros(2))
        optimizer.add_param_group({"params": [late]})
        optimizer.zero_grad()
        (weight.sum() + late.sum() * (hvd.rank() + 1)).backward()
        assert late.grad.tolist() == [1.5, 1.5]
        optimizer.load_state_dict(optimizer.state_dict())
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(optimizer)

    two.run(run)


def test_layers_may_be_frozen_and_trained_again(two: World) -> None:
    def run() -> tuple[bool, bool, bool]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        model[0].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), named_parameters=model.named_parameters()
        )
        assert not model[0].weight.requires_grad

        def steps() -> Any:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(8, 4) + hvd.rank()).sum().backward()
                optimizer.step()
            return hvd.allgather(model[0].weight.detach().reshape(1, -1).clone())

        before = model[0].weight.detach().clone()
        frozen = steps()
        kept = torch.equal(model[0].weight, before)  # no zeros for it, hence no weight decay
        model[0].requires_grad_(True)
        trained = steps()
        model[0].requires_grad_(False)
        steps()
        return kept, torch.equal(trained[0], trained[1]), not torch.equal(frozen, trained)

    assert two.run(run) == [(True, True, True)] * 2


def test_a_copy_is_refused(worlds: WorldPool) -> None:
    def run() -> bool:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = wrapped([weight])
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                how(optimizer)
        return True

    assert worlds(1).run(run) == [True]


def test_a_gradient_that_cannot_be_sent_fails_on_all_ranks(two: World) -> None:
    def run() -> str:
        table = torch.nn.Embedding(4, 2, sparse=hvd.rank() == 1)
        optimizer = wrapped(table.parameters(), named_parameters=table.named_parameters())
        with pytest.raises(hvd.HorovodInternalError) as caught:
            table(torch.tensor([0])).sum().backward()
        text = str(caught.value)
        assert optimizer is not None
        assert float(hvd.allreduce(torch.ones(1), name="after")) == 1.0
        return text

    for text in two.run(run):
        assert "`allreduce.weight`" in text and "rank 1: expected operation allreduce, got allgather" in text


def test_sparse_gradients_as_dense(two: World) -> None:
    def run() -> list[list[float]]:
        table, other = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Parameter(torch.zeros(1))
        optimizer = wrapped([table.weight, other], sparse_as_dense=True)
        (table(torch.tensor([hvd.rank()])).sum() + other).sum().backward()
        assert table.weight.grad.is_sparse
        seen = table.weight.grad.to_dense().tolist()
        optimizer.step()
        other.sum().backward()  # without zero_grad(): dense zeros are added to the sparse gradient
        assert table.weight.grad.to_dense().tolist() == seen
        return seen

    for seen in two.run(run):
        assert seen == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]


def test_checkpointed_layers_are_reduced_once(two: World) -> None:
    def run(reentrant: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        optimizer = wrapped(model.parameters(), named_parameters=model.named_parameters())
        inputs = torch.full((2, 4), float(hvd.rank() + 1), requires_grad=True)
        hidden = model[0](inputs)
        model[2](checkpoint(model[1], hidden, use_reentrant=reentrant)).sum().backward()
        optimizer.step()
        return [float(parameter.grad.sum()) for parameter in model.parameters()]

    world = two
    plain = world.run(run, False)
    assert plain[0] == plain[1]
    for rank in world.run(run, True):
        assert rank == pytest.approx(plain[0])


def test_a_backward_that_raised_can_be_completed(two: World) -> None:
    class Fails(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise ZeroDivisionError

    def run(fails: Any) -> tuple[list[float], list[float]]:
        first, last = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        optimizer = wrapped([first, last], op=hvd.Sum)
        hidden = first * 2
        hidden = fails.apply(hidden) if hvd.rank() == 0 else hidden
        if hvd.rank() == 0:
            with pytest.raises(ZeroDivisionError):
                (hidden * last).sum().backward()
            with pytest.raises(AssertionError, match="hint: synchronize"):
                optimizer.zero_grad()
            optimizer.synchronize()
        else:
            (hidden * last).sum().backward()
        one = [float(first.grad), float(last.grad)]
        optimizer.zero_grad()
        (first * last).sum().backward()
        return one, [float(first.grad), float(last.grad)]

    assert two.run(run, Fails) == [([2.0, 4.0], [2.0, 2.0])] * 2


def test_sparse_gradients_stay_sparse(two: World) -> None:
    def run() -> tuple[list[Any], bool]:
        table, other = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Parameter(torch.zeros(1))
        torch.nn.init.zeros_(table.weight)
        optimizer = wrapped([table.weight, other], op=hvd.Sum)
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            loss = other.sum()
            if step != 1 or hvd.rank() == 0:  # in the second step rank 1 has no gradient for the table
                loss = loss + table(torch.tensor([hvd.rank(), 3, 3])).sum()
            loss.backward()
            assert table.weight.grad.is_sparse and table.weight.grad.is_coalesced()
            seen.append(table.weight.grad.to_dense()[:, 0].tolist())
            optimizer.step()
        # Nobody has cleared them: what rank 1 has not is what the last step left on all.
        (other + (table(torch.tensor([2])).sum() if hvd.rank() == 0 else 0.0)).sum().backward()
        seen.append(table.weight.grad.to_dense()[:, 0].tolist())
        weights = hvd.allgather(table.weight.detach().reshape(1, -1).clone())
        return seen, torch.equal(weights[0], weights[1])

    for seen, equal in two.run(run):
        assert seen[:3] == [[1.0, 1.0, 0.0, 4.0], [1.0, 0.0, 0.0, 2.0], [1.0, 1.0, 0.0, 4.0]]
        assert equal


def test_no_sync_accumulates_and_the_next_backward_reduces_the_sum(two: World) -> None:
    def run() -> list[Any]:
        a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
        optimizer = wrapped([a, b], op=hvd.Sum)
        mine = hvd.rank() + 1
        seen = []
        for set_to_none in (True, False, False):
            with optimizer.no_sync():
                (a * mine + b * 10 * mine).sum().backward()
                with optimizer.no_sync():
                    (a * mine).sum().backward()
                (a * mine).sum().backward()
                seen.append(float(a.grad) == 3 * mine)
            (a * 100 * mine).sum().backward()  # b, too, though this pass has none for it
            seen.append((float(a.grad), float(b.grad)))
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            assert (a.grad is None) == set_to_none
        return seen

    expected = [True, (309.0, 30.0)] * 3
    assert two.run(run) == [expected] * 2


def test_no_sync_does_not_count_as_a_pass(two: World) -> None:
    def run() -> list[float]:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = wrapped([weight], op=hvd.Sum, backward_passes_per_step=2)
        seen = []
        for paused in (False, True, False):
            with optimizer.no_sync() if paused else contextlib.nullcontext():
                (weight * (hvd.rank() + 1)).sum().backward()
            seen.append(float(weight.grad) / (hvd.rank() + 1))
        return [*seen[:2], float(weight.grad)]

    assert two.run(run) == [[1.0, 2.0, 9.0]] * 2


def test_predivide_keeps_the_sum_in_range(two: World) -> None:
    def run(factor: float) -> float:
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = wrapped([weight], gradient_predivide_factor=factor)
        (weight * 1.5e308).sum().backward()  # twice that is beyond float64
        assert optimizer is not None
        return float(weight.grad)

    world = two
    assert world.run(run, 1.0) == [float("inf")] * 2
    assert world.run(run, 2.0) == [1.5e308] * 2


def test_groups_of_parameters_change_nothing(three: World) -> None:
    def run() -> list[list[float]]:
        seen = []
        for choose in (lambda *_: None, lambda a, b, c: [[c, a], [b]], lambda a, *_: [[a]], lambda *_: 2):
            parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
            optimizer = wrapped(parameters, groups=choose(*parameters))
            sum(((index + 1) * (hvd.rank() + 1) * p).sum() for index, p in enumerate(parameters)).backward()
            optimizer.step()
            seen.append([float(p.grad[1]) for p in parameters])
        return seen

    assert three.run(run) == [[[2.0, 4.0, 6.0]] * 4] * 3


def test_a_closure_with_fewer_passes_than_a_step_is_reduced(two: World) -> None:
    def run(by_model: bool) -> tuple[int, list[float]]:
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.LBFGS([weight], lr=1.0, max_iter=4), backward_passes_per_step=2
        )
        calls = []

        def closure() -> Any:
            if by_model:
                weight.grad = None  # as model.zero_grad() does
            else:
                optimizer.zero_grad()
            loss = ((weight - 3 * hvd.rank()) ** 2).sum()
            loss.backward()
            calls.append(float(weight.grad))
            return hvd.allreduce(loss.detach())

        optimizer.step(closure)
        return len(calls), [float(weight)]

    for by_model in (False, True):
        outcomes = two.run(run, by_model)
        assert outcomes[0] == outcomes[1] and outcomes[0][0] > 1
        assert outcomes[0][1] == pytest.approx([1.5])  # where the average of the losses is least


def test_parameters_added_later_are_reduced(three: World) -> None:
    def run() -> list[float]:
        first, late = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
        # The second one's parameter is `1.0` too: both are in flight at once.
        other = torch.nn.Parameter(torch.zeros(1))
        named = wrapped([other], named_parameters=[("1.0", other)])
        optimizer = wrapped([first])
        optimizer.add_param_group({"params": [late], "lr": 1.0})
        ((first + 2 * late + 3 * other) * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        named.step()
        return [float(first.grad), float(late), float(other.grad)]

    assert three.run(run) == [[2.0, -4.0, 6.0]] * 3


def test_several_models_and_optimizers_in_one_backward(three: World) -> None:
    def run(named: bool) -> list[list[float]]:
        torch.manual_seed(0)
        models = [torch.nn.Linear(2, 2) for _ in range(3)]
        optimizers = [
            hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                named_parameters=model.named_parameters() if named else None,
            )
            for model in models
        ]
        for _ in range(2):
            hidden = torch.full((1, 2), float(hvd.rank() + 1))
            loss = sum((index + 1) * model(hidden).sum() for index, model in enumerate(models))
            loss.backward()
            seen = [[float(model.weight.grad[0, 0]), float(model.bias.grad[0])] for model in models]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        # Names are given back: a program that makes optimizers without end does not run out of them.
        del optimizer, optimizers
        again = wrapped(models[0].parameters(), named_parameters=models[0].named_parameters() if named else None)
        assert set(again._hvd_taken) == ({"weight", "bias"} if named else {"0.0", "0.1"})
        return seen

    for named in (True, False):
        assert three.run(run, named) == [[[2.0, 1.0], [4.0, 2.0], [6.0, 3.0]]] * 3


def test_two_optimizers_share_one_model(two: World) -> None:
    def run() -> tuple[bool, bool]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        names = list(model.named_parameters())
        dense = wrapped(model[0].parameters(), named_parameters=names)
        adam = hvd.DistributedOptimizer(torch.optim.Adam(model[1].parameters()), named_parameters=names)
        for _ in range(3):
            for optimizer in (dense, adam):
                optimizer.zero_grad()
            model(torch.randn(4, 2) + hvd.rank()).sum().backward()
            dense.step()
            adam.step()
        flat = torch.cat([p.detach().reshape(1, -1) for p in model.parameters()], dim=1)
        everyone = hvd.allgather(flat)
        return torch.equal(everyone[0], everyone[1]), set(adam._hvd_taken) == {"1.weight", "1.bias"}

    assert two.run(run) == [(True, True)] * 2


def test_arguments_that_do_not_fit_are_refused(worlds: WorldPool) -> None:
    def run() -> bool:
        hvd.init()
        a, b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
        cases: list[tuple[dict[str, Any], str]] = [
            ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
            ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
            ({"gradient_predivide_factor": 2.0, "op": hvd.Adasum}, "gradient_predivide_factor"),
            ({"named_parameters": [a, b]}, "sequence of tuples"),
            ({"named_parameters": [("x", a), ("x", b)]}, "occur twice: x"),
            ({"named_parameters": [("x", a)]}, r"1 of the optimizer's 2 parameters have no name.*\(3,\)"),
            ({"groups": 0}, "groups=0"),
            ({"groups": [[a, a]]}, "twice"),
            ({"groups": [["a"]]}, "got str"),
            ({"op": 9}, "op=9"),
            ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor=0.0: expected a number above 0"),
            ({"gradient_predivide_factor": float("nan")}, "gradient_predivide_factor=nan"),
        ]
        for value in (None, torch.optim.SGD, torch.nn.Linear(1, 1), "SGD"):
            with pytest.raises(TypeError, match=r"expected an instance of torch\.optim\.Optimizer, got"):
                hvd.DistributedOptimizer(value)
        for options, pattern in cases:
            with pytest.raises(ValueError, match=pattern):
                wrapped([a, b], **options)
        with pytest.warns(DeprecationWarning, match="num_groups"):
            wrapped([a, b], num_groups=2)
        return True

    assert worlds(1).run(run) == [True]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_operation_that_is_dropped_in_flight_keeps_its_memory(worlds: WorldPool, transport: str) -> None:
    def run() -> list[bool]:
        hvd.init()
        hvd.barrier()
        how = (hvd.Sum, None, 1.0, 1.0, hvd.global_process_set)
        memory = weakref.ref(tensor := torch.ones(1000))
        # Each rank's own name: it stays in flight until the other submits it as well.
        operation = collectives.allreduce(tensor, f"dropped.{hvd.rank()}", how, True)
        del operation, tensor  # as an exception between start and wait does
        gc.collect()
        alive = memory() is not None
        hvd.barrier()  # both have looked
        hvd.allreduce(torch.ones(1000), op=hvd.Sum, name=f"dropped.{1 - hvd.rank()}")
        hvd.allreduce(torch.ones(1), name="after")
        hvd.allreduce(torch.ones(1), name="after")
        gc.collect()
        return [alive, memory() is not None]

    for kept, left in worlds(2, {"HOROVOD_TRANSPORT": transport}).run(run):
        assert kept, "in flight"
        assert not left, "done"


def test_an_exception_in_a_hook_of_the_user_reaches_backward_and_the_job_goes_on(two: World) -> None:
    def run() -> list[float]:
        first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        optimizer = wrapped([first, second])
        fails = [True]

        def hook(gradient: Any) -> None:
            if fails[0]:
                raise KeyError("the user's own")

        first.register_hook(hook)
        with pytest.raises(KeyError, match="the user's own"):
            (second * first.sum()).sum().backward()
        fails[0] = False
        optimizer.synchronize()  # as the error of the next call would say
        optimizer.zero_grad()
        ((first + second) * (hvd.rank() + 1)).sum().backward()
        return [*first.grad.tolist(), *second.grad.tolist()]

    assert two.run(run) == [[1.5] * 4] * 2


def test_a_compressor_that_fails_on_one_rank_fails_on_all(two: World) -> None:
    def run() -> str:
        class Failing(hvd.Compression.none):  # type: ignore[misc, name-defined]
            @staticmethod
            def compress(tensor: Any) -> Any:
                if hvd.rank() == 1 and fails[0]:
                    raise ArithmeticError("cannot be compressed")
                return tensor, None

        fails = [True]
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = wrapped([parameter], compression=Failing)
        with pytest.raises(ArithmeticError if hvd.rank() == 1 else hvd.HorovodInternalError) as caught:
            parameter.sum().backward()
        fails[0] = False
        optimizer.zero_grad()
        (parameter * (hvd.rank() + 1)).sum().backward()
        assert parameter.grad.tolist() == [1.5, 1.5]
        return str(caught.value)

    for text in two.run(run):
        assert "cannot be compressed" in text
