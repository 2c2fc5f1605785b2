# SPDX-License-Identifier: Apache-2.0
"""The words between an elastic job's driver and its workers arrive as they were sent, and nonsense is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.elastic import messages as m
from horovod.elastic.words import WordError, packed, unpacked_message, unpacked_report

MEMBERS = (m.Worker(3, "a", 0), m.Worker(5, "b", 1))
MESSAGES = [
    m.WorldRecord(7, MEMBERS, True, (6, 412), "why"),
    m.Lost(7),
    m.Update(3, 2),
    m.Stop(),
    m.Done(),
    m.AskStack(),
]
SAID = [
    m.Ready(3, 7, (7, 1), True, (4, 5)),
    m.Finished(3, 7, (7, 9)),
    m.Raised(3, (7, 1), "KeyError: 'x'"),
    m.Stack(3, "a\nb"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_message_comes_back_from_json(message: m.Message) -> None:
    assert unpacked_message(json.loads(json.dumps(packed(message)))) == message


@pytest.mark.parametrize("said", SAID, ids=str)
def test_what_a_worker_says_comes_back_from_json(said: Any) -> None:
    data = json.loads(json.dumps(packed(said)))
    assert unpacked_report(data, 3) == said
    with pytest.raises(WordError, match="worker 4 speaks for worker 3"):
        unpacked_report(data, 4)


@pytest.mark.parametrize("members", [{}, "", {"0": 1}])
def test_members_are_a_list(members: Any) -> None:
    with pytest.raises(WordError, match="expected a list"):
        unpacked_message({**packed(MESSAGES[0]), "members": members})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
WORDS = st.sampled_from([packed(word) for word in (*MESSAGES, *SAID)])


@given(WORDS, st.data())
def test_a_broken_word_is_refused_and_never_taken(word: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(word)))
    broken = {**word, name: data.draw(JSON)}
    for unpack in (unpacked_message, lambda one: unpacked_report(one, 3)):
        try:
            got = unpack(broken)
        except WordError:
            continue
        assert json.loads(json.dumps(packed(got))) == json.loads(json.dumps({**broken, "word": packed(got)["word"]}))


@given(JSON)
def test_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(WordError):
        unpacked_message(data)
