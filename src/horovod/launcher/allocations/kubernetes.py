# SPDX-License-Identifier: Apache-2.0
"""Kubernetes: the hostfile that the MPI operator gives to a launcher's pod, in Open MPI's format or Hydra's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horovod.launcher.allocations.base import Allocation, hosts_of_file

__all__ = ["find"]

# As the operator tells them to Open MPI 4, Open MPI 5, MPICH and Intel MPI.
_FILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
_USUAL = "/etc/mpi/hostfile"


def find(environment: Mapping[str, str]) -> Allocation | None:
    """None outside of a pod: there, these variables are the user's own defaults for mpirun."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return None
    source = next((name for name in _FILES if environment.get(name)), None)
    if source is None and not os.path.isfile(_USUAL):
        return None
    hosts = hosts_of_file(environment[source] if source else _USUAL, source or "the MPI operator's file")
    rsh_agent = environment.get("OMPI_MCA_plm_rsh_agent", "")
    return Allocation("Kubernetes", source or _USUAL, hosts, "rsh-agent" if rsh_agent else "")
