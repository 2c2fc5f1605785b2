# SPDX-License-Identifier: Apache-2.0
"""The settings of metrics: a part of the table in table.py."""

from __future__ import annotations

import dataclasses

from horovod.settings import kinds
from horovod.settings.kinds import setting

__all__ = ["MetricsSettings"]


@dataclasses.dataclass(frozen=True)
class MetricsSettings:
    """docs/monitoring.md explains them."""

    metrics_port: int | None = setting(
        "HOROVOD_METRICS_PORT",
        kinds.port(),
        None,
        "Each rank serves its counters to Prometheus at /metrics of this port plus its local rank.",
    )
    metrics_address: str = setting(
        "HOROVOD_METRICS_ADDRESS",
        kinds.text(),
        "127.0.0.1",
        "The address at which metrics are served; 0.0.0.0 for all networks of the host. Anyone who reaches it can "
        "read them.",
    )
    metrics_file: str = setting(
        "HOROVOD_METRICS_FILE",
        kinds.path_by_rank(),
        "",
        "File into which each rank writes its counters, for node exporter. It must contain {rank}, which becomes the "
        "rank.",
    )
    metrics_interval_s: float = setting(
        "HOROVOD_METRICS_INTERVAL_SECONDS",
        kinds.number(0.1),
        15.0,
        "How often the file of HOROVOD_METRICS_FILE is written, in seconds. It is removed when the rank leaves.",
    )
