# SPDX-License-Identifier: Apache-2.0
"""States, and the wrapper that takes training from one world to the next, over a session that a test writes down."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from horovod.core import context as contexts
from horovod.core.exceptions import (
    DeadlockError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    PeerRefusedError,
    RankLostError,
)
from horovod.elastic.messages import ADDED, NO_STATE, REMOVED, StateId, Worker, WorldRecord
from horovod.elastic.state.state import ObjectState, State
from horovod.elastic.worker import session as sessions
from horovod.elastic.worker.decorator import run
from horovod.elastic.worker.notices import notification_manager
from horovod.elastic.worker.wrapper import run_fn
from horovod.launcher.function import run_task


class Script:
    """A session whose worlds are given beforehand: (sync, size) of each. `log` has all that happens, in order.

    `newcomers`: how many members each world has that no other one has.
    """

    def __init__(
        self, *worlds: tuple[bool, int], joiner: bool = False, unfinished: int = 0, newcomers: int = 0
    ) -> None:
        self._newcomers = newcomers
        self.log: list[Any] = []
        self._worlds = list(worlds)
        self._first = 2 if joiner else 1  # a world without it has been before
        self._unfinished = unfinished
        self.is_done = False
        self.cuts = 0
        self.held: StateId = NO_STATE
        self.place = (0, worlds[0][1])
        self.world: WorldRecord | None = None
        self.heard: Callable[[int, int], None] | None = None
        self.while_joining: Callable[[], None] | None = None
        if not joiner:
            self._enter()

    def _enter(self) -> WorldRecord:
        if not self._worlds:
            raise sessions.Stopped(0)
        sync, size = self._worlds.pop(0)
        generation = self.world.generation + 1 if self.world else self._first
        base = self.held if self.held != NO_STATE else (generation, 0)
        new = [Worker(generation + 10 * index, "a", 1 + index) for index in range(self._newcomers)]
        members = [Worker(0, "a", 0), *new]
        self.world = WorldRecord(generation, tuple(members), sync, base, "a test")
        self.cuts, self.place = 0, (0, size)
        return self.world

    def join(self, orderly: bool, why: str = "") -> WorldRecord:
        if self.while_joining is not None:
            self.while_joining()
        self.log.append(("orderly" if orderly else "loss", self.held))
        return self._enter()

    def finish(self) -> bool:
        self._unfinished -= 1
        self.log.append("finish")
        return self._unfinished < 0

    def raised(self, error: Exception) -> None:
        self.log.append(("raised", type(error)))

    @contextlib.contextmanager
    def telling(self, heard: Callable[[int, int], None]) -> Iterator[None]:
        self.heard = heard
        try:
            yield
        finally:
            self.heard = None


@pytest.fixture
def begin() -> Iterator[Callable[..., Script]]:
    def start(*worlds: tuple[bool, int], **options: Any) -> Script:
        script = Script(*worlds, **options)
        sessions.begin(script)
        return script

    yield start
    sessions.end()


def state_of(**values: Any) -> Any:
    return ObjectState(lambda value: value, lambda: 0, **values)


def trained(state: State, function: Callable[..., Any], *arguments: Any) -> Any:
    return run_fn(function, lambda: None)(state, *arguments)


def raising(*errors: Exception) -> Callable[[Any], None]:
    """Raises one of them in each world."""
    left = iter(errors)

    def train(state: Any) -> None:
        for error in left:
            raise error

    return train


def test_in_a_static_job_the_state_is_synced_once_and_errors_are_the_scripts() -> None:
    synced: list[int] = []

    class Counted(ObjectState):
        def sync(self) -> None:
            synced.append(1)
            super().sync()

    state = Counted(lambda value: value, lambda: 0, epoch=0)

    @contextlib.contextmanager
    def unused() -> Iterator[None]:
        yield

    def train(state: Any, first: int, *, second: int) -> int:
        """What it does."""
        return first + second

    wrapped = run_fn(train, unused)
    assert wrapped(state, 1, second=2) == 3 and synced == [1]
    assert (wrapped.__name__, wrapped.__doc__) == ("train", "What it does.")
    with pytest.raises(HorovodInternalError, match="a rank is gone"):
        trained(state, raising(RankLostError("a rank is gone")))


def test_a_loss_takes_values_back_to_the_commit_and_syncs(begin: Any) -> None:
    script = begin((True, 2), (True, 1))
    state, seen = state_of(batch=0, losses=[]), []

    def train(state: Any) -> str:
        seen.append((state.batch, list(state.losses)))
        for _ in range(3):
            state.batch += 1
            state.losses.append(state.batch)
            if state.batch == 3 and len(seen) == 1:
                raise RankLostError("rank 1 died")
            state.commit()
        return "done"

    assert trained(state, train) == "done"
    assert seen == [(0, []), (2, [1, 2])], "a list that grows is a copy, too"
    assert script.log == [("loss", (1, 2)), "finish"]


def test_an_interrupt_keeps_live_values_and_its_cut_is_saved(begin: Any) -> None:
    script = begin((True, 2), (False, 1), (True, 1))
    state, seen = state_of(batch=0), []

    def train(state: Any) -> None:
        seen.append(state.batch)
        if len(seen) == 1:
            state.batch = 5
            script.heard(1, REMOVED)
            with pytest.raises(HostsUpdatedInterrupt) as caught:
                state.check_host_updates()
            assert caught.value.skip_sync
            raise caught.value
        if len(seen) == 2:
            state.batch = 9
            raise RankLostError("before the first commit")

    trained(state, train)
    assert seen == [0, 5, 5], "what was live at the interrupt is what a later loss comes back to"
    assert script.log == [("orderly", (1, 1)), ("loss", (1, 1)), "finish"]


def test_updates_are_added_up_and_come_again_until_the_world_is_left(begin: Any) -> None:
    script = begin((True, 2), (True, 3))
    state, calls = state_of(), []

    def train(state: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            state.commit()
            script.heard(1, REMOVED)
            threading.Thread(target=script.heard, args=(2, ADDED)).start()
            while state._host_messages.qsize() < 2:
                pass
            with pytest.raises(HostsUpdatedInterrupt) as caught:
                state.commit()
            assert not caught.value.skip_sync, "not only removed"
            assert str(caught.value).startswith("the hosts have changed")
            state.check_host_updates()  # a script that goes on all the same
            raise AssertionError("it came no more")
        state.commit()

    trained(state, train)
    assert len(calls) == 2


def test_callbacks_run_after_every_change_before_the_sync(begin: Any) -> None:
    begin((True, 2), (True, 1), (False, 3))
    events: list[str] = []

    class Watched(ObjectState):
        def reset(self) -> None:
            events.append("reset")

        def sync(self) -> None:
            events.append("sync")
            super().sync()

    state = Watched(lambda value: value, lambda: 0, x=1)
    state.register_reset_callbacks([lambda: events.append("first"), lambda: events.append("second")])
    train = raising(RankLostError("1"), HostsUpdatedInterrupt())
    trained(state, lambda state: events.append("train") or train(state))
    again = ["reset", "first", "second"]
    assert events == ["sync", "train", *again, "sync", "train", *again, "train"]


def test_a_loss_while_syncing_or_in_a_callback_is_a_loss_like_any_other(begin: Any) -> None:
    script = begin((True, 3), (True, 2), (True, 1))
    failing = ["sync", "callback"]

    class Failing(ObjectState):
        def sync(self) -> None:
            if failing[:1] == ["sync"]:
                failing.pop(0)
                self.x = 7
                raise RankLostError("while syncing")
            super().sync()

    def callback() -> None:
        if failing[:1] == ["callback"]:
            failing.pop(0)
            raise RankLostError("in a callback")

    state: Any = Failing(lambda value: value, lambda: 0, x=1)
    state.register_reset_callbacks([callback])
    assert trained(state, lambda state: state.x) == 1
    assert script.log == [("loss", NO_STATE), ("loss", NO_STATE), "finish"]


@pytest.mark.parametrize("name", ["save", "commit", "register_reset_callbacks", "_rank"])
def test_a_value_that_would_hide_a_method_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"ObjectState: no value can be called .{name}., which"):
        state_of(**{name: 3})


def test_a_joiner_runs_callbacks_as_the_others_do(begin: Any) -> None:
    script = begin((True, 3), joiner=True)
    state, calls = state_of(x=1), []
    state.register_reset_callbacks([lambda: calls.append(1)])
    trained(state, lambda state: None)
    assert calls == [1] and script.log == [("loss", NO_STATE), "finish"] and script.held == (2, 0)


def test_who_has_finished_does_the_rest_if_another_is_lost(begin: Any) -> None:
    script = begin((True, 2), (True, 1), unfinished=1)
    state, seen = state_of(batch=0), []

    def train(state: Any) -> int:
        seen.append(state.batch)
        while state.batch < 2:
            state.batch += 1
            state.commit()
        state.batch = 99  # after the last commit
        return len(seen)

    assert trained(state, train) == 2
    assert seen == [0, 2] and script.log == ["finish", ("loss", (1, 2)), "finish"]


def test_an_error_of_the_script_is_told_and_leaves(begin: Any) -> None:
    script = begin((True, 2))
    with pytest.raises(ZeroDivisionError):
        trained(state_of(), lambda state: 1 // 0)
    assert script.log == [("raised", ZeroDivisionError)] and script.heard is None


@pytest.mark.parametrize("kind", [MismatchError, DeadlockError])
def test_a_disagreement_of_the_ranks_is_the_scripts_but_a_refusal_is_not(begin: Any, kind: type) -> None:
    script = begin((True, 2), (True, 2))
    with pytest.raises(kind, match="calls differ"):
        trained(state_of(), raising(PeerRefusedError("the peer's call was wrong"), kind("calls differ")))
    assert script.log == [("loss", (1, 0)), ("raised", kind)]


@pytest.mark.parametrize(("newcomers", "named"), [(1, "worker 2"), (2, "one of the workers 2, 12")])
def test_a_new_worker_with_another_state_is_a_loss_for_the_others_alone(
    begin: Any, newcomers: int, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = begin((True, 2), (True, 2), (True, 1), newcomers=newcomers)
    differing = [False, True, False]

    class Differing(ObjectState):
        def sync(self) -> None:
            if differing.pop(0):
                raise MismatchError("shapes differ")
            super().sync()

    state, worlds = Differing(lambda value: value, lambda: 0, x=1), []

    def train(state: Any) -> None:
        worlds.append(script.world.generation)
        if len(worlds) == 1:
            raise HostsUpdatedInterrupt

    trained(state, train)
    assert worlds == [1, 3] and script.log == [("orderly", (1, 0)), ("loss", (1, 0)), "finish"]
    assert [text.partition(" cannot join, ")[0] for text in caplog.messages] == [f"horovod: warning: {named}"]
    begin((True, 2), newcomers=newcomers)
    differing.append(True)
    with pytest.raises(MismatchError):  # it has nothing that others could do without it
        trained(state, train)


def test_nothing_is_heard_of_a_world_that_is_being_left(begin: Any) -> None:
    script = begin((True, 2), (True, 3))
    heard = []
    script.while_joining = lambda: heard.append(script.heard)
    train = raising(HostsUpdatedInterrupt())
    trained(state_of(), lambda state: heard.append(script.heard) or train(state))
    assert callable(heard[0]) and heard[1] is None and callable(heard[2])


def test_when_the_training_is_over_the_next_one_is_as_in_a_static_job(begin: Any) -> None:
    script = begin((True, 2))
    trained(state_of(), lambda state: None)
    script.is_done = True
    with pytest.warns(UserWarning, match="what runs now is not elastic"), pytest.raises(RankLostError):
        trained(state_of(), raising(RankLostError("a rank is gone")))
    assert script.log == ["finish"]


def test_listeners_of_horovods_manager_hear_of_changes(begin: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One that fails or waits harms neither the others nor whoever tells them, the thread that hears the driver."""
    waits, end, over = threading.Event(), threading.Event(), threading.Event()

    class Failing:
        def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
            raise ValueError("a bug of its own")

    class Waiting:
        def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
            waits.set()
            end.wait(10.0)
            over.set()

    script, listener = begin((True, 2)), state_of()
    listeners = [Failing(), listener, Waiting()]
    for one in listeners:
        notification_manager.register_listener(one)
    try:
        trained(state_of(), lambda state: script.heard(4, ADDED))
        assert waits.wait(60.0) and not over.is_set()
    finally:
        end.set()
        for one in listeners:
            notification_manager.remove_listener(one)
    assert listener._host_messages.get_nowait() == (4, ADDED)
    assert "Failing.on_hosts_updated failed" in caplog.text and "a bug of its own" in caplog.text


