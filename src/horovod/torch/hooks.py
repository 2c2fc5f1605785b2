# SPDX-License-Identifier: Apache-2.0
"""A communication hook: DistributedDataParallel on any backend averages its gradients with Horovod."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.futures import Future

from horovod.core.native import Average
from horovod.core.operations import TimeLimit
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch.tensors import collectives

__all__ = ["ddp_hook"]

_NO_LIMIT = TimeLimit(float(1 << 32), "{:g} s have passed".format)


def ddp_hook(process_set: ProcessSet | None, bucket: Any) -> Future[Tensor]:
    """Averages one bucket: `model.register_comm_hook(None, hvd.ddp_hook)`, with `model` a DistributedDataParallel.

    `bucket`: a torch.distributed.GradBucket. `process_set`: the ranks that the model is on; None: all. hvd.init() must
    have been called. The average is rounded once, as hvd.allreduce does.
    """
    from horovod.torch.distributed.work import OperationsWork  # torch can be built without torch.distributed

    gradients = bucket.buffer()
    how = (Average, None, 1.0, 1.0, process_set or global_process_set)
    work = OperationsWork([collectives.allreduce(gradients, None, how, True)], [gradients], _NO_LIMIT)
    return work.get_future().then(lambda done: done.value()[0])


ddp_hook.__annotations__ = {}  # torch compares them with its own classes, and these are texts
