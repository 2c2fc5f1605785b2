# SPDX-License-Identifier: Apache-2.0
"""Which hosts an elastic job may use, and with how many slots: asked again and again while the job runs.

HostDiscovery is what users and platforms subclass. A Poller asks one, for the launcher. Nothing here decides anything:
a host that has failed, or that is one too many, is listed all the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from horovod.core.wording import on_one_line, shown

__all__ = ["DiscoveryError", "FixedHosts", "HostDiscovery", "HostDiscoveryScript", "Hosts", "Poller", "asked"]

# Every host with the number of its slots.
Hosts = tuple[tuple[str, int], ...]

SCRIPT_LIMIT_S = 10.0
_LONGEST_OUTPUT = 1 << 20  # bytes
# A name that begins with a dash would be a flag to ssh.
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_.][A-Za-z0-9_.-]*)(?::(?P<slots>[0-9]{1,6}))?")
_END_WAIT_S, _END_TRIES = 1.0, 20
# By the exit codes of a shell.
_HINTS = {126: "\nhint: chmod +x makes it executable", 127: "\nhint: give its path, as in ./discover_hosts.sh"}


class DiscoveryError(RuntimeError):
    """The hosts cannot be found out now."""


class HostDiscovery:
    """Where an elastic job learns of its hosts. A subclass has find_available_hosts_and_slots()."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts that may be used now, each with its number of slots.

        Called again and again (HOROVOD_ELASTIC_DISCOVERY_SECONDS after its last answer). It may block.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Ends a question that is under way, from another thread. Does nothing by default."""


class FixedHosts(HostDiscovery):
    """Hosts that are given beforehand; set() gives others."""

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._host_slots = dict(host_slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._host_slots)

    def set(self, host_slots: Mapping[str, int]) -> None:
        """From now on there are these hosts."""
        self._host_slots = dict(host_slots)


class HostDiscoveryScript(HostDiscovery):
    """A script, or a command line, that prints a line for each host: `name:slots`, or `name`.

    `slots`: of a host whose line says no number; None: that is an error. The script gets no input and has 10 s. Then it
    is killed, with all that it has started. Raises DiscoveryError if it fails, hangs or prints anything else.
    """

    def __init__(self, discovery_script: str, slots: int | None, limit_s: float = SCRIPT_LIMIT_S) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return parse(self._run(), self._default_slots, str(self))

    def end(self) -> None:
        process = self._process
        if process is not None:
            _kill(process)

    def __str__(self) -> str:
        return f"the host discovery script {on_one_line(self._discovery_script)}"

    def _run(self) -> str:
        # Files, not pipes: a process that the script leaves behind would hold a pipe open.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = self._started(output, errors)
            try:
                code = process.wait(self._limit_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.wait()
                raise DiscoveryError(
                    f"{self} did not end within {self._limit_s:g} s, and was killed{_said(errors)}"
                ) from None
            finally:
                self._process = None
            if code != 0:
                how = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
                raise DiscoveryError(f"{self} {how}{_said(errors)}{_HINTS.get(code, '')}")
            return _text(output)

    def _started(self, output: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        script = self._discovery_script
        # A file's name may have spaces; anything else is a command line.
        line = f"exec {shlex.quote(os.path.abspath(script))}" if os.path.isfile(script) else script
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", line],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise DiscoveryError(f"{self} cannot be run: {error.strerror}") from error
        return self._process


def parse(output: str, default_slots: int | None, source: str) -> dict[str, int]:
    """The hosts of a script's output; one with 0 slots is left out. Raises DiscoveryError that quotes the line."""
    hosts: dict[str, int] = {}
    for number, line in enumerate(output.splitlines(), 1):
        entry = line.strip()
        if not entry:
            continue
        where = f"{source} printed {shown(entry)} in line {number}"
        found = _LINE.fullmatch(entry)
        if found is None:
            raise DiscoveryError(f"{where}, which is not a host\nhint: a line for each host: name:slots, and no others")
        if found["slots"] is None and default_slots is None:
            raise DiscoveryError(
                f"{where}: the number of slots is missing\nhint: print name:slots, or give --slots-per-host"
            )
        slots = int(found["slots"] or default_slots or 0)
        if hosts.setdefault(found["name"], slots) != slots:
            raise DiscoveryError(f"{where}, but {hosts[found['name']]} slots for this host further up")
    return {name: slots for name, slots in hosts.items() if slots > 0}


def asked(discovery: HostDiscovery) -> Hosts:
    """The hosts that discovery finds now, checked. Raises DiscoveryError, also for any error of a subclass."""
    what = f"{type(discovery).__name__}.find_available_hosts_and_slots()"
    try:
        found: Any = discovery.find_available_hosts_and_slots()
    except DiscoveryError:
        raise
    except Exception as error:
        raise DiscoveryError(f"{what} raised {type(error).__name__}: {error}") from error
    pairs: list[tuple[Any, Any]] = list(found.items()) if isinstance(found, Mapping) else [(None, None)]
    for name, slots in pairs:
        is_host = isinstance(name, str) and _LINE.fullmatch(name) and ":" not in name
        if not is_host or not isinstance(slots, int) or isinstance(slots, bool) or slots < 0:
            raise DiscoveryError(
                f"{what} returned {shown(found)}: expected a dict from the names of hosts to their numbers of slots"
            )
    return tuple((name, slots) for name, slots in pairs if slots > 0)


class Poller:
    """Asks a discovery again and again, and tells when its hosts have changed.

    changed(hosts): called on the poller's thread if they are others than before, in whatever order they are listed.
    warn(text): called there when they cannot be found out (once, until the reason is another one), and when they can be
    again. The last hosts stay until then.
    """

    def __init__(
        self,
        discovery: HostDiscovery,
        interval_s: float,
        changed: Callable[[Hosts], Any],
        warn: Callable[[str], Any],
    ) -> None:
        self._discovery = discovery
        self._interval_s = interval_s
        self._changed = changed
        self._warn = warn
        self._hosts: Hosts = ()
        self._problem = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="horovod-discovery", daemon=True)

    def start(self) -> Hosts:
        """The hosts to begin with, asked on this thread. Raises DiscoveryError; otherwise goes on asking."""
        hosts = self._hosts = asked(self._discovery)
        self._thread.start()
        return hosts

    def stop(self) -> None:
        """Asks no more. Blocks for at most a second, if a subclass' question does not end."""
        self._is_over.set()
        for _ in range(_END_TRIES):
            if not self._thread.is_alive():
                return
            self._discovery.end()  # again: it may only be about to begin
            self._thread.join(_END_WAIT_S / _END_TRIES)

    def _poll(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self._ask()

    def _ask(self) -> None:
        try:
            hosts = asked(self._discovery)
        except DiscoveryError as error:
            if str(error) != self._problem and not self._is_over.is_set():
                self._problem = str(error)
                self._warn(f"{error}\nthe hosts that were listed last stay; the next try is in {self._interval_s:g} s")
            return
        if self._problem:
            self._problem = ""
            self._warn("the hosts can be found out again")
        if dict(hosts) != dict(self._hosts) and not self._is_over.is_set():
            self._hosts = hosts
            self._changed(hosts)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process' group: whatever the script has started, too."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LONGEST_OUTPUT).decode(errors="replace")


def _said(errors: IO[bytes]) -> str:
    """The last line of what it wrote to stderr, as the end of a sentence."""
    lines = [line.strip() for line in _text(errors).splitlines() if line.strip()]
    return f": {shown(lines[-1])}" if lines else ""