def test_an_interrupt_is_none_less_if_the_world_has_ended_meanwhile(begin: Any, monkeypatch: Any) -> None:
    class Ended:
        def end_seen(self) -> Exception:
            return RankLostError("another rank has left")

        def settle(self) -> None:
            pass

    script = begin((True, 2), (False, 1))
    monkeypatch.setattr(contexts, "_current", Ended())
    run(raising(HostsUpdatedInterrupt()))(state_of())
    assert script.log == [("orderly", (1, 0)), "finish"]


def test_who_is_told_to_stop_exits_well(begin: Any) -> None:
    script = begin((True, 2))
    with pytest.raises(SystemExit) as caught:
        trained(state_of(), raising(HostsUpdatedInterrupt()))
    assert caught.value.code == 0 and script.log == [("orderly", (1, 0))]


def stopped() -> None:
    raise sessions.Stopped(0)


def test_a_worker_of_horovod_run_that_is_told_to_stop_gives_no_answer() -> None:
    class Caller:
        def task(self) -> bytes:
            return pickle.dumps({"path": [], "call": pickle.dumps((stopped, (), {}))})

        def answer(self, rank: int, data: bytes) -> None: ...

    with pytest.raises(SystemExit) as caught:
        run_task._called(1, Caller())
    assert caught.value.code == 0


