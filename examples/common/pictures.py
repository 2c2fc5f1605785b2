# SPDX-License-Identifier: Apache-2.0
"""Pictures of "cats" and "dogs", generated: of many sizes, in three colours, as uint8. A cat is a bright disc in the
upper half, a dog one in the lower half, on a dim noisy ground: a small network learns to tell them apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def generated(count: int, seed: int) -> Iterator[tuple[np.ndarray, np.int64]]:
    """`count` pairs of a picture [height, width, 3] and its label: 0 for a cat, 1 for a dog."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        height, width = generator.integers(48, 160, size=2)
        label = generator.integers(2)
        picture = generator.integers(0, 96, size=(height, width, 3), dtype=np.uint8)
        y = height * (0.25 + 0.5 * label) + generator.integers(-height // 12, height // 12 + 1)
        x = generator.integers(width // 4, 3 * width // 4)
        rows, columns = np.ogrid[:height, :width]
        disc = (rows - y) ** 2 + (columns - x) ** 2 < (min(height, width) / 6) ** 2
        picture[disc] = generator.integers(128, 256, size=3)
        yield picture, np.int64(label)
