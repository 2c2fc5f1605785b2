# SPDX-License-Identifier: Apache-2.0
"""Old import name of horovodrun's main function; re-exports only."""

from horovod.launcher.cli import main as run_commandline

__all__ = ["run_commandline"]
