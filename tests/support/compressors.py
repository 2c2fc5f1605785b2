# SPDX-License-Identifier: Apache-2.0
"""Compressors of users."""

from __future__ import annotations

from typing import Any


class Broken:
    """Raises before anything is sent."""

    @staticmethod
    def compress(tensor: Any) -> Any:
        raise ArithmeticError("there is no codebook")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor
