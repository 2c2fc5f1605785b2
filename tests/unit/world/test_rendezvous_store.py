# SPDX-License-Identifier: Apache-2.0
"""What the rendezvous answers, and when: values, waits, generations, and ranks that are gone."""

from __future__ import annotations

from typing import Any

from horovod.world.rendezvous_store import Store, Wait


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


def test_a_wait_for_any_key_is_answered_when_the_first_one_comes() -> None:
    store = Store()
    asker = Asker(store)
    assert asker.ask(op="get", keys=["a", "b"], timeout_ms=1000, any=True) is None
    store.put("b", 2)
    assert asker.answers.pop() == {"values": {"b": 2}}
    store.put("a", 1)
    assert not asker.answers
    store.put("c", 3)
    assert asker.ask(op="get", keys=["c", "d", "c"], timeout_ms=1000, any=True) == {"values": {"c": 3}}


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


def test_a_rank_that_is_gone_ends_every_wait_until_it_comes_again() -> None:
    store = Store()
    waiting, later = Asker(store), Asker(store)
    waiting.get("a")
    store.gone(3, "rank 3 was killed")
    store.gone(1, "rank 1 exited")
    gone = {"values": {}, "gone": {"rank": 3, "text": "rank 3 was killed"}}
    assert waiting.answers == [gone] and later.get("a") == gone
    store.put("a", 1)
    assert later.get("a") == {"values": {"a": 1}}  # it has all that it needs
    assert entered(store, 3, "c") == 0
    assert later.get("b") == {"values": {}, "gone": {"rank": 1, "text": "rank 1 exited"}}
    assert entered(store, 1, "b") == 0
    assert later.get("b") is None


def entry(store: Store, rank: int, process: str) -> dict[str, Any]:
    answer = Asker(store).ask(op="enter", rank=rank, process=process, who=f"who is {process}")
    assert answer is not None
    return dict(answer.get("entry", answer))


def entered(store: Store, rank: int, process: str) -> int:
    return int(entry(store, rank, process)["generation"])


def test_each_start_of_all_ranks_is_a_generation() -> None:
    store = Store()
    for generation in range(3):
        assert [entered(store, rank, f"p{rank}") for rank in (1, 0, 2)] == [generation] * 3


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
    assert entry(store, 0, "a") == {"generation": 0}
    assert entry(store, 0, "another") == {"generation": 0, "other": "who is a"}


def test_what_a_start_has_left_is_forgotten_two_generations_later() -> None:
    store = Store()
    for generation in range(5):
        assert entered(store, 0, "a") == entered(store, 1, "b") == generation
        store.put(f"world/{generation}/digest", generation)
        store.put(f"failure/{generation}", generation)
    assert [store.get(f"world/{generation}/digest") for generation in range(5)] == [None, None, None, 3, 4]
    assert [store.get(f"failure/{generation}") for generation in range(5)] == list(range(5))


def test_who_is_missing_can_be_asked() -> None:
    store = Store()
    assert entered(store, 2, "c") == entered(store, 0, "a") == 0
    assert Asker(store).ask(op="entered", generation=0) == {"ranks": [0, 2]}
    assert Asker(store).ask(op="entered", generation=1) == {"ranks": []}


def test_ranks_are_told_the_place_that_the_launcher_has_assigned() -> None:
    store = Store()
    store.assign([{"local_rank": 0}, {"local_rank": 1}])
    assert entry(store, 1, "b") == {"generation": 0, "place": {"local_rank": 1}}
    assert entry(store, 2, "c") == {"generation": 0}  # of which the launcher knows nothing
    store.assign([{"local_rank": 0}, {"local_rank": 0}])
    assert entry(store, 1, "b") == {"generation": 1, "place": {"local_rank": 0}}


def test_a_worker_gets_each_word_once_and_in_order() -> None:
    store = Store()
    worker = Asker(store)
    store.tell(3, "first")
    assert worker.ask(op="hear", worker=3, after=0, timeout_ms=1000) == {"words": ["first"]}
    assert worker.ask(op="hear", worker=3, after=1, timeout_ms=1000) is None
    store.tell(4, "another's")
    assert len(worker.answers) == 1
    store.tell(3, "second")
    assert worker.answers[-1] == {"words": ["second"]}
    # Its connection broke before the answer came: it asks with the same number again.
    again = Asker(store)
    assert again.ask(op="hear", worker=3, after=1, timeout_ms=0) == {"words": ["second"]}
    assert again.ask(op="hear", worker=3, after=2, timeout_ms=0) == {"words": []}


def test_a_worker_that_waits_for_a_word_is_not_disturbed_by_a_lost_rank() -> None:
    store = Store()
    worker, other = Asker(store), Asker(store)
    worker.ask(op="hear", worker=0, after=0, timeout_ms=2000)
    other.get("a")
    store.gone(1, "rank 1 was killed")
    assert worker.answers == [] and other.answers[0]["gone"]["rank"] == 1
    assert store.expire(0.0) == 2.0
    store.expire(2.0)
    assert worker.answers == [{"words": []}]
    store.tell(0, "late")
    assert len(worker.answers) == 1


def test_what_a_worker_says_is_heard_once_and_only_in_an_elastic_job() -> None:
    store = Store()
    worker = Asker(store)
    assert "error" in (worker.ask(op="say", worker=2, number=1, word="hello") or {})
    heard: list[Any] = []
    store.listen(lambda number, word: heard.append((number, word)))
    for number in (1, 1, 2):
        assert worker.ask(op="say", worker=2, number=number, word=f"word {number}") == {}
    assert heard == [(2, "word 1"), (2, "word 2")]
    store.forget_worker(2)
    worker.ask(op="say", worker=2, number=1, word="of another life")
    assert heard[-1] == (2, "of another life")


def test_a_led_generation_takes_only_those_who_mean_it() -> None:
    store = Store()
    asker = Asker(store)
    store.lead(4, [{"local_rank": 0}, {"local_rank": 1}])
    entered = asker.ask(op="enter", rank=1, process="p", who=None, generation=4)
    assert entered == {"entry": {"generation": 4, "place": {"local_rank": 1}}}
    assert "generation 3 is over" in (asker.ask(op="enter", rank=0, process="q", generation=3) or {})["error"]
    store.gone(1, "rank 1 was killed")
    assert "gone" in (asker.get("a") or {})
    store.lead(5, [])
    assert asker.get("a") is None
    newcomer = asker.ask(op="enter", rank=1, process="new", who=None, generation=5)
    assert newcomer == {"entry": {"generation": 5}}


def test_old_generations_of_an_elastic_job_are_forgotten() -> None:
    store = Store()
    for generation in range(1, 40):
        store.lead(generation, [])
        store.put(f"world/{generation}/digest", "x")
        store.put(f"failure/{generation}", "y")
        watch = Asker(store)
        watch.get(f"world/{generation}/never")
        assert watch.wait is not None
        watch.wait.cancel()  # the start is over
    assert [store.get(f"world/{one}/digest") for one in (37, 38, 39)] == [None, "x", "x"]
    assert [store.get(f"failure/{one}") for one in (37, 38, 39)] == [None, "y", "y"]
    assert len(store._waits_for) == 1
