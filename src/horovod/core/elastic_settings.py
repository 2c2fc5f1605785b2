# SPDX-License-Identifier: Apache-2.0
"""The settings of elastic jobs: a part of the table in settings.py."""

from __future__ import annotations

import dataclasses

from horovod.core import setting_kinds as kinds
from horovod.core.setting_kinds import setting

__all__ = ["ElasticSettings"]


@dataclasses.dataclass(frozen=True)
class ElasticSettings:
    """All are read by horovodrun but the last three."""

    elastic_timeout_s: float = setting(
        "HOROVOD_ELASTIC_TIMEOUT",
        kinds.number(0.1),
        600.0,
        "How long an elastic job waits for enough slots, at its start and after it has lost workers, in seconds.",
        flag="--elastic-timeout",
    )
    elastic_straggler_s: float = setting(
        "HOROVOD_ELASTIC_STRAGGLER_SECONDS",
        kinds.number(0),
        600.0,
        "How long the others wait for a worker that has not left a world which is over, in seconds; then it is ended.",
    )
    elastic_join_s: float = setting(
        "HOROVOD_ELASTIC_JOIN_SECONDS",
        kinds.number(0.1),
        600.0,
        "How long a worker that joins may take until its script has reached the training function, in seconds; then it "
        "is ended, as one that has failed.",
    )
    elastic_settle_s: float = setting(
        "HOROVOD_ELASTIC_SETTLE_SECONDS",
        kinds.number(0),
        1.0,
        "How long a worker that is ready to join waits for others, so that training stops once for all, in seconds.",
    )
    elastic_discovery_s: float = setting(
        "HOROVOD_ELASTIC_DISCOVERY_SECONDS",
        kinds.number(0.05),
        1.0,
        "How often an elastic job asks which hosts there are, in seconds.",
    )
    elastic_blame: str = setting(
        "HOROVOD_ELASTIC_BLAME",
        kinds.choice("auto", "host", "worker"),
        "auto",
        "What an elastic job no longer uses after a worker has failed: its host, or nothing: then another worker takes "
        "its slot. auto: the host, if the job may have several.",
    )
    elastic_state_loss: str = setting(
        "HOROVOD_ELASTIC_STATE_LOSS",
        kinds.choice("fail", "restart"),
        "fail",
        "What an elastic job does when every worker that held the training state is gone: it fails, or all workers "
        "start afresh, and the script loads its own checkpoint.",
    )

    # Set by the launcher, read by every worker
    elastic: bool = setting("HOROVOD_ELASTIC", kinds.switch(), False, "Whether workers may leave and join this job.")
    worker: int | None = setting(
        "HOROVOD_ELASTIC_WORKER", kinds.integer(0), None, "The number of this process in an elastic job."
    )
    joins: bool = setting(
        "HOROVOD_ELASTIC_JOINS", kinds.switch(), False, "Whether this process joins an elastic job that runs already."
    )
