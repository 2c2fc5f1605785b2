# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.simulate run`: a whole job in one process and in virtual time."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from horovod.core.wording import counted, tell
from horovod.simulate.costs import STEP_S
from horovod.simulate.errors import InputError
from horovod.simulate.links import Link, link_of
from horovod.simulate.native import Fault, Job, Options, SimulationError
from horovod.simulate.profile import read_profile, sparse_in_words

__all__ = ["KINDS", "Name", "as_text", "fault_of", "needed_bytes", "simulate", "trace_of"]

# Those whose number is a host's; the others' is a rank's, or none.
KINDS = ("kill-rank", "kill-host", "freeze", "slow", "cut", "delay", "late", "shape", "join", "leave", "rename")
_WITH_AMOUNT = ("freeze", "slow", "delay", "late")
_WITHOUT_TARGET = ("rename", "shape")
_LINK = {"latency_us": 30.0, "message_us": 3.0}  # with --gbit
_BYTES = 635_000
_FAULT = re.compile(
    r"(?P<kind>[a-z-]+)(:(?P<target>\d{1,9}))?(:(?P<amount>\d{1,9}(\.\d+)?))?(@(?P<event>e)?(?P<at>\d{1,9}))?"
)

# Measured: of the process, of a rank, and of a rank and a name.
_BASE_BYTES, _RANK_BYTES, _NAME_BYTES = 60e6, 6e3, 610.0
_ELEMENT_BYTES = 4
_SECONDS_BETWEEN_LINES = 5.0
_MOST_TRACED = 64


@dataclasses.dataclass(frozen=True)
class Name:
    """A tensor that every rank reduces once a step. ready_us: after the step's start."""

    text: str
    elements: int
    ready_us: float = 0.0


def fault_of(text: str, steps: int) -> Fault:
    """Reads KIND:TARGET:AMOUNT@STEP, or @eEVENT in place of @STEP. Raises InputError."""
    found = _FAULT.fullmatch(text)
    if found is None or found["kind"] not in KINDS:
        raise InputError(
            f"--fault {text}: expected KIND:TARGET:AMOUNT@STEP, such as kill-rank:17@1 or freeze:3:2000@e5000\n"
            f"hint: the kinds are {', '.join(KINDS)}"
        )
    kind = found["kind"]
    if found["target"] is None and kind not in _WITHOUT_TARGET:
        raise InputError(f"--fault {text}: {kind} needs a target, such as {kind}:0")
    if found["target"] is not None and kind == "rename":
        raise InputError(f"--fault {text}: rename has no target: all names are other names")
    if found["amount"] is None and kind in ("slow", "delay", "late"):
        what = "a factor" if kind == "slow" else "milliseconds"
        raise InputError(f"--fault {text}: {kind} needs {what}, such as {kind}:0:4")
    if found["amount"] is not None and kind not in _WITH_AMOUNT:
        raise InputError(f"--fault {text}: {kind} has no amount")
    least = 1 if kind == "slow" else 0
    if found["amount"] is not None and float(found["amount"]) <= least:
        forever = f"\nhint: {kind}:{found['target']} is for ever" if kind == "freeze" else ""
        raise InputError(f"--fault {text}: it does nothing, expected an amount above {least}{forever}")
    if found["event"] and int(found["at"]) == 0:
        raise InputError(f"--fault {text}: expected an event from 1 on")
    at = int(found["at"] or min(1, steps - 1))
    return Fault(
        kind=kind.encode(),
        target=-1 if found["target"] is None else int(found["target"]),
        step=0 if found["event"] else at,
        event=at if found["event"] else 0,
        amount=float(found["amount"] or 0),
    )


def needed_bytes(ranks: int, names: int) -> float:
    """How much memory a run takes, from runs of 1,000 to 100,000 ranks."""
    return _BASE_BYTES + ranks * (_RANK_BYTES + names * _NAME_BYTES)


