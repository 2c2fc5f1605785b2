# SPDX-License-Identifier: Apache-2.0
"""Old import name of an elastic job's settings as one object, for platforms. No step of a gradient's way."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from horovod.elastic.drive.discovery import HostDiscovery

__all__ = ["ElasticSettings"]


@dataclasses.dataclass(eq=False, repr=False)  # `key` is a secret
class ElasticSettings:
    """The settings of an elastic job, as attributes. What is pickled has no discovery: it stays with the launcher."""

    elastic: ClassVar[bool] = True

    discovery: HostDiscovery | None
    min_num_proc: int | None
    max_num_proc: int | None
    elastic_timeout: float | None
    reset_limit: int | None
    cooldown_range: tuple[int, int] | None = None
    # The attributes of Horovod's settings of any job.
    _: dataclasses.KW_ONLY
    num_proc: Any = None
    verbose: Any = 0
    ssh_port: Any = None
    ssh_identity_file: Any = None
    extra_mpi_args: Any = None
    tcp_flag: Any = None
    binding_args: Any = None
    key: Any = None
    start_timeout: Any = None
    output_filename: Any = None
    run_func_mode: Any = None
    nics: Any = None
    prefix_output_with_timestamp: Any = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "discovery": None}
