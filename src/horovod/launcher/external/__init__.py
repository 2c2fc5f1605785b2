# SPDX-License-Identifier: Apache-2.0
"""Jobs that another launcher starts instead of horovodrun: its command line is built here, and then run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from horovod.launcher.external.base import ExternalCommand, ExternalJob
from horovod.launcher.external.jsrun import jsrun_command
from horovod.launcher.external.mpirun import mpirun_command
from horovod.launcher.options.checks import make_directory
from horovod.launcher.options.host_list import HostList
from horovod.launcher.options.hosts import ranks_by_host

__all__ = ["ExternalCommand", "external_command"]

_COMMANDS = {"mpi": mpirun_command, "jsrun": jsrun_command}


def external_command(
    controller: str,
    options: argparse.Namespace,
    hosts: HostList,
    environment: Mapping[str, str],
    interfaces: str,
) -> ExternalCommand:
    """The command that starts the job. Raises UsageError if there is no such launcher here, or it cannot do this."""
    if options.output_filename is not None:
        make_directory(options.output_filename)
    job = ExternalJob(
        command=options.command,
        shares=_shares(controller, hosts),
        environment=dict(environment),
        arguments=options.mpi_args or "",
        binding=options.binding_args or "",
        interfaces=interfaces,
        ssh_port=options.ssh_port,
        ssh_identity_file=options.ssh_identity_file,
        output_directory=options.output_filename,
        timestamps=options.prefix_timestamp,
        tcp=options.tcp,
    )
    return _COMMANDS[controller](job)


def _shares(controller: str, hosts: HostList) -> dict[str, int]:
    """How many ranks each host gets, host by host; but jsrun, which gives all as many, spreads them evenly."""
    counts = ranks_by_host(hosts.hosts, hosts.size)
    even, rest = divmod(hosts.size, len(hosts.hosts))
    if controller == "jsrun" and not rest and all(host.slots >= even for host in hosts.hosts):
        counts = [even] * len(hosts.hosts)
    return {host.name: count for host, count in zip(hosts.hosts, counts, strict=True) if count}
