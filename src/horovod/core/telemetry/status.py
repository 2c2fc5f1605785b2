# SPDX-License-Identifier: Apache-2.0
"""Tells the job's rendezvous about once a second how this rank does (world/statuses.py), on a thread of its own.

A status is an object of JSON; `horovodrun top` and the summary at a job's end read it (launcher/watch/). Times are of
this rank's clock, and counts since init:

| key | meaning |
|---|---|
| pid, host, local_rank | of this process |
| bytes, in_flight | from hvd.statistics() |
| seconds, steps, waiting_s, framework_waits | from its `arrivals` |
| blocked_times, blocked_for_ranks_s, blocked_for_data_s | from its `arrivals`, too |
| by_rank | for which ranks this one has waited: seconds by rank, the longest ones |
| late | the rank that this one waits for lately: rank, share (of the time), since_step, since_s |
| stuck_s | for how long calls have been in flight and none has become ready |
| core_wait_s | how long the thread that waits longest for a core did so |
| address | of this host, if the job has several |
| links | then, by the other hosts' addresses: bytes that have arrived there, and seconds that it took (link_rates.py) |
| sampled | if the server wants it: in which part of a step the main thread was found, and at which line (samples.py) |
| stacks | if they were asked for: number (of the request), threads |
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from horovod.core.telemetry import link_rates, samples
from horovod.core.telemetry.core_waits import CoreWaits
from horovod.world import job_files
from horovod.world.channel import ChannelError
from horovod.world.world import World

__all__ = ["StatusThread", "lost"]

_random = random.Random()  # not Python's global one, which the script may have seeded
_SAMPLE_S = 0.05
_TIMEOUT_S = 5.0
_LAST_S = 0.5  # for the last status, and for what the thread is about to do
_LEAST_SHARE = 0.02  # of the time: less is not worth a word
_MOST_RANKS = 8
_CLEAR = 0.5  # of the waiting, that was for one rank


class StatusThread:
    """From construction to `close`. Ends by itself if the rendezvous does: then the job ends, too."""

    def __init__(self, world: World, interval_s: float, facts: Callable[[], dict[str, Any]]) -> None:
        """`facts`: hvd.statistics() of this generation."""
        assert world.rendezvous is not None
        self._world = world
        self._rendezvous = world.rendezvous
        self._facts = facts
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._in_order = True
        self._samples: samples.Samples | None = None
        self._stacks = 0  # the number of the newest request that came
        self._late = _Late()
        self._core_waits = CoreWaits()
        self._stuck_since: tuple[int, float] | None = None  # the calls that were ready then, and the time
        self._file: job_files.JobFile | None = None
        if world.identity.local_rank == 0:
            self._file = job_files.write(*self._rendezvous.place(), " ".join(sys.orig_argv))
        self._thread = threading.Thread(target=self._run, name="horovod-status", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: the job goes on without
            self._thread.start()

    def close(self, *, in_order: bool) -> None:
        """Returns when the last status has been sent, or after _LAST_S. There is none if the job ends with an error."""
        self._in_order = in_order
        self._ended.set()
        if self._file is not None:
            self._file.remove()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        next_s = self._interval_s
        with contextlib.suppress(ChannelError):
            while not self._sleep(next_s):
                next_s = max(self._interval_s, self._tell(_TIMEOUT_S))
            if self._in_order:
                self._tell(_LAST_S)  # for the summary

    def _sleep(self, seconds: float) -> bool:
        """True if the end has come. Takes samples meanwhile, at times that no loop of the script keeps step with."""
        if self._samples is None:
            return self._ended.wait(seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._ended.wait(_SAMPLE_S * _random.uniform(0.5, 1.5)):
                return True
            self._samples.take()
        return False

    def _tell(self, timeout_s: float) -> float:
        """Sends the status; returns in how many seconds the next one is due. Raises ChannelError."""
        world, identity = self._world, self._world.identity
        answer = self._rendezvous.tell_status(world.generation, identity.rank, identity.size, self._status(), timeout_s)
        if not answer.get("sample"):
            self._samples = None
        elif self._samples is None:
            self._samples = samples.Samples()
        self._stacks = answer.get("stacks", 0)
        return float(answer["next_s"])

    def _status(self) -> dict[str, Any]:
        facts = self._facts()
        arrivals = facts["arrivals"]
        waited = ("waiting_s", "framework_waits", "blocked_times", "blocked_for_ranks_s", "blocked_for_data_s")
        waits = {rank: row["waited_s"] for rank, row in arrivals["by_rank"].items() if rank >= 0}
        longest = sorted(waits, key=waits.__getitem__, reverse=True)[:_MOST_RANKS]
        status: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "local_rank": self._world.identity.local_rank,
            **{name: arrivals[name] for name in ("seconds", "steps", *waited)},
            "bytes": facts["bytes"],
            "in_flight": facts["in_flight"],
            "by_rank": {str(rank): round(waits[rank], 6) for rank in longest},
            "late": self._late.now(arrivals, waits),
            "core_wait_s": self._core_waits.now(),
            "stuck_s": self._stuck_s(facts["in_flight"], arrivals),
        }
        opener = self._world.opener
        others = opener.addresses_of_others() if opener is not None else set()
        if opener is not None and others:
            status["address"] = opener.address()
            status["links"] = {to: sent for to, sent in link_rates.by_address().items() if to in others}
        if self._samples is not None:
            status["sampled"] = self._samples.summary()
        if self._stacks:
            status["stacks"] = {"number": self._stacks, "threads": samples.stacks()}
        return status

    def _stuck_s(self, in_flight: int, arrivals: dict[str, Any]) -> float:
        if not in_flight:
            self._stuck_since = None
        elif self._stuck_since is None or self._stuck_since[0] != arrivals["calls"]:
            self._stuck_since = arrivals["calls"], arrivals["seconds"]
        return 0.0 if self._stuck_since is None else round(arrivals["seconds"] - self._stuck_since[1], 1)


class _Late:
    """For which rank this one waits lately, and since when."""

    def __init__(self) -> None:
        self._waits: dict[int, float] = {}
        self._seconds = 0.0
        self._lost_s = 0.0
        self._found: dict[str, Any] | None = None

    def now(self, arrivals: dict[str, Any], waits: dict[int, float]) -> dict[str, Any] | None:
        passed_s = arrivals["seconds"] - self._seconds
        lost_s = lost(arrivals)
        share = (lost_s - self._lost_s) / max(passed_s, 1e-9)
        new = {rank: wait - self._waits.get(rank, 0.0) for rank, wait in waits.items()}
        whole = sum(new.values())
        worst = max(new, key=new.__getitem__, default=None)
        self._waits, self._lost_s, self._seconds = dict(waits), lost_s, arrivals["seconds"]
        if worst is None or not whole or share < _LEAST_SHARE or new[worst] < _CLEAR * whole:
            self._found = None
            return None
        if self._found is None or self._found["rank"] != worst:
            since = {"since_step": arrivals["steps"], "since_s": arrivals["seconds"]}
            self._found = {"rank": worst, "share": 0.0, **since}
        self._found["share"] = round(share * new[worst] / whole, 4)
        return self._found


def lost(facts: dict[str, Any]) -> float:
    """Returns the seconds that this rank has lost by waiting for others. `facts`: arrivals, or a status.

    If the script itself waits in most steps, it is the time in which it was blocked: waits that are hidden behind its
    own work cost nothing. If threads of a framework wait, it is the time in which a call waited: the script may be
    blocked in each step, too, for the average of its losses or by the moment in which a handler of JAX waits.
    """
    waits_itself = not facts.get("framework_waits") and 2 * facts.get("blocked_times", 0) >= facts.get("steps", 0)
    return float(facts.get("blocked_for_ranks_s" if waits_itself else "waiting_s", 0.0))
