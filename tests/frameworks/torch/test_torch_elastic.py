# SPDX-License-Identifier: Apache-2.0
"""TorchState and ElasticSampler, in worlds of real ranks that end and begin again."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.elastic.elastic_session import same_ranks
from support.world import World

from horovod.core.exceptions import HorovodInternalError
from horovod.elastic.worker.wrapper import run_fn

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd
from horovod.torch.elastic_sampler import ElasticSampler
from horovod.torch.elastic_state import TorchState


def built(seed: int = 0) -> tuple[Any, Any]:
    """A model with buffers, and an optimizer with a state, that differ from seed to seed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (seed + 1))
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step(model: Any, optimizer: Any, seed: int) -> None:
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()


def values(model: Any, optimizer: Any) -> Any:
    """All numbers of both, as plain values."""
    optimizers = optimizer.state_dict()
    tensors = [value.tolist() for value in model.state_dict().values()]
    slots = [
        [value.tolist() if isinstance(value, torch.Tensor) else value for value in entry.values()]
        for entry in optimizers["state"].values()
    ]
    return tensors, slots, optimizers["param_groups"]


def test_a_sync_gives_all_ranks_the_live_state_of_rank_0_and_saves_it(two: World) -> None:
    def run() -> tuple[Any, ...]:
        model, optimizer = built(hvd.rank())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        state = TorchState(model, optimizer, scheduler=scheduler, epoch=hvd.rank(), best=None, history=[hvd.rank()])
        if hvd.rank() == 0:  # rank 0 alone has an optimizer with a state
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            with optimizer.skip_synchronize():
                optimizer._hvd_active = False
                optimizer.step()
                optimizer._hvd_active = True
            scheduler.step()
            state.epoch = 7
        state.sync()
        synced = values(model, optimizer)
        assert state.model is model and state.optimizer is optimizer and state.scheduler is scheduler
        assert scheduler.optimizer is optimizer
        facts = synced, state.epoch, state.best, list(state.history), scheduler.last_epoch
        step(model, optimizer, 1)
        state.epoch, state.history[0] = 99, 99
        scheduler.step()
        assert values(model, optimizer) != synced
        state.restore()
        assert (values(model, optimizer), state.epoch, state.best, state.history, scheduler.last_epoch) == facts
        assert all(parameter.grad is None for parameter in model.parameters()), "of a step that is undone"
        step(model, optimizer, 1)  # what was restored is not what is saved
        state.restore()
        assert values(model, optimizer) == synced
        return facts

    first, second = two.run(run)
    assert first == second and first[1:] == (7, None, [0], 1)


def test_what_modules_keep_beside_tensors_is_synced_and_restored(two: World) -> None:
    def run() -> tuple[Any, Any]:
        class Counting(torch.nn.Linear):
            count = 0

            def get_extra_state(self) -> Any:
                return {"count": self.count}

            def set_extra_state(self, state: Any) -> None:
                self.count = state["count"]

        hvd.init()
        model = Counting(2, 2)
        model.count = hvd.rank() + 5
        state = TorchState(model=model)
        state.sync()
        synced, model.count = model.count, 100
        state.restore()
        return synced, model.count

    assert two.run(run) == [(5, 5), (5, 5)]


def test_another_object_in_place_of_one_is_saved_at_once() -> None:
    state = TorchState(model=torch.nn.Linear(1, 1), batch=3)
    other = torch.nn.Linear(1, 1)
    weight = other.weight.item()
    state.model = other
    with torch.no_grad():
        other.weight.fill_(9.0)
    state.restore()
    assert state.model is other and other.weight.item() == weight
    assert state.optimizer is None and state.batch == 3


def test_copies_go_into_older_copies_and_are_never_shared() -> None:
    from horovod.torch.elastic_handlers import ModelStateHandler

    model = torch.nn.Linear(300, 300)
    handler = ModelStateHandler(model)
    address = handler._saved["weight"].data_ptr()
    with torch.no_grad():
        model.weight.fill_(2.0)
    handler.save()
    assert handler._saved["weight"].data_ptr() == address != model.weight.data_ptr()
    assert handler._saved._metadata == model.state_dict()._metadata
    assert float(handler._saved["weight"][0, 0]) == 2.0


def test_users_may_register_handlers() -> None:
    from horovod.torch.elastic_handlers import StateHandler, get_handler_registry, set_handler_registry

    class Doubled(StateHandler):
        def __init__(self, value: Any) -> None:
            super().__init__(value)
            self.calls: list[str] = []

        def save(self) -> None:
            self.calls.append("save")

        def restore(self) -> None:
            self.calls.append("restore")

        def sync(self) -> None:
            self.calls.append("sync")

    before = get_handler_registry()
    try:
        set_handler_registry([(dict, Doubled), *before])
        state = TorchState(table={1: 2})
    finally:
        set_handler_registry(before)
    state.commit()
    state.restore()
    state.table = {3: 4}
    state.on_reset()
    handler = state._handlers["table"]
    assert handler.calls == ["save", "restore", "save"] and handler.value == state.table == {3: 4}


