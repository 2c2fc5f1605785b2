# SPDX-License-Identifier: Apache-2.0
"""An elastic job on Ray: each worker is an actor, which lives for one call of the function.

One loop, on the caller's thread: it tells the driver (elastic/drive/driver.py) what happens to actors and nodes, and
carries out its orders.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from horovod.core.exceptions import explain_command, named
from horovod.elastic.decide.cooldown import Cooldown
from horovod.elastic.decide.job import BLAME_HOST, BLAME_WORKER, SCRIPT, SUCCESS, Rules
from horovod.elastic.drive.discovery import HostDiscovery, Hosts, Poller
from horovod.elastic.drive.driver import Driver, Limits
from horovod.elastic.messages import Worker
from horovod.elastic.words import WordError, unpacked_report
from horovod.ray.coordinator import Orders
from horovod.ray.utils import nics_to_env_var, setting_of
from horovod.ray.watch import GRACE_S, RankTraceback, cause_of, first_lines
from horovod.ray.worker import STOPPED, RankWorker
from horovod.settings import Settings, environment_of
from horovod.world.network import interface_address
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import new_secret
from horovod.world.topology import Identity

__all__ = ["ElasticRun", "Plan"]

_LOOK_S = 0.05
# If the script is wrong, all workers raise, and this tells its error from that of one worker. So the end of the first
# waits for the others: ten looks, chosen and not measured.
_RAISED_S = 0.5
_log = logging.getLogger("horovod")


@dataclasses.dataclass(frozen=True)
class Plan:
    """An elastic job. Raises ValueError if the numbers do not fit. `most`: workers in a world; None: all that fit."""

    settings: Any
    discovery: HostDiscovery
    least: int
    most: int | None
    cpus: float
    gpus: float
    elastic_timeout_s: float
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise ValueError(
                f"min_workers={self.least}, max_workers={self.most}: expected 1 <= min_workers <= max_workers"
            )

    def rules(self, own: Settings) -> Rules:
        return Rules(
            np=self.least,
            min_np=self.least,
            max_np=self.most,
            reset_limit=self.reset_limit,
            blame=BLAME_HOST if own.elastic_blame == "host" else BLAME_WORKER,
            cooldown=self.cooldown_range is not None,
            restart=own.elastic_state_loss == "restart",
            settle=own.elastic_settle_s > 0,
        )

    def limits(self, own: Settings) -> Limits:
        cooldown = None if self.cooldown_range is None else Cooldown.of(*self.cooldown_range)
        return Limits(
            slots_s=self.elastic_timeout_s,
            straggler_s=own.elastic_straggler_s,
            settle_s=own.elastic_settle_s,
            start_s=float(setting_of(self.settings, "timeout_s", 300)),
            join_s=own.elastic_join_s,
            cooldown=(lambda _: None) if cooldown is None else cooldown.seconds,
            start_name="timeout_s",
        )


@dataclasses.dataclass
class _Actor:
    worker: Worker
    handle: Any
    ref: Any
    why_killed: str = ""
    end_at: float | None = None  # when it is killed: it was told to stop


class ElasticRun:
    """One call of a function as an elastic job; see LauncherPort in elastic/drive/driver.py."""

    def __init__(self, plan: Plan, call: tuple[Any, ...], queue: Any = None) -> None:
        """`call`: the arguments of RankWorker.call_elastic but the first two. `queue`: of ray_logger."""
        self._plan, self._call, self._queue = plan, call, queue
        self._secret = new_secret()
        self._interfaces = nics_to_env_var(setting_of(plan.settings, "nics", None))
        names = next(iter(self._interfaces.values()), "")
        address = interface_address(names) if names else ray.util.get_node_ip_address()
        self._server = RendezvousServer(self._secret, address, notices_ends=True)
        own = Settings.from_environment()
        self._driver = Driver(plan.rules(own), plan.limits(own), self, self._server)
        self._calls: collections.deque[Callable[[], None]] = collections.deque()  # from other threads, for this one
        self._server.listen(lambda worker, word: self._calls.append(lambda: self._on_word(worker, word)))
        self._poller = Poller(plan.discovery, own.elastic_discovery_s, self._on_hosts, self.tell)
        self._actors: dict[int, _Actor] = {}
        self._results: dict[int, Any] = {}
        self._errors: dict[int, tuple[Exception, str]] = {}  # with the traceback
        self._late: list[tuple[float, Callable[[], None]]] = []  # when the driver hears of these ends
        self._outcome: tuple[str, str] | None = None

    def results(self, look: Callable[[], None]) -> list[Any]:
        """Runs the job; the results of the last world by rank. Raises the error that has ended it.

        `look` is called again and again meanwhile.
        """
        try:
            self._driver.list_hosts(self._poller.start())
            while self._outcome is None or self._actors or self._late:
                while self._calls:
                    self._calls.popleft()()
                self._driver.on_time()
                self._on_time(time.monotonic())
                by_ref = {actor.ref: number for number, actor in self._actors.items()}
                for ref in ray.wait(list(by_ref), timeout=_LOOK_S)[0] if by_ref else []:
                    self._ended(by_ref[ref])
                if not by_ref:
                    time.sleep(_LOOK_S)
                look()
        finally:
            self._poller.stop()
            for actor in self._actors.values():
                ray.kill(actor.handle)
            self._server.close()
        return self._conclusion()

    def _conclusion(self) -> list[Any]:
        assert self._outcome is not None
        outcome, text = self._outcome
        job = self._driver.job
        if outcome == SUCCESS and job.record is not None:
            return [self._results.get(member.number) for member in job.record.members]
        raisers = [number for number, _, _ in job.raised if number in self._errors]
        if outcome == SCRIPT and raisers:
            error, trace = self._errors[raisers[0]]
            raise error from RankTraceback(f"worker {raisers[0]}:\n{trace}")
        last = next(reversed(self._errors), None)
        cause = None if last is None else RankTraceback(f"worker {last}:\n{self._errors[last][1]}")
        raise RuntimeError(f"the elastic job has ended: {text}\n{explain_command(outcome)}") from cause

    # what happens

    def _on_hosts(self, hosts: Hosts) -> None:
        """On the poller's thread."""
        self._calls.append(lambda: self._driver.list_hosts(hosts))

    def _on_word(self, worker: int, word: Any) -> None:
        try:
            self._driver.reports(unpacked_report(word, worker))
        except WordError as error:
            self.tell(f"worker {worker} sent a message that cannot be read: {error}")

    def _ended(self, number: int) -> None:
        actor = self._actors.pop(number)
        how, well, error = "ended", True, ""
        try:
            value = ray.get(actor.ref)
            if not isinstance(value, str) or value != STOPPED:
                self._results[number] = value
        except RayTaskError as task_error:
            cause = cause_of(task_error, f"worker {number}")
            self._errors[number] = cause, str(task_error)
            how, well, error = "raised an exception", False, named(cause).partition("\n")[0]
        except RayError as lost:
            how, well = actor.why_killed or f"was lost: {first_lines(lost)}", False
        with contextlib.suppress(RayError):
            ray.kill(actor.handle)
        heard_at = time.monotonic() + (_RAISED_S if error else 0.0)
        self._late.append((heard_at, lambda: self._driver.worker_ended(number, how, well, error)))

    def _on_time(self, now: float) -> None:
        late, self._late = self._late, [one for one in self._late if one[0] > now]
        for heard_at, hear in late:
            if heard_at <= now:
                hear()
        for number, actor in self._actors.items():
            if actor.end_at is not None and actor.end_at <= now and not actor.why_killed:
                self.kill(number, "was ended: it was told to stop")

    # LauncherPort

    def start(self, worker: Worker, planned: Identity, joins: bool) -> None:
        environment = environment_of(
            **dataclasses.asdict(planned),
            hostname=worker.host,
            elastic=True,
            worker=worker.number,
            joins=joins or None,
            rendezvous_address=self._server.address,
            rendezvous_port=self._server.port,
        )
        orders = Orders({**self._plan.environment, **self._interfaces, **environment}, self._secret)
        handle = (
            ray.remote(concurrency_groups={"control": 1})(RankWorker)
            .options(num_cpus=self._plan.cpus, num_gpus=self._plan.gpus, resources={f"node:{worker.host}": 0.001})
            .remote(planned.rank, planned.size, f"worker {worker.number}")
        )
        devices = (worker.slot, self._gpus_of(worker.host)) if self._plan.gpus else None
        ref = handle.call_elastic.remote(orders, self._queue, devices, *self._call)
        self._actors[worker.number] = _Actor(worker, handle, ref)

    def kill(self, number: int, why: str) -> None:
        actor = self._actors.get(number)
        if actor is not None:
            actor.why_killed = why
            ray.kill(actor.handle)

    def see_off(self, number: int) -> None:
        actor = self._actors.get(number)
        if actor is not None and actor.end_at is None:
            actor.end_at = time.monotonic() + GRACE_S

    def over(self, outcome: str, text: str) -> None:
        self._outcome = outcome, text
        if outcome != SUCCESS:
            for number in self._actors:
                self.see_off(number)

    def tell(self, text: str) -> None:
        _log.warning("horovod: %s", text)

    def _gpus_of(self, host: str) -> int:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == host]
        return int(sum(node["Resources"].get("GPU", 0) for node in nodes))