def simulate(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Runs each seed. Returns the last run, for readers of JSON, and whether all went well."""
    _check_is_used(options)
    names = _names(options)
    link = _link(options)
    faults = [fault_of(text, options.steps) for text in options.fault]
    ranks = options.hosts * options.ranks
    if options.trace is not None and ranks > _MOST_TRACED:
        raise InputError(f"--trace: {counted(ranks, 'rank')}, expected at most {_MOST_TRACED}\nhint: fewer --hosts")
    _check_memory(ranks, len(names))
    found: dict[str, Any] = {}
    failures: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.seeds):
        found, problem = _run(options, names, link, faults, seed)
        if problem:
            failures.append({"seed": seed, "problem": problem, "replay": _replay(options.given, seed)})
            tell(f"seed {seed}: {problem}\nhint: replay it by: {failures[-1]['replay']}")
        elif options.seeds > 1:
            missed = "".join(f"; {text} never came" for text in _missed(found))
            tell(f"seed {seed}: {found['events']} events, all held{missed}")
    bytes_of_all = _ELEMENT_BYTES * sum(name.elements for name in names)
    job = {"hosts": options.hosts, "ranks_per_host": options.ranks, "names": len(names), "bytes": bytes_of_all}
    made = {"version": 1, "job": job, "link": link, "seed": options.seed, "seeds": options.seeds}
    return {**made, "failures": failures, "run": found}, not failures


def _run(
    options: argparse.Namespace, names: Sequence[Name], link: dict[str, float], faults: Sequence[Fault], seed: int
) -> tuple[dict[str, Any], str]:
    plan = Options(
        hosts=options.hosts,
        ranks_per_host=options.ranks,
        steps=options.steps,
        star_hosts=options.relays_above_hosts,
        seed=seed,
        plant=options.plant,
        shuffled=int(options.shuffled),
        spans=int(options.trace is not None),
        **link,
    )
    with Job(plan) as job:
        for name in names:
            job.add_name(name.text, name.elements, name.ready_us)
        for fault in faults:
            job.add_fault(fault)
        problem = ""
        try:
            job.run(_Progress(options.hosts * options.ranks))
        except SimulationError as error:
            problem = str(error)
        found = job.report()
        came = found.pop("came", [])
        found["faults"] = [
            {"fault": text, "came": bool(has_come)} for text, has_come in zip(options.fault, came, strict=True)
        ]
        return found, problem


def _missed(run: dict[str, Any]) -> list[str]:
    return [fault["fault"] for fault in run["faults"] if not fault["came"]]


def _check_is_used(options: argparse.Namespace) -> None:
    """Raises InputError for an option that would do nothing."""
    if options.profile is not None and options.bytes is not None:
        raise InputError("--bytes is for --names: a profile has its own tensors\nhint: leave it out")
    for name in _LINK:
        if options.link is not None and getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is for --gbit: --link {options.link} has its own\nhint: leave one of them out")


class _Progress:
    """A line on stderr now and then."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._begun = self._last = time.monotonic()

    def __call__(self, report: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        tell(
            f"{now - self._begun:5.0f} s: step {report['step']}, {report['virtual_ns'] / 1e6:.1f} ms of virtual time, "
            f"{report['events']} events, {report['ranks_done']} of {self._ranks} ranks done"
        )


def _names(options: argparse.Namespace) -> list[Name]:
    if options.profile is None:
        elements = max(1, (options.bytes or _BYTES) // _ELEMENT_BYTES)
        return [Name(f"gradient.{number}", elements) for number in range(options.names)]
    profile = read_profile(options.profile)
    if warning := sparse_in_words(profile.sparse):
        tell(warning)
    work = profile.work
    return [
        Name(f"gradient.{number}", max(1, int(size) // _ELEMENT_BYTES), 1e6 * float(ready))
        for number, (ready, size) in enumerate(zip(work.ready_s, work.sizes, strict=True))
    ]


def _link(options: argparse.Namespace) -> dict[str, float]:
    if options.link is None:
        latency, overhead = (getattr(options, name) or usual for name, usual in _LINK.items())
        return {"gbit": options.gbit, "latency_us": latency, "send_us": overhead, "receive_us": overhead}
    link: Link = link_of(options.link)
    latency = link.latency_us or (1e6 * STEP_S[link.network],) * 2
    overhead = sum(link.overhead_us) / 2
    return {
        "gbit": link.gbit * sum(link.utilisation) / 2,
        "latency_us": sum(latency) / 2,
        "send_us": overhead,
        "receive_us": overhead,
    }


def trace_of(spans: Sequence[Sequence[Any]], ranks_per_host: int) -> dict[str, Any]:
    """The spans of a report in Chrome's format, which Perfetto reads: a process for each host, a thread for each rank.

    The times of a step begin with its first gradient.
    """
    events = [
        {
            "name": f"{kind} {number}",
            "ph": "X",
            "pid": rank // ranks_per_host,
            "tid": rank,
            "ts": begin / 1e3,
            "dur": (end - begin) / 1e3,
        }
        for kind, rank, number, begin, end in spans
    ]
    hosts = sorted({event["pid"] for event in events})
    names = [{"name": "process_name", "ph": "M", "pid": host, "args": {"name": f"host {host}"}} for host in hosts]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}


def _check_memory(ranks: int, names: int) -> None:
    needed, free = needed_bytes(ranks, names), _free_bytes()
    tell(f"memory: about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
    if needed > free:
        raise InputError(
            f"{counted(ranks, 'rank')} with {counted(names, 'name')} need about {needed / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} GB are free\nhint: fewer --hosts or --names"
        )


def _free_bytes() -> float:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE)
    return 1024.0 * int(found[1]) if found is not None else float("inf")


def _replay(given: Sequence[str], seed: int) -> str:
    """The command line, for one seed."""
    kept, skips = [], False
    for argument in given:
        if skips or argument in ("--seed", "--seeds"):
            skips = not skips
        elif not argument.startswith(("--seed=", "--seeds=")):
            kept.append(argument)
    return f"python -m horovod.simulate {shlex.join([*kept, '--seed', str(seed)])}"


def as_text(found: dict[str, Any]) -> str:
    """The tables that `python -m horovod.simulate run` prints."""
    return "\n".join([*_title(found), "", *_steps(found["run"]), *_kinds(found["run"]), *_loss(found["run"])])


def _title(found: dict[str, Any]) -> Iterator[str]:
    job, link = found["job"], found["link"]
    yield (
        f"{counted(job['hosts'], 'host')} with {counted(job['ranks_per_host'], 'rank')} each, "
        f"{counted(job['names'], 'name')}, {job['bytes'] / 1e6:.1f} MB a step; seed {found['seed']}"
    )
    yield (
        f"link: {link['gbit']:g} Gbit/s, {link['latency_us']:g} us; a message takes {link['send_us']:g} us of a "
        "processor at each end"
    )


def _steps(run: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{'step':>5} {'batches':>8} {'up':>9} {'down':>9} {'relayed':>9} {'MB up':>8} {'MB down':>8} "
        f"{'rank 0 busy':>12} {'collectives':>12} {'step time':>12}"
    )
    for number, step in enumerate(run["steps"]):
        if step["began_ns"] is None:
            widths = (8, 9, 9, 9, 8, 8, 12, 12, 12)
            yield " ".join([f"{number:5d}", *(f"{'-':>{width}}" for width in widths)])
            continue
        took = None if step["ended_ns"] is None else step["ended_ns"] - step["began_ns"]
        times = " ".join(
            f"{'-':>12}" if ns is None else f"{ns / 1e6:9.1f} ms"
            for ns in (step["rank_0_busy_ns"], step["collectives_ns"], took)
        )
        yield (
            f"{number:5d} {step['batches']:8d} {sum(step['up'].values()):9d} {sum(step['down'].values()):9d} "
            f"{sum(step['relayed'].values()):9d} {step['bytes_up'] / 1e6:8.1f} {step['bytes_down'] / 1e6:8.1f} {times}"
        )
    yield "Up and down: messages to and from rank 0; relayed: between other hosts. Times are of the simulated job."
    if any(step["ended_ns"] is None for step in run["steps"]):
        yield "-: the step did not end, or no rank took part in it."


def _kinds(run: dict[str, Any]) -> Iterator[str]:
    for number, step in enumerate(run["steps"]):
        if step["began_ns"] is None:
            continue
        for way in ("up", "down"):
            kinds = ", ".join(f"{count} {kind}" for kind, count in step[way].items())
            yield f"  step {number}, {way}: {kinds or 'none'}"


def _loss(run: dict[str, Any]) -> Iterator[str]:
    for text in _missed(run):
        yield f"--fault {text} never came: the job had ended before"
    for fault in run["faults"]:
        if fault["came"] and fault["fault"].startswith("leave:"):
            rank = fault["fault"].removeprefix("leave:").partition("@")[0]
            yield f"rank {rank} left: the others' operations that need it end with an error, and the job ends"
    if run["failed_calls"]:
        yield f"{counted(run['failed_calls'], 'call')} failed, each with an error"
    if run["cause"] is not None:
        yield f"{run['cause']}: the last survivor heard of it after {run['noticed_after_ns'] / 1e6:.1f} ms"
