# SPDX-License-Identifier: Apache-2.0
"""A change to PyTorch for the backend: DistributedDataParallel's built-in hook of float16.

It is C++ and takes the futures of backends in C++ alone. PyTorch has the same hook in Python, which takes its place.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from horovod.torch.distributed.base import GroupBase

__all__ = ["apply"]

_register_builtin = DistributedDataParallel._register_builtin_comm_hook


def _register(model: Any, comm_hook_type: Any) -> None:
    if comm_hook_type != dist.BuiltinCommHookType.FP16_COMPRESS or not isinstance(model.process_group, GroupBase):
        _register_builtin(model, comm_hook_type)
        return
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model.register_comm_hook(model.process_group, fp16_compress_hook)


def apply() -> None:
    """Changes the method of all models; those of other backends are not affected."""
    DistributedDataParallel._register_builtin_comm_hook = _register
