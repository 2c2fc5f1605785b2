# SPDX-License-Identifier: Apache-2.0
"""The error of a command line that cannot be run."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(Exception):
    """The command line cannot be run. `exit_code` as the shell would give."""

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code
