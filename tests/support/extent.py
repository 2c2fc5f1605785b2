# SPDX-License-Identifier: Apache-2.0
"""How much is tested, and in which tier.

`make test` leaves out what is marked `slow("why")` (more than two processor seconds) or `check` (another transport or
framework under a test that is there already): `make check` has it. What is marked `thorough` only repeats, hunts or
measures time: `make check-all` has it, which sets THOROUGH=1.
"""

import os
import re
import subprocess
from typing import Any

import pytest

THOROUGH = os.environ.get("THOROUGH") == "1"

# How much later than promised something may come, in seconds. On a busy machine only a hang takes longer than this
# default; `make check-all` sets 2 for some tests, and runs nothing beside them.
SLACK_S = float(os.environ.get("SLACK_S", "100"))


# Other values and files have the same tests, for shared memory, two hosts, the core and PyTorch.
_REPEATED_VALUES = {"tcp", "2+2 tcp", "3+1", "mpich", "openmpi", "tensorflow", "keras", "jax", "mxnet", "caffe"}
_CONTRACT, _TORCH = "tests/contract/", "tests/frameworks/torch/"
_REPEATED_FILES = (
    "tests/processes/launcher/test_started_by_others.py",
    "tests/processes/world/test_mpi.py",
    "tests/unit/simulate/",
    *(
        f"{_TORCH}distributed/test_torch_{name}.py"
        for name in ("distributed", "distributed_faults", "distributed_training")
    ),
    *(f"{_TORCH}{name}" for name in ("gpu/", "test_torch_compile.py", "test_torch_cpu_check.py")),
)


def repeats(item: pytest.Item) -> bool:
    """Whether a test is marked `check` by its file, or by the value of a parameter."""
    if item.nodeid.startswith(_REPEATED_FILES):
        return True
    repeated = _REPEATED_VALUES | ({"torch"} if item.nodeid.startswith(_CONTRACT) else set())
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    parts = [str(part) for value in values for part in (value if isinstance(value, tuple) else (value,))]
    # "tensorflow_graph" and "horovod.tensorflow.keras" are of TensorFlow.
    return any(re.split(r"[._]", part.removeprefix("horovod.").strip("_"))[0] in repeated for part in parts)


def later(*values: Any, **options: Any) -> Any:
    """A case of a table that only `make check-all` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough, **options)


def needs_unshare(*flags: str) -> pytest.MarkDecorator:
    """Skips what needs `unshare` with these flags where it is refused: to users, in containers, in a changed root."""
    try:
        refused = subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode != 0
    except OSError:
        refused = True
    return pytest.mark.skipif(refused, reason=f"not run: unshare {' '.join(flags)} is refused here")
