# SPDX-License-Identifier: Apache-2.0
"""The options of optimizers and tapes, which all frameworks share."""

from __future__ import annotations

import pytest

from horovod.gradients.options import ReductionOptions


def test_an_option_of_a_wrong_type_is_named() -> None:
    for options, pattern in [
        (
            {"process_set": [0, 1]},
            r"expected a ProcessSet, got \[0, 1\]\nhint: hvd.add_process_set\(\[0, 1\]\)",
        ),
        ({"process_set": None}, "process_set: expected a ProcessSet, got None"),
        ({"compression": "bf16"}, "compression='bf16': .*\nhint: hvd.Compression.bf16"),
        ({"gradient_predivide_factor": "2"}, "gradient_predivide_factor='2': expected a number"),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor=0: expected a number above 0"),
        ({"backward_passes_per_step": "2"}, "backward_passes_per_step='2': expected a whole number"),
        ({"op": "Sum"}, "op='Sum': expected one of Average, Sum"),
    ]:
        with pytest.raises(ValueError, match=pattern):
            ReductionOptions(**options)  # type: ignore[arg-type]
