# SPDX-License-Identifier: Apache-2.0
"""The plan of elastic training that the flags ask for."""

from __future__ import annotations

import argparse

from horovod.elastic.decide.cooldown import Cooldown
from horovod.elastic.decide.job import BLAME_HOST, BLAME_WORKER, Rules
from horovod.elastic.drive.discovery import HostDiscoveryScript
from horovod.elastic.drive.driver import Limits
from horovod.launcher.job.spec import ElasticPlan
from horovod.launcher.options.host_list import HostList
from horovod.launcher.options.usage import UsageError
from horovod.settings import Settings

__all__ = ["elastic_plan"]


def elastic_plan(options: argparse.Namespace, settings: Settings, hosts: HostList | None) -> ElasticPlan:
    """`hosts`: None if a script lists them. Raises UsageError or ValueError."""
    size = options.num_proc or (hosts.size if hosts is not None else options.min_np)
    if size is None:
        raise UsageError("-np, the number of slots that the job needs to begin, is missing")
    least, most = options.min_np or size, options.max_np
    if least > size:
        raise UsageError(f"--min-np {least} is more than -np {size}, the slots that the job needs to begin")
    if most is not None and most < size:
        raise UsageError(f"--max-np {most} is less than -np {size}, the slots that the job needs to begin")
    if options.spares is not None and most is None:
        raise UsageError(
            "--spares counts workers beyond --max-np, which is missing\n"
            "hint: add --max-np N, the most workers that may train"
        )
    several = hosts is None or len(hosts.hosts) > 1
    blame = {"auto": BLAME_HOST if several else BLAME_WORKER, "host": BLAME_HOST, "worker": BLAME_WORKER}
    try:
        cooldown = None if options.cooldown is None else Cooldown.of(*options.cooldown)
    except ValueError as error:
        raise UsageError(str(error)) from None
    script = options.host_discovery_script
    return ElasticPlan(
        Rules(
            np=size,
            min_np=least,
            max_np=most,
            spares=options.spares or 0,
            reset_limit=options.reset_limit,
            blame=blame[settings.elastic_blame],
            cooldown=cooldown is not None,
            restart=settings.elastic_state_loss == "restart",
            settle=settings.elastic_settle_s > 0,
        ),
        Limits(
            slots_s=settings.elastic_timeout_s,
            straggler_s=settings.elastic_straggler_s,
            settle_s=settings.elastic_settle_s,
            start_s=settings.start_timeout_s,
            join_s=settings.elastic_join_s,
            cooldown=(lambda _: None) if cooldown is None else cooldown.seconds,
        ),
        hosts=() if hosts is None else tuple((host.name, host.slots) for host in hosts.hosts),
        discovery=None if script is None else HostDiscoveryScript(script, options.slots_per_host),
        discovery_s=settings.elastic_discovery_s,
    )
