# SPDX-License-Identifier: Apache-2.0
"""The request of a plain tensor is found by the extension as without it; a call that is done has no handle."""

from __future__ import annotations

from typing import Any

import pytest

from horovod.core import calls

FINDS = [pytest.param(calls.find, id="extension"), pytest.param(calls._find, id="python")]


class Tensor:
    """As much of a tensor of PyTorch's as is looked at."""

    dtype, shape = "float32", (2, 3)

    def __init__(self, **unlike: bool) -> None:
        self.is_cpu = unlike.get("is_cpu", True)
        self._unlike = unlike

    def is_contiguous(self) -> bool:
        return self._unlike.get("is_contiguous", True)

    def is_neg(self) -> bool:
        return self._unlike.get("is_neg", False)


@pytest.mark.parametrize("find", FINDS)
def test_a_plain_tensor_is_found_by_its_parts_dtype_and_shape(find: Any) -> None:
    requests = {("sum", "a name", "float32", (2, 3)): "the request"}
    assert find(requests, Tensor(), "sum", "a name") == "the request"
    assert find(requests, Tensor(), "sum", "another") is None


@pytest.mark.parametrize("find", FINDS)
@pytest.mark.parametrize("unlike", [{"is_cpu": False}, {"is_contiguous": False}, {"is_neg": True}])
def test_a_tensor_that_must_be_converted_is_not_found(find: Any, unlike: dict[str, bool]) -> None:
    assert find({("float32", (2, 3)): "the request"}, Tensor(**unlike)) is None


@pytest.mark.parametrize("find", FINDS)
@pytest.mark.parametrize(("tensor", "part"), [(3, "sum"), (None, "sum"), (Tensor(), [])])
def test_what_is_no_tensor_or_no_key_is_left_to_the_long_way(find: Any, tensor: Any, part: Any) -> None:
    assert find({("sum", "float32", (2, 3)): "the request"}, tensor, part) is None
