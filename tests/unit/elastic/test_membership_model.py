# SPDX-License-Identifier: Apache-2.0
"""The driver of elastic jobs that ships, in every order in which few workers and few events can come.

tools/mutations/python.py has mistakes in horovod/elastic/decide/membership.py that this must find.
tests/support/elastic/elastic_model.py says what the workers do and what must hold. What takes long runs with
THOROUGH=1.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.elastic.elastic_model import Config, Found, explore

from horovod.elastic.decide.job import NO_HOST_LEFT, STATE_LOST, SUCCESS, TOO_FEW_SLOTS, Rules

TWO = (("a", 1, 1), ("b", 1, 1))
THREE = (*TWO, ("c", 1, 1))
ONE_MORE = (("a", 1, 1), ("b", 0, 1))
TWO_AND_ONE_MORE = (*TWO, ("c", 0, 1))
BY_WORKER = {"blame": "worker", "cooldown": True}

# name: (hosts, cuts, events, rules)
SMALL = {
    "a host goes and another comes (horovod#3494)": (TWO_AND_ONE_MORE, 1, ("add", "remove"), Rules(2, 2)),
    "a host goes and comes back": (TWO, 2, ("add", "remove"), Rules(2, 2)),
    "a crash of two": (TWO, 1, ("crash",), Rules(2, 1)),
    "a crash of three": (THREE, 1, ("crash",), Rules(3, 1)),
    "a crash and a new connection": (TWO, 2, ("blip", "crash"), Rules(2, 1)),
    "two new connections": (TWO, 1, ("blip", "blip"), Rules(2, 1)),
    "a crash and a freeze": (TWO, 2, ("crash", "freeze"), Rules(2, 1)),
    "a crash, and nobody is spared": (TWO, 2, ("crash",), Rules(2, 2)),
    "a joiner and a crash": (ONE_MORE, 2, ("add", "crash"), Rules(1, 1)),
    "a joiner, settled": (ONE_MORE, 1, ("add", "remove"), Rules(1, 1, settle=True)),
    "a slot is filled again": ((("a", 2, 2),), 1, ("crash",), Rules(2, 1, **BY_WORKER)),
    "a host goes whole and comes back": ((("a", 1, 1), ("b", 1, 1)), 1, ("crash",), Rules(2, 1, cooldown=True)),
    "one in reserve": (THREE, 1, ("crash",), Rules(2, 1, max_np=2, spares=1)),
    "no more than two": (THREE, 1, ("remove",), Rules(2, 1, max_np=2)),
}
LARGE = {
    "a joiner, a new connection and a crash": (ONE_MORE, 2, ("add", "blip", "crash"), Rules(1, 1)),
    "two new connections and a crash": (TWO, 2, ("blip", "blip", "crash"), Rules(2, 1)),
    "a joiner, a crash and a removal": (TWO, 1, ("add", "crash", "remove"), Rules(2, 1)),
    "a joiner, a freeze and a removal": (TWO, 1, ("add", "freeze", "remove"), Rules(2, 1)),
    "a joiner and a freeze": (TWO_AND_ONE_MORE, 1, ("add", "freeze"), Rules(2, 1)),
    "a joiner and a crash among three": (TWO_AND_ONE_MORE, 1, ("add", "crash"), Rules(2, 1)),
    "a freeze of three": (THREE, 1, ("freeze",), Rules(3, 2)),
    "a new connection and a crash of three": (THREE, 1, ("blip", "crash"), Rules(3, 1)),
    "two crashes of three": (THREE, 1, ("crash", "crash"), Rules(3, 1)),
    "slots are filled again": ((("a", 2, 2),), 1, ("crash", "crash"), Rules(2, 1, **BY_WORKER)),
    "a host of two fails whole": ((("a", 2, 2), ("b", 1, 1)), 1, ("crash",), Rules(3, 1, cooldown=True)),
    "one in reserve, and a removal": (THREE, 1, ("crash", "remove"), Rules(2, 1, max_np=2, spares=1)),
    "three cuts": (TWO, 3, ("blip", "crash"), Rules(2, 1)),
}


def explored(row: Any) -> Found:
    found = explore(Config(*row))
    print(f"{found.states} states, {found.generations} generations, ends: {found.outcomes}")
    assert not found.error, "\n".join([found.error, *found.trace])
    assert found.outcomes[SUCCESS] > 0
    assert set(found.outcomes) <= {SUCCESS, STATE_LOST, TOO_FEW_SLOTS, NO_HOST_LEFT}
    if not {"crash", "freeze"} & set(row[2]):
        assert STATE_LOST not in found.outcomes, "orderly changes lose nothing"
    return found


@pytest.mark.parametrize("name", SMALL)
def test_every_order_of_events_ends_well(name: str) -> None:
    found = explored(SMALL[name])
    assert found.generations > 1 or "new connections" in name, "nothing has happened"


@pytest.mark.thorough
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", LARGE)
def test_every_order_of_more_events_ends_well(name: str) -> None:
    explored(LARGE[name])
