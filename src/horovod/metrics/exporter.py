# SPDX-License-Identifier: Apache-2.0
"""Exports the metrics of one generation: a thread serves them, and writes the file.

The thread is there from init to shutdown. It answers one client at a time, and gives each CLIENT_S: the port may be
reached by strangers. Nothing that goes wrong here ends the training; it is a warning.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from horovod.metrics import http, series, text
from horovod.metrics.series import Place, Totals
from horovod.settings import Settings
from horovod.world import forks
from horovod.world.files.places import ForeignPathError
from horovod.world.files.whole import write_whole
from horovod.world.world import World

__all__ = ["Exporter", "hint_for_file", "hint_for_port"]

CLIENT_S = 2.0
_BEGINS = b"# HELP horovod_"  # a file
_DEAD_AFTER = 8  # intervals without a new file
CLOSE_S = 5.0  # more than a client may take

_log = logging.getLogger("horovod")
_left = Totals()  # of the generations that this process has left


class Exporter:
    """Begins when it is made. `close` is for the same process: a forked child has no thread, and closes nothing."""

    def __init__(self, settings: Settings, world: World, statistics: Callable[[], Mapping[str, Any]]) -> None:
        identity = world.identity
        self._place = Place(
            rank=identity.rank,
            size=identity.size,
            local_rank=identity.local_rank,
            local_size=identity.local_size,
            host=socket.gethostname() if settings.hostname in ("", "localhost") else settings.hostname,
            generation=world.generation,
            transport=world.transport,
            worker=settings.worker,
        )
        self._settings, self._statistics = settings, statistics
        self._started_s = time.time()
        self._warned: set[str] = set()
        self._path = settings.metrics_file.replace("{rank}", str(identity.rank))
        self._listener: socket.socket | None = None
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            forks.close_in_forked_child(end)
        self._listen()
        self._write()
        self._thread = threading.Thread(target=self._run, name="horovod-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and removes the file. The generation still runs."""
        global _left
        self._wake.close()
        self._thread.join(CLOSE_S)
        with contextlib.suppress(OSError):
            if self._path:
                os.unlink(self._path)
        _left = _left.plus(self._statistics())

    def _run(self) -> None:
        due_s = self._settings.metrics_interval_s
        next_s = time.monotonic() + due_s
        while True:
            waits_for = [self._woken, *([self._listener] if self._listener is not None else [])]
            ready = _readable(waits_for, next_s - time.monotonic())
            if self._woken in ready:
                break
            if ready:
                self._answer()
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + due_s
                self._listen()
                self._write()
                self._remove_files_of_the_dead()
        if self._listener is not None:
            self._listener.close()
        self._woken.close()

    # over HTTP

    def _listen(self) -> None:
        """Opens the port. If that fails, the next try comes with the next interval: a rank that ends may have it."""
        if self._settings.metrics_port is None or self._listener is not None:
            return
        address, port = self._settings.metrics_address, self._settings.metrics_port + self._place.local_rank
        try:
            # Given to getaddrinfo, a port over 65535 would become another one.
            family, *_, found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._listener = socket.create_server((found[0], port), family=family)
        except (OSError, OverflowError) as error:
            self._warn(f"serves no metrics at {address}:{port}: {_reason(error)}", hint_for_port(error))
            return
        self._listener.setblocking(False)
        forks.close_in_forked_child(self._listener)

    def _answer(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # a client that has gone
            connection, _ = forks.accept(self._listener)
            with connection:
                request = self._request(connection)
                if request is not None:
                    connection.settimeout(CLIENT_S)
                    connection.sendall(http.answer_to(request, self._text))

    def _request(self, connection: socket.socket) -> bytes | None:
        """Reads up to an empty line. Returns None if that takes too long, or this rank leaves meanwhile."""
        connection.setblocking(False)
        deadline_s = time.monotonic() + CLIENT_S
        request = b""
        while b"\r\n\r\n" not in request and len(request) < http.LONGEST_REQUEST:
            if _readable([connection, self._woken], deadline_s - time.monotonic()) != {connection}:
                return None
            more = connection.recv(http.LONGEST_REQUEST)
            if not more:
                return None
            request += more
        return request

    # to the file

    def _write(self) -> None:
        if not self._path:
            return
        try:
            write_whole(self._path, self._text(False))
        except OSError as error:
            self._warn(f"writes no metrics to {self._path}: {error.strerror or error}", hint_for_file(error))

    def _remove_files_of_the_dead(self) -> None:
        """Removes files of ranks that were killed, which node exporter would serve for ever.

        Each rank does so, as any may be the last on its host. Ages are by the file system's clock.
        """
        pattern = self._settings.metrics_file
        with contextlib.suppress(OSError):
            now_s = os.stat(self._path).st_mtime
            for path in glob.iglob("[0-9]*".join(map(glob.escape, pattern.split("{rank}")))):
                rank = re.fullmatch(r"(\d+)".join(map(re.escape, pattern.split("{rank}", 1))), path)
                if rank is None or path == self._path or not os.path.isfile(path):
                    continue
                is_old = now_s - os.stat(path).st_mtime > _DEAD_AFTER * self._settings.metrics_interval_s
                if is_old and _is_ours(path):
                    os.unlink(path)

    def _text(self, in_open_metrics: bool) -> str:
        facts = self._statistics()
        rows = series.samples(self._place, self._started_s, facts, _left.plus(facts))
        return text.in_open_metrics(rows) if in_open_metrics else text.in_plain_text(rows)

    def _warn(self, what: str, hint: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("horovod: warning: rank %d %s\nhint: %s", self._place.rank, what, hint)


def hint_for_port(error: Exception) -> str:
    """Return what to do if the address and port cannot be opened."""
    if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
        return "set HOROVOD_METRICS_ADDRESS to an address of this host, or to 0.0.0.0 for all of them"
    return "set HOROVOD_METRICS_PORT to another port: each rank uses this port plus its local rank"


def hint_for_file(error: OSError) -> str:
    """Return what to do if HOROVOD_METRICS_FILE cannot be written."""
    if isinstance(error, ForeignPathError):
        return "put HOROVOD_METRICS_FILE into a folder where only the job's user can write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on the disk of HOROVOD_METRICS_FILE; the rank tries again"
    return "make the folder of HOROVOD_METRICS_FILE on each host, writable for the job's user"


def _is_ours(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_BEGINS)) == _BEGINS


def _readable(sockets: list[socket.socket], timeout_s: float) -> set[socket.socket]:
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLIN)
    by_number = {one.fileno(): one for one in sockets}
    return {by_number[number] for number, _ in poll.poll(max(0.0, timeout_s) * 1000)}


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(error)  # an error of getaddrinfo has a negative number


def _forget() -> None:
    """A forked child that starts Horovod itself has counted nothing yet."""
    global _left
    _left = Totals()


os.register_at_fork(after_in_child=_forget)
