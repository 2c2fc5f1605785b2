# SPDX-License-Identifier: Apache-2.0
"""mpirun of Open MPI 4 and 5."""

from __future__ import annotations

from horovod.world.launchers.base import Environment, Started, numbers

__all__ = ["recognise"]


def recognise(environment: Environment) -> Started | None:
    """The job's name is that of PMIx; Open MPI 4 makes it of a few bits, so its mpirun's address is added."""
    found = numbers(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if found is None:
        return None
    parts = [environment.get(name, "") for name in ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")]
    return Started("mpirun of Open MPI", *found, key=" ".join(filter(None, parts)), has_mpi=True)
