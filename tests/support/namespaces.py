# SPDX-License-Identifier: Apache-2.0
"""Namespaces of tests: unprivileged users, many containers and changed roots have none."""

from __future__ import annotations

import subprocess

import pytest


def needs_unshare(*flags: str) -> pytest.MarkDecorator:
    """Skips what needs `unshare` with these flags where it is refused."""
    try:
        refused = subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode != 0
    except OSError:
        refused = True
    return pytest.mark.skipif(refused, reason=f"not run: unshare {' '.join(flags)} is refused here")
