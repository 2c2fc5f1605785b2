# SPDX-License-Identifier: Apache-2.0
"""Old import name of horovod.run; re-exports only."""

from horovod.core.missing import watch
from horovod.launcher.function.run_function import run

__all__ = ["run"]

watch(__name__)
