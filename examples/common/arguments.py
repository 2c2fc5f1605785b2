# SPDX-License-Identifier: Apache-2.0
"""The flags that the TensorFlow and Keras examples have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(text: str, checkpoints: str, **numbers: tuple[int, str]) -> argparse.ArgumentParser:
    """`checkpoints`: the default folder. `numbers`: further flags that take an integer, with default and meaning."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--data-dir", help="folder with the four MNIST files; by default the cache")
    made.add_argument("--checkpoint-dir", type=Path, default=Path(checkpoints), help="where rank 0 writes")
    for name, (default, meaning) in numbers.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=meaning)
    return made


def elastic(text: str, **numbers: tuple[int, str]) -> argparse.Namespace:
    """Parse the arguments of an elastic example. `numbers`: as above."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--data-dir", help="folder with the four MNIST files; by default the cache")
    for name, (default, meaning) in numbers.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=meaning)
    return made.parse_args()
