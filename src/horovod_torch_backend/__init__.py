# SPDX-License-Identifier: Apache-2.0
"""Tells torch.distributed of the backend "hvd". PyTorch calls `register` at the end of `import torch`.

It is the entry point `torch.backends` of pyproject.toml. A package of its own, because every `import torch` pays for
it: it imports nothing, and `horovod` only when a script asks for the backend. Whatever torch lacks, it does not raise.
"""

import os
import sys
from typing import Any

__all__ = ["register"]


def register() -> None:
    """Registers the backend if torch.distributed is there. A second call does nothing."""
    distributed = sys.modules.get("torch.distributed")
    backend = getattr(distributed, "Backend", None)  # torch can be built without
    if backend is None or "hvd" in getattr(backend, "backend_list", ("hvd",)):
        return
    backend.register_backend("hvd", _create, extended_api=True, devices=["cpu", "cuda"])
    schemes = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", None)
    if schemes is not None and "env" in schemes:
        schemes["env"] = _OfJob(schemes["env"])


def _create(options: Any, _: Any) -> Any:
    from horovod.torch.distributed.start import create

    return create(options)


class _OfJob:
    """init_method="env://", but that a job needs no MASTER_ADDR if Horovod knows its ranks."""

    def __init__(self, of_torch: Any) -> None:
        self.of_torch = of_torch

    def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
        if "MASTER_ADDR" not in os.environ:
            from horovod.torch.distributed.start import store_of_job

            found = store_of_job()
            if found is not None:
                start, variables = found
                for name, value in variables.items():  # tools such as Accelerate look at them
                    os.environ.setdefault(name, value)
                return iter([start])
        return self.of_torch(url, *args, **kwargs)
