# SPDX-License-Identifier: Apache-2.0
"""The frameworks that the contract runs against."""

from __future__ import annotations

import pytest
from support import frameworks


@pytest.fixture(params=frameworks.NAMES)
def framework(request: pytest.FixtureRequest) -> str:
    if why := frameworks.missing(request.param):
        pytest.skip(why)
    return str(request.param)
