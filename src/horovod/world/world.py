# SPDX-License-Identifier: Apache-2.0
"""One generation as a rank sees it: what bootstrap.py has learnt and opened, for the native core and core/basics.py."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from horovod.world.agreed_sets import Places
from horovod.world.channel import ChannelError
from horovod.world.data_links import DataLinkOpener
from horovod.world.launchers.job import LaunchedJob
from horovod.world.links import Link
from horovod.world.rendezvous import Rendezvous
from horovod.world.start_watch import StartWatch
from horovod.world.topology import Identity

__all__ = ["LAUNCHERS_WORD_S", "World"]

LAUNCHERS_WORD_S = 1.0  # how much later the launcher may notice what ended a connection


@dataclasses.dataclass
class World:
    """One generation as this rank sees it. Owns the links' sockets and the rendezvous connection until `close`."""

    identity: Identity
    generation: int
    host_of_rank: list[int]  # equal numbers: these ranks share memory
    links: list[Link]
    transport: str  # the communicator that joins all ranks
    rendezvous: Rendezvous | None  # None: started without a launcher
    job: LaunchedJob | None = None  # if it was not horovodrun that has started the ranks
    has_mpi: bool = False  # mpi4py's MPI runs in this process
    comm: Any = None  # the communicator that init was given
    watch: StartWatch | None = None  # until the native core has started
    opener: DataLinkOpener | None = None  # while there may be data links
    process_sets: Places = dataclasses.field(default_factory=list)  # given to init, by place in its list
    peers: set[int] = dataclasses.field(default_factory=set)  # with which there may ever be data links

    def start_is_over(self) -> None:
        """The native core has started: from here on it notices the ends of ranks.

        A rendezvous that is not told takes this rank's later shutdown for a failed start.
        """
        if self.rendezvous is not None:
            with contextlib.suppress(ChannelError):  # the launcher, or rank 0, has ended: the engine will say so
                self.rendezvous.started(LAUNCHERS_WORD_S)

    def close_links(self) -> None:
        """Closes our links; called once the native core has started, which holds duplicates."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        for link in self.links:
            link.socket.close()
        self.links = []

    def start_failed(self) -> None:
        """The native core could not start. Closes all; then the other ranks hear of it."""
        self.close()
        if self.job is not None:
            self.job.start_failed()

    def close(self) -> None:
        self.close_links()
        if self.opener is not None:
            self.opener.close()
        if self.rendezvous is not None:
            self.rendezvous.close()
