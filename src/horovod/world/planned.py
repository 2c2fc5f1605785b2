# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a generation in a worker that joins a running elastic job, until it is in one.

The script asks for its rank and size while the others still train without it: it gets those that are planned for it.
Nothing that needs the others is possible yet.
"""

from __future__ import annotations

from typing import NoReturn

from horovod.core.exceptions import NotInitializedError
from horovod.settings import Settings
from horovod.world.topology import identity_of
from horovod.world.world import World

__all__ = ["Planned"]


class Planned:
    """Has the places of a Context (context.py), and no operations."""

    running = False

    def __init__(self, settings: Settings) -> None:
        identity, _ = identity_of(settings, None)
        self._worker = settings.worker
        self.rank, self.size = identity.rank, identity.size
        self.world = World(
            identity,
            generation=0,
            host_of_rank=[*[0] * identity.local_size, *range(1, 1 + identity.size - identity.local_size)],
            links=[],
            transport="loopback",
            rendezvous=None,
        )

    def place(self, process_set: int) -> tuple[int, int]:
        """See Context.place. Which other sets there will be is not known."""
        if process_set:
            self.raise_too_early()
        return self.size, self.rank

    def settle(self) -> None:
        """Nothing was launched."""

    def stop(self) -> None:
        """Nothing has started."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.raise_too_early()

    def raise_too_early(self) -> NoReturn:
        raise NotInitializedError(
            f"worker {self._worker} joins a running job and is in no world yet\n"
            "hint: call operations only inside the function that is decorated with hvd.elastic.run, and put into its "
            "state what you used to broadcast before it"
        )
