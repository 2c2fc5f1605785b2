# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on Horovod's core: `torch.distributed.init_process_group("hvd")`.

From torch 2.5 on, `import torch` registers the backend by itself (horovod_torch_backend); importing this package does
so otherwise. A call of torch.distributed becomes one operation of the core:

    names.py       the methods of a process group under all names that torch has given them
    group.py       a process group: who is in it, and the collectives
    lists.py       ... those that take lists of tensors
    peers.py       ... send and receive
    reduce_ops.py  torch's reduce operations as ours
    memory.py      tensors as the flat memory that operations read and write
    work.py        work and futures, which calls return
    threads.py     the threads that complete futures
    errors.py      our errors as torch's
    patches.py     changes to DistributedDataParallel
    start.py       the start of Horovod from torch's store, and torch's store from Horovod
"""

from horovod.torch.distributed import patches
from horovod.torch.distributed.errors import BackendError
from horovod.torch.distributed.group import HorovodProcessGroup
from horovod_torch_backend import register

__all__ = ["BackendError", "HorovodProcessGroup"]

patches.apply()
register()
