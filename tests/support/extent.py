# SPDX-License-Identifier: Apache-2.0
"""How much is tested: with THOROUGH=1, as in `make check-all`, what only repeats or takes long as well. Whole tests are
marked `thorough`."""

import os

THOROUGH = os.environ.get("THOROUGH") == "1"

# How much later than promised something may come. On a busy machine only a hang takes longer; in `make check-all` tests
# go before all else. SLACK_S=30 with THOROUGH=1 is for a machine that is busy with something else.
SLACK_S = float(os.environ.get("SLACK_S") or ("2" if THOROUGH else "30"))
