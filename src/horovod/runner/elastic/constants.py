# SPDX-License-Identifier: Apache-2.0
"""Old import name of a text of Horovod's. Ours is another one: `horovodrun --explain elastic-reset-limit`."""

from __future__ import annotations

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE"]

RESET_LIMIT_EXCEEDED_MESSAGE = "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