def test_a_sampler_goes_on_where_it_was_and_a_change_of_ranks_shares_out_the_rest(two: World) -> None:
    def run() -> Any:
        sampler = ElasticSampler(range(11), shuffle=False)
        state = TorchState(sampler=sampler)
        first = list(torch.utils.data.DataLoader(range(11), batch_size=2, sampler=sampler))
        assert len(sampler) == 6 and sampler.total_size == 12 and sampler.num_replicas == 2
        sampler.record_batch(0, 2)
        state.save()
        sampler.record_batch(1, 2)
        again = list(sampler)
        state.restore()
        rest = list(sampler)
        assert sampler.state_dict() == {"epoch": 0, "processed_num": 4} and sampler.processed_indices == set()
        sampler.num_replicas = 5  # as if the last world had been another one
        state.on_reset()
        assert sampler.num_replicas == 2
        sampler.set_epoch(1)
        return [batch.tolist() for batch in first], again, rest, len(sampler)

    even, odd = two.run(run)
    assert even == ([[0, 2], [4, 6], [8, 10]], [0, 2, 4, 6, 8, 10], [4, 6, 8, 10], 6)
    assert odd == ([[1, 3], [5, 7], [9, 0]], [1, 3, 5, 7, 9, 0], [5, 7, 9, 4], 6)


def test_the_order_of_a_sampler_is_that_of_seed_and_epoch(two: World) -> None:
    def run() -> list[list[int]]:
        sampler = ElasticSampler(range(6), seed=3)
        orders = [list(sampler)]
        sampler.set_epoch(1)
        return [*orders, list(sampler)]

    expected = []
    for epoch in range(2):
        order = list(range(6))
        random.Random(3 + epoch).shuffle(order)
        expected.append(order)
    even, odd = two.run(run)
    assert [
        [item for pair in zip(*both, strict=True) for item in pair] for both in zip(even, odd, strict=True)
    ] == expected


def test_training_survives_losses_and_changes_and_ends_as_if_nothing_had_been(two: World) -> None:
    """Losses in backward and between the cuts, and an interrupt: the weights are those of an undisturbed run."""

    def run(disturbed: bool) -> Any:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        data = torch.randn(40, 4)
        model, optimizer = built(hvd.rank())
        sampler = ElasticSampler(range(40))
        state: Any = TorchState(model, optimizer, sampler=sampler, batch=0, done=[])
        events = {3: "loss", 4: "update", 6: "backward"} if disturbed else {}

        def train(state: Any) -> None:
            loader = torch.utils.data.DataLoader(range(40), batch_size=2, sampler=sampler)
            for index, batch in enumerate(loader):
                event = events.pop(state.batch, "")
                optimizer.zero_grad()
                if event == "loss" and hvd.rank() == 1:
                    raise HorovodInternalError("as if another rank had died")
                loss = model(data[batch]).pow(2).mean()
                if event == "backward" and hvd.rank() == 0:
                    model[0].weight.register_hook(fails_once())
                loss.backward()
                optimizer.step()
                sampler.record_batch(index, len(batch))
                state.batch += 1
                state.done = state.done + batch.tolist()
                if event == "update":
                    assert session.heard is not None
                    session.heard(1, 2)
                state.commit() if state.batch % 2 else state.check_host_updates()

        def fails_once() -> Any:
            failures = [HorovodInternalError("in the middle of backward")]

            def hook(gradient: Any) -> Any:
                if failures:
                    raise failures.pop()
                return gradient

            return hook

        with same_ranks() as session:
            run_fn(train, lambda: None)(state)
            hvd.barrier()
            weights = [parameter.tolist() for parameter in model.parameters()]
            return values(model, optimizer), state.batch, state.done, [entry[0] for entry in session.log], weights

    plain = two.run(run, False)
    disturbed = two.run(run, True)
    assert [outcome[3] for outcome in plain] == [[], []]
    assert [outcome[3] for outcome in disturbed] == [[False, True, False]] * 2
    assert plain[0][0] == disturbed[0][0], "bit for bit"
    assert plain[1][4] == disturbed[1][4], "the statistics of a batch norm are each rank's own until a sync"
    assert plain[0][1:3] == disturbed[0][1:3], "the items are those of rank 0: a sync sends its list"
    assert sorted(plain[0][2] + plain[1][2]) == list(range(40))
