# SPDX-License-Identifier: Apache-2.0
"""The settings of elastic jobs: a part of the table in table.py."""

from __future__ import annotations

import dataclasses

from horovod.settings import kinds
from horovod.settings.kinds import setting

__all__ = ["ElasticSettings"]


@dataclasses.dataclass(frozen=True)
class ElasticSettings:
    """horovodrun reads all but the last three."""

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
        "How long survivors wait for one of them that has not noticed the end of their world, in seconds; then it is "
        "killed.",
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
        "How long a worker that is ready to join waits for others, so that training stops only once for several of "
        "them, in seconds.",
    )
    elastic_discovery_s: float = setting(
        "HOROVOD_ELASTIC_DISCOVERY_SECONDS",
        kinds.number(0.05),
        1.0,
        "How long after the last answer an elastic job asks again which hosts there are, in seconds.",
    )
    elastic_blame: str = setting(
        "HOROVOD_ELASTIC_BLAME",
        kinds.choice("auto", "host", "worker"),
        "auto",
        "What gets the blame if a worker fails. host: its host is no longer used. worker: another worker takes its "
        "slot; after three failures the host is given up, too. auto: host if the job may have several hosts, else "
        "worker.",
    )
    elastic_state_loss: str = setting(
        "HOROVOD_ELASTIC_STATE_LOSS",
        kinds.choice("fail", "restart"),
        "fail",
        "What an elastic job does if all workers that had the training state are lost. fail: it ends. restart: new "
        "workers train from the start, or from a checkpoint that the script loads.",
    )

    elastic: bool = setting(
        "HOROVOD_ELASTIC",
        kinds.switch(),
        False,
        "Set by horovodrun: whether workers may leave and join this job.",
    )
    worker: int | None = setting(
        "HOROVOD_ELASTIC_WORKER",
        kinds.integer(0),
        None,
        "Set by horovodrun: the number of this process in an elastic job.",
    )
    joins: bool = setting(
        "HOROVOD_ELASTIC_JOINS",
        kinds.switch(),
        False,
        "Set by horovodrun: whether this process joins an elastic job that runs already.",
    )
