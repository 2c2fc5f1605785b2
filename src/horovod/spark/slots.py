# SPDX-License-Identifier: Apache-2.0
"""How many tasks Spark can run at a time, looked at before a job that needs all of its tasks at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from horovod.core.wording import counted, on_one_line

__all__ = ["NoSlotsError", "is_local", "most_slots", "slots_now", "wait_for_slots"]

_SETTLED_S = 2.0  # a number of slots that has not changed for so long is taken for all there are
_LOOK_S = 0.2
_TELL_S = 10.0
_LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


class NoSlotsError(RuntimeError):
    """Spark has fewer slots than the job needs tasks."""


def is_local(master: str) -> bool:
    """True if all executors are on the driver's machine."""
    return master.startswith("local")


def slots_now(context: Any) -> int | None:
    """None if this Spark does not tell. There is no public way: a barrier job asks the same."""
    try:
        scala = context._jsc.sc()
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except (AttributeError, TypeError):  # another Spark has other private names
        return None
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            return None
        raise


def most_slots(master: str, conf: Mapping[str, str]) -> int | None:
    """How many slots there will be when all executors are there; None if the configuration does not say."""
    cpus = int(conf.get("spark.task.cpus", "1"))
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        return int(cluster[1]) * (int(cluster[2]) // cpus)
    if "spark.executor.instances" in conf and "spark.executor.cores" in conf:
        return int(conf["spark.executor.instances"]) * (int(conf["spark.executor.cores"]) // cpus)
    return None


def wait_for_slots(
    needed: int,
    master: str,
    conf: Mapping[str, str],
    look: Callable[[], int | None],
    deadline: float,
    tell: Callable[[int], object] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when there are enough slots, or when that cannot be known, or may still change until `deadline`.

    `tell` gets the number of slots every ten seconds. Raises NoSlotsError as soon as it is clear that there will not be
    enough. Executors that have just been asked for register within some seconds; with dynamic allocation they come when
    tasks wait for them.
    """
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        return
    most = most_slots(master, conf)
    seen, since = look(), clock()
    tell_at = since + _TELL_S
    while seen is not None and seen < needed:
        settled = clock() - since >= _SETTLED_S and ((seen > 0) if most is None else most < needed)
        if settled or _LOCAL.fullmatch(master):
            raise NoSlotsError(_text(needed, seen, master, conf))
        if clock() >= deadline:
            return
        if clock() >= tell_at:
            tell_at += _TELL_S
            tell(seen)
        sleep(_LOOK_S)
        now = look()
        if now != seen:
            seen, since = now, clock()


def _text(needed: int, seen: int, master: str, conf: Mapping[str, str]) -> str:
    names = ("spark.executor.instances", "spark.executor.cores", "spark.task.cpus", "spark.task.resource.gpu.amount")
    made_of = on_one_line(", ".join([master, *(f"{name} {conf[name]}" for name in names if name in conf)]))
    return (
        f"the job needs {counted(needed, 'task')} at the same time, but Spark has {counted(seen, 'slot')} "
        f"({made_of})\nhint: lower num_proc, or give Spark more executors or cores; each rank needs a task"
    )
