# SPDX-License-Identifier: Apache-2.0
"""The exceptions that existing scripts catch keep their names, bases and attributes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

import horovod.common.exceptions as old
from horovod.core import exceptions, wording


def test_old_names_are_the_same_classes() -> None:
    assert old.HorovodInternalError is exceptions.HorovodInternalError
    assert issubclass(old.HorovodInternalError, RuntimeError)
    assert issubclass(old.HostsUpdatedInterrupt, RuntimeError) and old.HostsUpdatedInterrupt(True).skip_sync is True
    assert issubclass(old.HorovodVersionMismatchError, ImportError)
    assert old.HorovodVersionMismatchError("torch", "2.1", "2.2").installed_version == "2.2"


@pytest.mark.parametrize("name", ["StartError", "NotInitializedError", "InvalidRequestError", "DuplicateNameError"])
def test_wrong_use_is_a_value_error(name: str) -> None:
    assert issubclass(getattr(exceptions, name), ValueError)


def test_a_lost_rank_travels_between_processes_with_its_number() -> None:
    copy = pickle.loads(pickle.dumps(exceptions.RankLeftError("rank 3 has left", 3)))
    text = "rank 3 has left\nmore: horovodrun --explain rank-left"
    assert (type(copy), str(copy), copy.failed_rank) == (exceptions.RankLeftError, text, 3)


def test_a_start_error_travels_with_its_code() -> None:
    copy = pickle.loads(pickle.dumps(exceptions.StartError("not in time", "start-timeout")))
    assert (copy.code, str(copy)) == ("start-timeout", "not in time\nmore: horovodrun --explain start-timeout")


PUBLIC = [value for name, value in vars(exceptions).items() if inspect.isclass(value) and not name.startswith("_")]
PUBLIC.remove(Any)


@pytest.mark.parametrize("given", [(), ("why",), ("why", 3), ("why", "code"), ("why", "one", "two")], ids=str)
@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_an_error_may_have_any_arguments_and_can_be_told_and_copied(kind: type[Exception], given: Any) -> None:
    """Elastic scripts raise HorovodInternalError without any."""
    error = kind(*given[:1] if kind is exceptions.HostsUpdatedInterrupt else given)
    told = exceptions.text_of(error)
    assert "why" in told if given and kind is not exceptions.HostsUpdatedInterrupt else kind.__name__ not in told
    assert exceptions.named(error).startswith(kind.__name__) and not exceptions.named(error).endswith(": ")
    assert not str(error).startswith("\n")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), vars(other)) == (kind, str(error), vars(error))
    with pytest.raises(kind):
        raise error


def test_the_drawn_tree_is_the_whole_tree() -> None:
    public = {kind.__name__ for kind in PUBLIC}
    assert set(exceptions.__all__) == public | {"NOT_REACHED", "explain_command", "named", "text_of"}
    for name in public:
        assert f"+-- {name} " in (exceptions.__doc__ or ""), name


def test_an_error_of_the_system_is_told_in_words_without_its_number() -> None:
    assert wording.of_system(FileNotFoundError(2, "No such file or directory", "ssh")) == (
        "ssh: No such file or directory"
    )
    assert wording.of_system(OSError(24, "Too many open files")) == "Too many open files"
    assert wording.of_system(OSError("in words\nhint: do it")) == "in words\nhint: do it"