def test_a_state_that_commits_in_its_own_way_works(begin: Any, monkeypatch: Any) -> None:
    script = begin((True, 2), (True, 1))

    class Own(State):
        def __init__(self) -> None:
            super().__init__(lambda value: value, lambda: 0)
            self.live, self.kept = 0, 0

        def save(self) -> None:
            self.kept = self.live

        def restore(self) -> None:
            self.live = self.kept

        def sync(self) -> None:
            self.live = self._bcast_object(self.live)

        def commit(self) -> None:
            self.save()
            self.check_host_updates()

    state, seen = Own(), []

    def train(state: Any) -> None:
        seen.append(state.live)
        state.live += 1
        if len(seen) == 1:
            state.commit()
            state.live = 50
            raise RankLostError("1")

    trained(state, train)
    assert seen == [0, 1] and script.log[0] == ("loss", (1, 1))

    begin((True, 2), (True, 1))
    joiner = Own()
    monkeypatch.setattr(joiner, "_bcast_object", lambda value: max(value, 7))
    trained(joiner, raising(RankLostError("before the first commit")))
    assert joiner.kept == 7, "a sync() of one's own saves nothing"


def test_what_is_set_before_the_first_sync_is_what_all_ranks_get() -> None:
    sent: list[Any] = []
    state: Any = ObjectState(lambda value: sent.append(dict(value)) or value, lambda: 0, epoch=0, best=None)
    state.epoch = 4  # from a checkpoint
    state.sync()
    state.epoch = 9
    state.restore()
    assert sent == [{"epoch": 4, "best": None}] and state.epoch == 4
    empty = ObjectState(lambda value: sent.append(value), lambda: 0)
    empty.sync()
    assert len(sent) == 1, "a state without values sends nothing"


def test_values_that_share_an_object_go_on_sharing_it() -> None:
    shared = [1]
    state = state_of(first=shared, second=shared)
    state.restore()
    assert state.first is state.second is not shared
    shared.append(2)
    assert state.first == [1]


def test_a_value_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(ValueError, match="ObjectState: `lock` cannot be copied"):
        state_of(epoch=1, lock=threading.Lock())


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_a_state_of_ones_own_has_these_methods(method: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(State(lambda value: value, lambda: 0), method)()
