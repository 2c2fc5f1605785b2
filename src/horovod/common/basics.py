# SPDX-License-Identifier: Apache-2.0
"""Old import name of init, rank, size ... as methods. No step of a gradient's way; nothing of ours uses it."""

from __future__ import annotations

from typing import Any

from horovod.core import basics

__all__ = ["MPI", "HorovodBasics"]


class MPI:
    """Horovod's substitute for mpi4py.MPI if that is missing: nothing is an instance of its communicator."""

    class Comm:
        """See MPI."""


class HorovodBasics:
    """The functions of core/basics.py as methods.

    `pkg_path` and what follows named Horovod's compiled extension; they are not used.
    """

    def __init__(self, pkg_path: str, *args: Any) -> None:
        pass


for _name in basics.__all__:
    setattr(HorovodBasics, _name, staticmethod(getattr(basics, _name)))
