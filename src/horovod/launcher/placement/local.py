# SPDX-License-Identifier: Apache-2.0
"""The agent of this machine: a child process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from horovod.launcher.host.job_directory import remove_directory
from horovod.launcher.options.hosts import is_local
from horovod.launcher.placement.base import AGENT_COMMAND, PlacementOptions

__all__ = ["LocalPlacement"]


class LocalPlacement:
    name = "local"
    remote = False
    program = ""

    def reaches(self, host: str, options: PlacementOptions) -> bool:
        return is_local(host)

    def start_agent(
        self, host: str, environment: Mapping[str, str], options: PlacementOptions
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            AGENT_COMMAND,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches horovodrun alone, which then ends the job in order
        )

    def explain(self, host: str, options: PlacementOptions, code: int, said: str) -> tuple[str, str]:
        return f"its agent ended with exit code {code} before it answered", "its own words stand further up"

    def clean_up(self, host: str, directory: str) -> None:
        if os.path.isdir(directory):
            remove_directory(directory)
