# SPDX-License-Identifier: Apache-2.0
"""Which launcher started a process, by its environment: as it was recorded from each of them."""

from __future__ import annotations

import pytest

from horovod.core.exceptions import StartError
from horovod.settings import Settings
from horovod.world import launchers
from horovod.world.launchers.hydra import job_of_proxy
from horovod.world.network import machine

OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host0-16@1",
    "PMIX_RANK": "2",
}
OPEN_MPI_4 = {**OPEN_MPI_5, "PMIX_NAMESPACE": "120894", "OMPI_MCA_orte_hnp_uri": "120893.0;tcp://10.77.0.10:45781"}
INTEL = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "I_MPI_HYDRA_UUID": "19010000-2c53"}
SRUN = {
    "SLURM_CLUSTER_NAME": "test",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
}
PMI2 = {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_JOBID": "7.0"}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
}
# mpirun reaches other hosts by srun: there its processes have the variables of a step with one task a host.
BELOW_SRUN = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}


def recognised(environment: dict[str, str]) -> launchers.Started | None:
    settings = Settings.from_environment({**environment, "HOME": "/root", "PATH": "/bin"})
    assert not {"HOME", "PATH"} & set(settings.launch_environment)
    return launchers.recognise(settings.launch_environment)


@pytest.mark.parametrize(
    "environment, launcher, key, has_mpi",
    [
        (OPEN_MPI_5, "mpirun of Open MPI", "prterun-host0-16@1", True),
        (OPEN_MPI_4, "mpirun of Open MPI", "120894 120893.0;tcp://10.77.0.10:45781", True),
        ({**BELOW_SRUN, **OPEN_MPI_5}, "mpirun of Open MPI", "prterun-host0-16@1", True),
        (INTEL, "mpirun of MPICH or Intel MPI", "19010000-2c53", True),
        ({**BELOW_SRUN, **INTEL}, "mpirun of MPICH or Intel MPI", "19010000-2c53", True),
        (SRUN, "srun", "test 7 0", False),
        ({**SRUN, "SLURM_RESTART_COUNT": "1"}, "srun", "test 7 0 1", False),
        ({**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}, "srun", "test 7 0", True),
        ({**SRUN, **PMI2}, "srun", "test 7 0", True),
        (TORCHRUN, "torchrun", "none host0 29500 0", False),
        ({**SRUN, **PMI2, **TORCHRUN}, "torchrun", "none host0 29500 0", False),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, "torchrun", f"none host0 29500 0 {machine()}", False),
    ],
)
def test_a_launcher_is_recognised(environment: dict[str, str], launcher: str, key: str, has_mpi: bool) -> None:
    assert recognised(environment) == launchers.Started(launcher, 2, 4, key, has_mpi)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # a shell in salloc
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script
        {**SRUN, "SLURM_STEP_ID": "4294967291"},  # the same, with a newer Slurm
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun -n1
        {**OPEN_MPI_5, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"RANK": "2", "WORLD_SIZE": "4"},  # not known whose: init asks
    ],
)
def test_one_process_alone_is_nobodys_world(environment: dict[str, str]) -> None:
    assert recognised(environment) is None


def test_one_process_of_mpirun_inside_of_a_job_with_several_tasks_is_alone() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    one = {**OPEN_MPI_5, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}
    assert launchers.announced_world({**batch, **one}) is None
    assert launchers.announced_world({**batch, "PMIX_RANK": "0"}) == ("SLURM_NTASKS", "4")


def test_a_rank_that_cannot_be_is_an_error() -> None:
    with pytest.raises(StartError, match="^srun says that this is rank 4 of 4"):
        recognised({**SRUN, "SLURM_PROCID": "4"})


def test_mpich_is_told_apart_by_where_its_proxies_connect_to() -> None:
    proxy = b"/opt/mpich/bin/hydra_pmi_proxy\0--control-port\0host0:46173\0--rmk\0user\0--launcher\0ssh\0"
    assert job_of_proxy(proxy) == "host0:46173"
    assert job_of_proxy(proxy.replace(b"hydra_pmi_proxy", b"python")) == ""
    assert job_of_proxy(b"/opt/intel/bin/hydra_pmi_proxy\0--usize\0-1\0") == job_of_proxy(b"") == ""
