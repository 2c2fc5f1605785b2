# SPDX-License-Identifier: Apache-2.0
"""What is compiled with a process set, in later generations, in which the sets have other numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def after_another_init(hvd: Any, compiled: Callable[[Any], Callable[[], float]], errors: Any) -> tuple[Any, str, Any]:
    """`compiled` gives a function that sums the ranks over a set, here [0, 1]. What it gives and raises then, by rank:
    its result, the error while another set has the number, and its result when its ranks are a set again."""

    def result(process_set: Any) -> float | None:
        return function() if process_set.included() else None

    hvd.shutdown()  # numbers begin anew
    hvd.init()
    pair = hvd.add_process_set([0, 1])
    function: Callable[[], float] = compiled(pair) if pair.included() else lambda: 0.0
    number, before = pair.process_set_id, result(pair)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    other = hvd.add_process_set([1, 2])
    assert other.process_set_id == number
    text = ""
    if hvd.rank() < 2:
        with pytest.raises(errors) as caught:
            function()
        text = str(caught.value)
    hvd.barrier()
    again = hvd.add_process_set([0, 1])
    after = result(again)
    hvd.barrier()
    for process_set in (other, again):
        hvd.remove_process_set(process_set)
    return before, text, after


def check(results: list[tuple[Any, str, Any]]) -> None:
    assert [(before, after) for before, _, after in results] == [(1.0, 1.0)] * 2 + [(None, None)], results
    assert all("is not registered" in text for _, text, _ in results[:2]), results
