# SPDX-License-Identifier: Apache-2.0
"""The settings of how a rank ends: a part of the table in table.py."""

from __future__ import annotations

import dataclasses

from horovod.settings import kinds
from horovod.settings.kinds import setting

__all__ = ["EndSettings"]


@dataclasses.dataclass(frozen=True)
class EndSettings:
    """The first is horovodrun's as well."""

    termination_grace_s: float = setting(
        "HOROVOD_TERMINATION_GRACE_SECONDS",
        kinds.number(0),
        3.0,
        "How long the ranks may take to end after SIGTERM before they get SIGKILL, in seconds.",
        flag="--termination-grace-seconds",
    )
    raised_grace_s: float = setting(
        "HOROVOD_RAISED_GRACE_SECONDS",
        kinds.number(0),
        30.0,
        "How long threads of a script that has raised may keep its process alive, in seconds; then it is ended, and "
        "the other ranks get an error. 0 means for ever. Elastic jobs always take 30 s.",
    )
    end_with_launcher: bool = setting(
        "HOROVOD_END_WITH_LAUNCHER",
        kinds.switch(),
        True,
        "Ends a rank of mpirun, srun or torchrun whose launcher, or its daemon on this host, was killed. horovodrun's "
        "ranks always end with it.",
    )
    full_traceback: bool = setting(
        "HOROVOD_FULL_TRACEBACK",
        kinds.switch(),
        False,
        "Also show Horovod's own frames in the traceback of a Horovod error that ends the script.",
    )
