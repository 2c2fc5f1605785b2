# SPDX-License-Identifier: Apache-2.0
"""What the rendezvous answers, and when: values, waits, generations, and ranks that are gone."""

from __future__ import annotations

from typing import Any

import pytest

from horovod.launcher.rendezvous_store import Store, Wait


class Asker:
    """Asks the store, and keeps what it was answered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.answers: list[dict[str, Any]] = []
        self.wait: Wait | None = None

    def ask(self, now_s: float = 0.0, **request: Any) -> dict[str, Any] | None:
        self.wait = self.store.ask(request, now_s, self.answers.append)
        return self.answers[-1] if self.wait is None else None

    def get(self, *keys: str, timeout_ms: int = 1000) -> dict[str, Any] | None:
        return self.ask(op="get", keys=list(keys), timeout_ms=timeout_ms)


def test_a_wait_is_answered_when_its_last_key_comes() -> None:
    store = Store()
    first, second = Asker(store), Asker(store)
    assert first.get("a", "b") is None and second.get("b") is None
    store.put("a", 1)
    assert (first.answers, second.answers) == ([], [])
    store.put("b", 2)
    assert first.answers == [{"values": {"a": 1, "b": 2}}] and second.answers == [{"values": {"b": 2}}]
    assert store.expire(10.0) is None and len(first.answers) == 1


def test_a_wait_whose_time_is_up_gets_what_is_there() -> None:
    store = Store()
    asker = Asker(store)
    store.put("a", 1)
    assert asker.get("a", "b") is None
    assert store.expire(0.5) == 1.0
    assert store.expire(1.0) is None
    assert asker.answers == [{"values": {"a": 1}}]
    store.put("b", 2)
    assert len(asker.answers) == 1


def test_a_cancelled_wait_is_not_answered() -> None:
    store = Store()
    asker = Asker(store)
    asker.get("a")
    assert asker.wait is not None
    asker.wait.cancel()
    store.put("a", 1)
    assert store.expire(5.0) is None and asker.answers == []


def test_a_rank_that_is_gone_ends_every_wait_until_it_is_replaced() -> None:
    store = Store()
    waiting, later = Asker(store), Asker(store)
    waiting.get("a")
    store.gone(3, "rank 3 was killed")
    store.gone(1, "rank 1 exited")
    gone = {"values": {}, "gone": {"rank": 3, "text": "rank 3 was killed"}}
    assert waiting.answers == [gone] and later.get("a") == gone
    store.put("a", 1)
    assert later.get("a") == {"values": {"a": 1}}  # it has all that it needs
    store.replaced(3)
    assert later.get("b") == {"values": {}, "gone": {"rank": 1, "text": "rank 1 exited"}}
    store.replaced(1)
    assert later.get("b") is None


def entered(store: Store, rank: int, process: str) -> int:
    answer = Asker(store).ask(op="enter", rank=rank, process=process)
    assert answer is not None
    return int(answer["generation"])


def test_each_start_of_all_ranks_is_a_generation() -> None:
    store = Store()
    for generation in range(3):
        assert [entered(store, rank, f"p{rank}") for rank in (1, 0, 2)] == [generation] * 3


@pytest.mark.parametrize("order", [[(0, "a"), (1, "new")], [(1, "new"), (0, "a")]], ids=["last", "first"])
def test_a_newcomer_joins_the_generation_of_the_others_though_it_is_its_first(order: list[tuple[int, str]]) -> None:
    store = Store()
    for _ in range(5):
        assert entered(store, 0, "a") == entered(store, 1, "b")
    store.gone(1, "it was killed")
    store.replaced(1)
    assert [entered(store, rank, process) for rank, process in order] == [5, 5]


def test_a_rank_that_is_replaced_before_it_came_ends_no_generation() -> None:
    store = Store()
    assert entered(store, 0, "a") == 0
    store.gone(1, "it was killed")
    store.replaced(1)
    assert entered(store, 1, "new") == 0


def test_a_rank_that_comes_late_to_a_failed_start_meets_the_others_in_the_next_one() -> None:
    store = Store()
    assert entered(store, 0, "a") == 0  # waits for rank 1 in vain, and tries again
    assert entered(store, 0, "a") == 1
    assert entered(store, 1, "b") == 1


def test_a_rank_that_comes_late_does_not_join_a_start_that_others_have_given_up() -> None:
    store = Store()
    assert entered(store, 0, "a") == 0
    abandon = {"op": "abandon", "generation": 0, "rank": 0}
    assert Asker(store).ask(**abandon, process="another") == {}  # it has no place in the generation
    assert entered(store, 2, "c") == 0
    assert Asker(store).ask(**abandon, process="a") == {}
    assert entered(store, 1, "b") == 1
    assert Asker(store).ask(**abandon, process="a") == {}  # said late: it is over already
    assert entered(store, 0, "a") == 1


def test_two_processes_of_one_rank_are_in_one_generation_and_can_find_out() -> None:
    store = Store()
    assert entered(store, 0, "a") == entered(store, 0, "another") == 0
