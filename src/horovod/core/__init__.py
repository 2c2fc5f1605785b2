# SPDX-License-Identifier: Apache-2.0
"""The meaning of operations, once for all frameworks; imports no framework.

`import horovod.core as hvd` is also the package for programs that have NumPy arrays and no framework: init, rank, size
and all operations. They are loaded when first used, so that the launcher, which needs the settings only, stays light.
"""

from __future__ import annotations

import importlib
from typing import Any

from horovod.core.temporary_files import share_job_directory

share_job_directory()

_BASICS = (
    "init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous statistics "
    "start_timeline stop_timeline "
    "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built "
    "rocm_built"
)
_OPERATIONS = (
    "allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async "
    "grouped_allreduce_ grouped_allreduce_async_ "
    "allgather allgather_async grouped_allgather grouped_allgather_async alltoall alltoall_async "
    "reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async "
    "broadcast broadcast_async broadcast_ broadcast_async_ barrier "
    "send send_async recv recv_async"
)
_ARRAYS = "horovod.core.arrays"
_HOME = {
    _ARRAYS: _OPERATIONS,
    "horovod.core.basics": _BASICS,
    "horovod.core.operations": "poll synchronize",
    "horovod.core.objects": "broadcast_object allgather_object",
    "horovod.core.native": "Average Sum Adasum Min Max Product BitAnd BitOr BitXor",
    "horovod.core.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "horovod.core.joining": "join uneven_data",
    "horovod.core.exceptions": "HorovodInternalError",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        from horovod.core.missing import attribute

        return attribute(__name__, name)
    owner: Any = importlib.import_module(module)
    value = getattr(owner.operations if module == _ARRAYS else owner, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
