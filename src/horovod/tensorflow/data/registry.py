# SPDX-License-Identifier: Apache-2.0
"""The registry through which the parts of TensorFlow's data service find each other.

These are its dispatchers, its workers and the training ranks, which may be two jobs. No step of a gradient's way.

It is a rendezvous (world/rendezvous_server.py) with a separate key, which only the owner of the config file knows.
Each entry is written once, so a part that registers twice must say the same.

A worker asks its dispatcher for work, and asks again for as long as TensorFlow lets it, also while it stops. So workers
end before their dispatcher: it says that the end has come, and waits until they have stopped (`wait_for_workers_end`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.core.exceptions import InvalidRequestError
from horovod.core.wording import tell
from horovod.world.channel import AuthenticationError, ChannelError, ProtocolError
from horovod.world.network import interface_address
from horovod.world.rendezvous import Rendezvous
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.tunnel import Guard, Tunnel, process_tunnel

__all__ = ["ComputeClient", "ComputeService"]

_WAIT_S = 600.0  # one request's wait for the end
_BUSY_S = 60.0  # the registry may be in a process that keeps Python's lock while its servers stop


class ComputeService:
    """Listens from construction to `close`, on 127.0.0.1 or on each of `nics`. Any thread may call."""

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Sequence[str] | None = None
    ) -> None:
        hosts = {nic: interface_address(nic) for nic in nics or ()} or {"lo": "127.0.0.1"}
        if len(hosts) > 1:
            raise InvalidRequestError(f"nics={list(hosts)}: expected one network interface, which all can reach")
        ((self._nic, host),) = hosts.items()
        self._server = RendezvousServer(key, host)
        self._server.put("sizes", [dispatchers, workers_per_dispatcher])

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """(host, port) by network interface."""
        return {self._nic: [(self._server.address, self._server.port)]}

    def get_port(self) -> int:
        """The port."""
        return self._server.port

    def close(self) -> None:
        """Closes all connections."""
        self._server.close()


class ComputeClient:
    """A part's connection to the ComputeService.

    Methods block for at most their time limit and raise ChannelError if the service cannot be
    reached or has another key, IndexError for a number that the service has not, TimeoutError for what did not come in
    time. Use as a context, or close.
    """

    def __init__(
        self, compute_addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int = 1
    ) -> None:
        """Connects to the first address that answers. `verbose` is accepted."""
        found = [(host, port) for listed in compute_addresses.values() for host, port in listed]
        errors = []
        for host, port in found:
            self._rendezvous = Rendezvous(host, port, key)
            self._key = key
            try:
                self.dispatchers, self.workers_per_dispatcher = self._sizes()
                return
            except (AuthenticationError, ProtocolError):
                raise
            except ChannelError as error:
                errors.append(str(error))
        raise ChannelError(f"no compute service at {found}: {'; '.join(errors)}")

    def __enter__(self) -> ComputeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._rendezvous.close()

    def local_address(self) -> str:
        """This host's address on the way to the service, where others can reach this process' servers."""
        return self._rendezvous.local_address()

    def open_tunnel(self, dispatcher_id: int) -> Tunnel:
        """This process' tunnel, which leads to a dispatcher and to all of its workers. See world/tunnel.py."""
        workers = [f"worker/{worker}" for worker in self.workers_of(dispatcher_id)]
        names = [self.name_in_tunnel(part) for part in (f"dispatcher/{dispatcher_id}", *workers)]
        tunnel = process_tunnel()
        tunnel.open((self._rendezvous.address, self._rendezvous.port), self._key, names)
        return tunnel

    def start_server(
        self, dispatcher_id: int, part: str, start: Callable[[int], Any], timeout: float
    ) -> Callable[[], None]:
        """Starts a server of this process by `start(port)`. It is reachable through tunnels, and not otherwise.

        Returns a function that stops it. Starting, or stopping, ends this process if it takes more than `timeout`
        seconds: TensorFlow waits without a limit, and keeps Python's lock.
        """
        tunnel = self.open_tunnel(dispatcher_id)
        if part != f"dispatcher/{dispatcher_id}":  # the registry may be in this process, which is busy in `start`
            tunnel.find(self.name_in_tunnel(f"dispatcher/{dispatcher_id}"))
        name = self.name_in_tunnel(part)
        self._rendezvous.put(f"address/{name}", tunnel.listen(self.local_address(), self._key, name))
        what = f"horovod: {part} of the data service (process {os.getpid()}) did not"
        late = (
            f"within {timeout:g} s, as if its dispatcher were lost; the process is ended\nhint: start both jobs again"
        )
        try:
            with Guard() as guard:
                with tunnel.limited(timeout, f"{what} start {late}"):
                    server = start(guard.port)
                tunnel.serve(name, guard.port, guard.guarded())
        except BaseException:
            tunnel.close(name)
            raise

        def stop() -> None:
            nonlocal server
            with tunnel.limited(timeout, f"{what} stop {late}"):
                server.stop()
                server = None  # it stops the last of its threads when it is freed
            tunnel.close(name)

        return stop

    def name_in_tunnel(self, part: str) -> str:
        """The name of a dispatcher's or worker's socket, in which the key tells two compute jobs apart."""
        return f"{hashlib.sha256(self._key).hexdigest()[:16]}-{part.replace('/', '-')}"

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Says where a dispatcher listens. Raises ValueError if it was said to be elsewhere."""
        self._check("dispatcher", dispatcher_id, self.dispatchers)
        known = self._rendezvous.compare_and_set(f"dispatcher/{dispatcher_id}", dispatcher_address)
        if known != dispatcher_address:
            raise InvalidRequestError(
                f"dispatcher {dispatcher_id} is registered at {known} already, got {dispatcher_address}"
            )

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The dispatcher's address, waited for `timeout` seconds."""
        return self._dispatcher([f"dispatcher/{dispatcher_id}"], dispatcher_id, timeout)[0]

    def wait_for_dispatcher_or_end(self, dispatcher_id: int, timeout: float) -> str | None:
        """The dispatcher's address, waited for `timeout` seconds; None if it has ended, or shutdown() was called."""
        keys = [f"dispatcher/{dispatcher_id}", *_ends(dispatcher_id)]
        address, is_over = self._dispatcher(keys, dispatcher_id, timeout)
        return None if is_over else address

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that a worker is connected to its dispatcher. Workers are numbered through all dispatchers."""
        self._check("dispatcher", dispatcher_id, self.dispatchers)
        self._check("worker", worker_id, self.dispatchers * self.workers_per_dispatcher)
        self._rendezvous.compare_and_set(f"worker/{worker_id}", dispatcher_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits `timeout` seconds for all workers of a dispatcher."""
        self._check("dispatcher", dispatcher_id, self.dispatchers)
        wanted = self.workers_of(dispatcher_id)
        there = self._rendezvous.get_many([f"worker/{worker}" for worker in wanted], timeout)
        missing = [worker for worker in wanted if f"worker/{worker}" not in there]
        if missing:
            raise TimeoutError(
                f"workers {missing} of dispatcher {dispatcher_id} of the data service did not register within "
                f"{timeout} s"
            )

    def shutdown(self) -> None:
        """Ends wait_for_shutdown() everywhere, and so the compute job."""
        self._rendezvous.put("shutdown", True, _BUSY_S)

    def wait_for_shutdown(self) -> None:
        """Blocks until shutdown() has been called."""
        while self._rendezvous.get("shutdown", _WAIT_S) is None:
            pass

    def end_dispatcher(self, dispatcher_id: int) -> list[int]:
        """Ends wait_for_end() in the workers of a dispatcher, which is about to stop. Returns the registered ones."""
        self._rendezvous.put(f"end/{dispatcher_id}", True, _BUSY_S)
        workers = self.workers_of(dispatcher_id)
        there = self._rendezvous.get_many([f"worker/{worker}" for worker in workers])
        return [worker for worker in workers if f"worker/{worker}" in there]

    def wait_for_end(self, dispatcher_id: int) -> None:
        """Blocks until end_dispatcher() or shutdown() was called."""
        while not self._rendezvous.get_many(_ends(dispatcher_id), _WAIT_S, any_of=True):
            pass

    def say_worker_end(self, worker_id: int) -> None:
        """Says that a worker has stopped, or will not start."""
        self._rendezvous.put(f"ended/{worker_id}", True, _BUSY_S)

    def wait_for_workers_end(self, workers: Sequence[int], timeout: float) -> None:
        """Waits `timeout` seconds until the workers have stopped; says which have not, and returns all the same."""
        there = self._rendezvous.get_many([f"ended/{worker}" for worker in workers], timeout)
        late = [worker for worker in workers if f"ended/{worker}" not in there]
        if late:
            tell(
                f"horovod: warning: workers {late} of the data service did not stop within {timeout:g} s; their "
                "dispatcher ends without them"
            )

    def workers_of(self, dispatcher_id: int) -> range:
        """The numbers of a dispatcher's workers."""
        first = dispatcher_id * self.workers_per_dispatcher
        return range(first, first + self.workers_per_dispatcher)

    def _dispatcher(self, keys: list[str], dispatcher_id: int, timeout: float) -> tuple[str, bool]:
        """Its address, and whether another one of the keys is there. Raises TimeoutError if none of them comes."""
        self._check("dispatcher", dispatcher_id, self.dispatchers)
        found = self._rendezvous.get_many(keys, timeout, any_of=True)
        if not found:
            raise TimeoutError(
                f"dispatcher {dispatcher_id} of the data service did not register within {timeout} s\n"
                "hint: start the job that runs it, or give --timeout"
            )
        address = str(found.pop(f"dispatcher/{dispatcher_id}", ""))
        return address, bool(found)

    def _sizes(self) -> tuple[int, int]:
        match self._rendezvous.get("sizes"):
            case [int(dispatchers), int(workers)]:
                return dispatchers, workers
            case other:
                raise ProtocolError(f"the peer is not a compute service: it knows the sizes {other}")

    def _check(self, what: str, number: Any, count: int) -> None:
        if not 0 <= number < count:
            raise IndexError(f"{what} {number}: expected 0 to {count - 1}")


def _ends(dispatcher_id: int) -> list[str]:
    """Either of these keys ends a dispatcher's workers."""
    return ["shutdown", f"end/{dispatcher_id}"]
