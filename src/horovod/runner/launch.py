# SPDX-License-Identifier: Apache-2.0
"""Old import name of horovodrun's main function; re-exports only. `python -m horovod.runner.launch` is horovodrun."""

import sys

from horovod.launcher.cli import main as run_commandline

__all__ = ["run_commandline"]

if __name__ == "__main__":
    sys.exit(run_commandline())
