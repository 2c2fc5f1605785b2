# SPDX-License-Identifier: Apache-2.0
"""What tells machines apart, as far as ranks are concerned: those of one machine may be able to share memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["machine"]


def machine() -> str:
    """Equal for processes of one boot and one network namespace; it says nothing if the system does not tell.

    Ranks share memory by way of a socket of their network namespace. Whether they can is proved by trying (links.py).
    """
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts)
