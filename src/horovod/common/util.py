# SPDX-License-Identifier: Apache-2.0
"""Old import name of helpers that some scripts took from Horovod; re-exports only."""

from horovod.core.legacy import (
    EXTENSIONS,
    ccl_built,
    check_extension,
    check_installed_version,
    ddl_built,
    extension_available,
    get_average_backwards_compatibility_fun,
    get_ext_suffix,
    get_extension_full_path,
    gloo_built,
    gpu_available,
    is_iterable,
    is_version_greater_equal_than,
    mpi_built,
    nccl_built,
    num_rank_is_power_2,
    split_list,
)
from horovod.core.settings import changed_environment as env

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]
