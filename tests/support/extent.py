# SPDX-License-Identifier: Apache-2.0
"""How much is tested: with THOROUGH=1, as in `make check-all`, what only repeats or takes long as well. Whole tests are
marked `thorough`."""

import os
from typing import Any

import pytest

THOROUGH = os.environ.get("THOROUGH") == "1"

# How much later than promised something may come, in seconds. On a busy machine only a hang takes longer than this
# default; `make check-all` sets 2 for some tests, and runs nothing beside them.
SLACK_S = float(os.environ.get("SLACK_S", "100"))


def later(*values: Any) -> Any:
    """A case of a table that only `make check-all` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)
