# SPDX-License-Identifier: Apache-2.0
"""The parser of our command lines."""

from __future__ import annotations

import argparse
from typing import NoReturn

from horovod.core.wording import on_one_line

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """As argparse's, with errors of one line: they quote words of the command line as they are."""

    def error(self, message: str) -> NoReturn:
        super().error(on_one_line(message))
