# SPDX-License-Identifier: Apache-2.0
"""hvd.DistributedOptimizer and PartialDistributedOptimizer for Keras (steps 1 and 2 of a gradient's way)."""

from __future__ import annotations

import functools
from typing import Any

from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.gradients.lists import local_variables
from horovod.gradients.options import ReductionOptions
from horovod.keras import backends
from horovod.keras.compression import Compression
from horovod.keras.distributed import Keras3, distributed_by, is_distributed, mixin_of, reducing
from horovod.keras.patches import accept_old_arguments, watch_compile_of_tf_keras

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "distributed"]

accept_old_arguments()


def distributed(optimizer: Any, options: ReductionOptions) -> Any:
    """Makes `optimizer` distributed, in place, and returns it."""
    mixin = mixin_of(reducing(optimizer))
    if is_distributed(optimizer):
        raise InvalidRequestError(f"DistributedOptimizer: this {type(optimizer).__name__} is distributed already")
    if options.is_adasum and getattr(optimizer, "use_ema", False):
        raise InvalidRequestError(
            "DistributedOptimizer: op=Adasum with use_ema=True: the averages over time would be each rank's own\n"
            "hint: use op=Average"
        )
    if issubclass(mixin, Keras3):
        backend = backends.current()
    else:
        backend = backends.named("tensorflow")
        watch_compile_of_tf_keras()
    gradients = backend.gradient_list(options, "DistributedOptimizer")
    passes = backend.accumulation(options) if options.backward_passes_per_step > 1 else None
    again = functools.partial(distributed, options=options)
    parts = {"_hvd_gradients": gradients, "_hvd_accumulation": passes, "_hvd_again": again}
    distributed_by(reducing(optimizer), parts)
    return optimizer


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Makes a Keras optimizer average gradients over the ranks before it applies them, and returns it.

    Its slots and iterations stay. groups: a number of groups, or lists of variables, whose gradients are reduced as
    one; num_groups is its old name.
    """
    return distributed(optimizer, ReductionOptions.among(locals()))


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer distributed, but leaves the variables of `local_layers` local.

    local_layers: a built layer or a list of them. Every rank trains their variables by itself; their gradients are
    divided by the size if scale_local_gradients.
    """
    made = distributed(optimizer, ReductionOptions.among(locals()))
    for variable in local_variables(local_layers):
        made.register_local_var(variable)
    return made
