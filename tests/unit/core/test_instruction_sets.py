# SPDX-License-Identifier: Apache-2.0
"""The kernels use all that this processor has, whatever compiler has built the library."""

from __future__ import annotations

import json
from pathlib import Path

from horovod.core import native

# By the names of Linux.
NEEDS = {"avx2": {"avx2", "f16c"}, "avx512": {"avx2", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"}}


def test_the_library_finds_the_instruction_sets_that_linux_lists() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}  # none, where it is an ARM
    expected = ["plain", *(name for name, needed in NEEDS.items() if needed <= flags)]
    assert json.loads(native.library().hvd_build_info())["instruction_sets"] == expected
