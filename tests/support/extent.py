# SPDX-License-Identifier: Apache-2.0
"""How much is tested: with THOROUGH=1, as in `make check-all`, what only repeats or takes long as well. Whole tests are
marked `thorough`."""

import os

THOROUGH = os.environ.get("THOROUGH") == "1"
