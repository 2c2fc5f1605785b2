# SPDX-License-Identifier: Apache-2.0
"""The exceptions that existing scripts catch keep their names, bases and attributes."""

from __future__ import annotations

import inspect
import pickle

import pytest

import horovod.common.exceptions as old
from horovod.core import exceptions


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
    assert (type(copy), str(copy), copy.failed_rank) == (exceptions.RankLeftError, "rank 3 has left", 3)


def test_the_drawn_tree_is_the_whole_tree() -> None:
    classes = {name for name, value in vars(exceptions).items() if inspect.isclass(value)}
    assert set(exceptions.__all__) == classes
    for name in classes:
        assert f"+-- {name} " in (exceptions.__doc__ or ""), name
