# SPDX-License-Identifier: Apache-2.0
"""Slurm: inside salloc and sbatch. The list of nodes is read here, so that no scontrol is needed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from horovod.launcher.allocations.base import Allocation
from horovod.launcher.options.hosts import Host, HostsError

__all__ = ["expand_nodes", "expand_tasks", "find"]

_NODES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASKS = "SLURM_TASKS_PER_NODE"
_MOST_NODES = 1 << 16
# A name, brackets included: commas inside of brackets divide numbers, those outside names.
_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[]+)")
_NUMBERS = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


def find(environment: Mapping[str, str]) -> Allocation | None:
    """The nodes of the job, each with as many slots as tasks."""
    source = next((name for name in _NODES if environment.get(name)), None)
    if source is None or not environment.get("SLURM_JOB_ID"):
        return None
    names = expand_nodes(environment[source], source)
    tasks = expand_tasks(environment.get(_TASKS, f"1(x{len(names)})"))
    if len(tasks) != len(names):
        raise HostsError(
            f"{source} names {len(names)} hosts, but {_TASKS}={environment[_TASKS]} is for {len(tasks)}\n"
            "hint: this shell may be a step of a part of the job; -H or --hostfile names the hosts"
        )
    hosts = [Host(name, count) for name, count in zip(names, tasks, strict=True)]
    return Allocation(f"Slurm job {environment['SLURM_JOB_ID']}", source, hosts, "srun")


def expand_nodes(text: str, source: str = _NODES[0]) -> list[str]:
    """`a[0-2,7],b` as names. Raises HostsError."""
    entries = _ENTRY.findall(text)
    try:
        names = list(itertools.islice(itertools.chain.from_iterable(map(_names, entries)), _MOST_NODES + 1))
    except ValueError:
        names = []
    if ",".join(entries) != text or not 0 < len(names) <= _MOST_NODES:
        raise HostsError(f"{source}={text!r} is not a list of nodes\nhint: -H or --hostfile names the hosts instead")
    return names


def expand_tasks(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1. Raises HostsError."""
    counts: list[int] = []
    for entry in text.split(","):
        match = _COUNT.fullmatch(entry)
        times = int(match[2] or 1) if match else 0
        if match is None or int(match[1]) < 1 or not 0 < times <= _MOST_NODES:
            raise HostsError(f"{_TASKS}={text!r} is not a list of numbers")
        counts += [int(match[1])] * times
    return counts


def _names(entry: str) -> Iterator[str]:
    """Those of one entry, in which several brackets may stand."""
    parts = [[plain] if plain else _numbers(inside) for inside, plain in _PART.findall(entry)]
    return map("".join, itertools.product(*parts))


def _numbers(text: str) -> list[str]:
    """Of one bracket, with their leading zeros. Raises ValueError."""
    numbers: list[str] = []
    for entry in text.split(","):
        match = _NUMBERS.fullmatch(entry)
        if match is None or (match[2] and not int(match[1]) <= int(match[2]) < int(match[1]) + _MOST_NODES):
            raise ValueError(text)
        last = int(match[2] or match[1])
        numbers += [f"{number:0{len(match[1])}d}" for number in range(int(match[1]), last + 1)]
    return numbers
