# SPDX-License-Identifier: Apache-2.0
"""LSF: the hosts of a job, each with its slots, from LSB_DJOB_HOSTFILE or LSB_MCPU_HOSTS."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.launcher.allocations.base import Allocation, hosts_of_file
from horovod.launcher.options.hosts import Host, HostsError, parse_hosts

__all__ = ["find"]

_FILE = "LSB_DJOB_HOSTFILE"  # a line for each slot
_PAIRS = "LSB_MCPU_HOSTS"  # `host1 4 host2 4`


def find(environment: Mapping[str, str]) -> Allocation | None:
    job = environment.get("LSB_JOBID")
    source = next((name for name in (_FILE, _PAIRS) if environment.get(name)), None)
    if not job or source is None:
        return None
    value = environment[source]
    hosts = hosts_of_file(value, source) if source == _FILE else _hosts_of_pairs(value)
    if "CSM_ALLOCATION_ID" in environment and len(hosts) > 1:
        # On clusters with jsrun the first host is the one that the batch script runs on. It has no slot for tasks.
        hosts = hosts[1:]
    return Allocation(f"LSF job {job}", source, hosts, "blaunch")


def _hosts_of_pairs(text: str) -> list[Host]:
    words = text.split()
    try:
        pairs = [(name, int(count)) for name, count in zip(words[::2], words[1::2], strict=True)]
    except ValueError:
        raise HostsError(f"{_PAIRS}={text!r}: expected pairs of a host and its slots") from None
    return parse_hosts(",".join(f"{name}:{count}" for name, count in pairs if count))
