# SPDX-License-Identifier: Apache-2.0
"""The agent of a host of an LSF job, started by blaunch, LSF's own rsh: where sshd may be closed to users."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from horovod.launcher.placement.base import PlacementOptions
from horovod.launcher.placement.remote import RemotePlacement, agent_words

__all__ = ["LsfPlacement"]


class LsfPlacement(RemotePlacement):
    name = "blaunch"
    program = "blaunch"
    test = "blaunch {host} true"

    def command(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
        return ["blaunch", host, *map(shlex.quote, agent_words(environment))]

    def is_unreached(self, code: int, said: str) -> bool:
        return code == 255 or "blaunch:" in said
