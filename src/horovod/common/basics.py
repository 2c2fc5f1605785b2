# SPDX-License-Identifier: Apache-2.0
"""Old import name of init, rank, size ... as methods; re-exports only."""

from horovod.core.legacy import MPI, HorovodBasics

__all__ = ["MPI", "HorovodBasics"]
