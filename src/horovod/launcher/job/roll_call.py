# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a job are ready, and how to say so in one report. Pure: answers in, an address or a text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod import __version__
from horovod.core.exceptions import explain_command
from horovod.launcher.job.spec import Terms

__all__ = ["RollCall"]

_OF_HOROVODRUN = Terms()


class RollCall:
    """Collects the answers of all hosts. `addresses`: where the launcher can be reached, the best first.

    `called`: a host, or an agent that is one of several of its host, in texts.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        addresses: Sequence[str],
        called: Callable[[str], str] = "host {}".format,
        terms: Terms = _OF_HOROVODRUN,
    ) -> None:
        self.hosts = list(hosts)
        self._called = called
        self._terms = terms
        self.is_over = False  # the report was read
        self._problems: dict[str, list[tuple[str, str]]] = {host: [] for host in hosts}
        self._missing = set(hosts)
        self._addresses = list(addresses)
        self._unreached: dict[str, dict[str, str]] = {}

    @property
    def is_complete(self) -> bool:
        return not self._missing

    def is_awaited(self, host: str) -> bool:
        return host in self._missing

    def greets(self, host: str, version: Any) -> bool:
        """True if the agent on that host is of this version, so that it can be given orders."""
        if version == __version__:
            return True
        hint = f"install hvd {__version__} there, into the same Python"
        self.fails(host, f"has hvd {version}, but this host has {__version__}", hint)
        return False

    def answers(self, host: str, prepared: dict[str, Any]) -> None:
        """The event `prepared` of that host's agent (preparation.py)."""
        self._missing.discard(host)
        self._problems[host] += [(text, hint) for text, hint in prepared["problems"]]
        self._unreached[host] = {
            address: str(prepared["unreached"].get(address, "not tried"))
            for address in self._addresses
            if address not in prepared["reached"]
        }

    def fails(self, host: str, text: str, hint: str) -> None:
        """That host's agent will not answer, and why."""
        self._missing.discard(host)
        self._problems[host].append((text, hint))

    def is_late(self, host: str, seconds: float, said: str = "") -> None:
        """Gives up a host that has not answered. `said`: the output from before its agent could speak."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = f"; the last that came from it was: {lines[-1]}" if lines else ""
        hint = (
            "look on that host for a file system or a shell start file (~/.bashrc) that hangs, and end the hanging "
            f"process there; {self._terms.start_timeout} gives {self._terms.hosts} more time"
        )
        self.fails(host, f"did not answer within {seconds:g} s{last}", hint)

    def address(self) -> str | None:
        """The first of the addresses that every host reached."""
        return next((one for one in self._addresses if not any(one in why for why in self._unreached.values())), None)

    def reaches(self, host: str, address: str) -> bool:
        """True if that host has answered, and reached the launcher at `address`."""
        return host in self._unreached and address not in self._unreached[host]

    def report(self, then: str = "nothing was started") -> str | None:
        """All that is wrong, host by host; None if the job can start. `then`: what follows from it."""
        problems = {host: found for host, found in self._problems.items() if found}
        if not problems and self._addresses and self.address() is None:
            problems = self._unreachable()
        if not problems:
            return None
        count = len(self._problems)
        which = f"{self._called(self.hosts[0])} is"
        if count > 1:
            which = f"{len(problems)} of {count} {self._terms.hosts} are"
        lines = [f"{which} not ready; {then}"]
        for host, found in problems.items():
            for text, hint in found:
                lines += [f"  {host} {text}", f"    hint: {hint}"]
        return "\n".join([*lines, explain_command("hosts-not-ready")])

    def _unreachable(self) -> dict[str, list[tuple[str, str]]]:
        """No address works for all: what each host could not reach."""
        hint = (
            "all hosts must reach the same address of this host: choose a network with "
            f"{self._terms.interface}, or look for a firewall"
        )
        return {
            host: [("cannot reach this host at " + ", ".join(f"{one} ({text})" for one, text in why.items()), hint)]
            for host, why in self._unreached.items()
            if why
        }
