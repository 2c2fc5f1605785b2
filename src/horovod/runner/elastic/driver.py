# SPDX-License-Identifier: Apache-2.0
"""Old import names around Horovod's driver of elastic jobs. No step of a gradient's way.

Horovod's driver was told of slots that are ready, over HTTP. Ours (elastic/drive/driver.py) lives in horovodrun's loop,
and decides by what numbered workers say of themselves and of their states. So no other program can feed it.
"""

from __future__ import annotations

from typing import Any

from horovod.settings.elastic import ElasticSettings

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "ELASTIC_TIMEOUT_SECS", "ElasticDriver", "Results", "ResultsRecorder"]

DISCOVER_HOSTS_FREQUENCY_SECS = ElasticSettings.elastic_discovery_s
ELASTIC_TIMEOUT_SECS = ElasticSettings.elastic_timeout_s


def driven_by_horovodrun(name: str) -> NotImplementedError:
    """Why a part of Horovod's driver cannot be made."""
    return NotImplementedError(
        f"{name} does not exist here: elastic jobs are driven inside of horovodrun\n"
        "hint: start them with `horovodrun --min-np ...` or horovod.run(min_num_proc=...); a platform says which hosts "
        "there are by its own subclass of horovod.runner.elastic.discovery.HostDiscovery, or a discovery script"
    )


class ElasticDriver:
    """Raises NotImplementedError."""

    def __init__(
        self,
        rendezvous: Any,
        discovery: Any,
        min_num_proc: int,
        max_num_proc: int | None,
        timeout: float | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        verbose: int = 0,
    ) -> None:
        raise driven_by_horovodrun("ElasticDriver")


class Results:
    """The results of a job's workers; `error_message`: why the job has failed, None if it has not."""

    def __init__(self, error_message: str | None, worker_results: dict[Any, Any]) -> None:
        self.error_message = error_message
        self.worker_results = worker_results


class ResultsRecorder:
    """Raises NotImplementedError."""

    def __init__(self) -> None:
        raise driven_by_horovodrun("ResultsRecorder")
