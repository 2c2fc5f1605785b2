# SPDX-License-Identifier: Apache-2.0
"""How much is tested: THOROUGH=1, as in `make check-all`, more of what takes long."""

import os

THOROUGH = os.environ.get("THOROUGH") == "1"
