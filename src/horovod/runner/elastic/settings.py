# SPDX-License-Identifier: Apache-2.0
"""Old import name of an elastic job's settings as one object, for platforms. No step of a gradient's way."""

from __future__ import annotations

from typing import Any

from horovod.elastic.drive.discovery import HostDiscovery

__all__ = ["ElasticSettings"]

# The attributes of Horovod's settings of any job, with their defaults.
_OF_ANY_JOB: dict[str, Any] = {
    "num_proc": None,
    "verbose": 0,
    "ssh_port": None,
    "ssh_identity_file": None,
    "extra_mpi_args": None,
    "tcp_flag": None,
    "binding_args": None,
    "key": None,
    "start_timeout": None,
    "output_filename": None,
    "run_func_mode": None,
    "nics": None,
    "prefix_output_with_timestamp": False,
}


class ElasticSettings:
    """The settings of an elastic job, as attributes. What is pickled has no discovery: it stays with the launcher.

    Raises TypeError for a keyword that Horovod does not have.
    """

    elastic = True

    def __init__(
        self,
        discovery: HostDiscovery | None,
        min_num_proc: int | None,
        max_num_proc: int | None,
        elastic_timeout: float | None,
        reset_limit: int | None,
        cooldown_range: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        unknown = sorted(set(kwargs) - set(_OF_ANY_JOB))
        if unknown:
            raise TypeError(f"ElasticSettings got an unexpected keyword argument {unknown[0]!r}")
        for name, value in {**_OF_ANY_JOB, **kwargs}.items():
            setattr(self, name, value)
        self.discovery = discovery
        self.min_num_proc = min_num_proc
        self.max_num_proc = max_num_proc
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "discovery": None}
