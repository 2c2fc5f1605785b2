# SPDX-License-Identifier: Apache-2.0
"""What GPUs run is the text that native/device/kernels.py writes."""

import importlib.util
from pathlib import Path


def test_the_header_is_what_its_script_writes() -> None:
    script = Path(__file__).resolve().parents[3] / "native" / "device" / "kernels.py"
    found = importlib.util.spec_from_file_location("kernels", script)
    assert found is not None and found.loader is not None
    kernels = importlib.util.module_from_spec(found)
    found.loader.exec_module(kernels)
    assert kernels.OUT.read_text() == kernels.header(), "run native/device/kernels.py"
