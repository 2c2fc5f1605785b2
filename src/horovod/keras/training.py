# SPDX-License-Identifier: Apache-2.0
"""The functions of horovod.keras: optimizers, loading of models, and operations on host values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from horovod.core.arrays import operations
from horovod.core.compression import Compressor
from horovod.core.gradient_list import local_variables
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.reduction_options import ReductionOptions
from horovod.keras.compile import accept_old_arguments
from horovod.keras.gradients import Compression
from horovod.keras.optimizer import distributed, is_distributed

__all__ = [
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "load_model",
    "load_with",
    "reducescatter",
]

accept_old_arguments()


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
    """Makes a Keras optimizer average gradients over the ranks before it applies them, and returns it. Its slots and
    iterations stay. groups: a number of groups, or lists of variables, whose gradients are reduced as one; num_groups
    is its old name."""
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
    """DistributedOptimizer that leaves the variables of `local_layers`, a built layer or a list of them, local: every
    rank trains its own. Their gradients are divided by the size where scale_local_gradients."""
    made = distributed(optimizer, ReductionOptions.among(locals()))
    for variable in local_variables(local_layers):
        made.register_local_var(variable)
    return made


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """keras.models.load_model, with the model's optimizer distributed and its state kept. custom_optimizers: classes
    beside Keras' own that the file may name. legacy_opts is accepted for old scripts."""
    return load_with(keras, filepath, custom_optimizers, custom_objects, compression)


def load_with(
    own: Any,
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
    compression: type[Compressor],
) -> Any:
    """load_model for `own`, which is Keras 3 or tf-keras."""
    objects = {made.__name__: made for made in (*(custom_optimizers or ()), *_layers_of(own))}
    model = own.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})} or None)
    if getattr(model, "optimizer", None) is not None and not is_distributed(model.optimizer):
        if isinstance(model, keras.Model) and str(filepath).endswith((".h5", ".hdf5")):
            _restore_slots(model, filepath)
        distributed(model.optimizer, ReductionOptions(compression=compression))
    return model


def _layers_of(own: Any) -> list[type]:
    """Horovod's layers for `own`: a file may name them."""
    if keras.backend.backend() != "tensorflow" and own is keras:
        return []
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

    return [SyncBatchNormalization] if issubclass(SyncBatchNormalization, own.layers.Layer) else []


def _restore_slots(model: Any, filepath: Any) -> None:
    """Keras 3 writes an optimizer's variables into .h5 files, but does not find their places when it reads them."""
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    with h5py.File(filepath, "r") as file:
        kept = load_optimizer_weights_from_hdf5_group(file) if "optimizer_weights" in file else []
        values = [np.asarray(value) for value in kept]  # read while the file is open
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    if len(optimizer.variables) != len(values):
        return  # saved before its first step
    for variable, value in zip(optimizer.variables, values, strict=True):
        variable.assign(value)
    model.optimizer = optimizer


# Operations on values on the host: what NumPy takes, and tensors. A tensor gives a tensor of the same framework, an
# array an array, and a scalar a scalar.


def _host(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


def _given(value: Any, result: Any) -> Any:
    tf = sys.modules.get("tensorflow")  # whose tensors horovod.tensorflow.keras gets with any backend of Keras
    if tf is not None and tf.is_tensor(value):
        return tf.convert_to_tensor(result)
    if keras.ops.is_tensor(value):
        return keras.ops.convert_to_tensor(result)
    return result if np.ndim(result) else result[()]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """The reduction of a host value over all ranks: Average where neither `op` nor the old `average` says otherwise.
    `compression` is accepted; host values travel as they are."""
    result = operations.allreduce(
        _host(value), average, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )
    return _given(value, result)


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, concatenated along dimension 0."""
    return _given(value, operations.allgather(_host(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's host value."""
    return _given(value, operations.broadcast(_host(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's rows of the allreduce of a value."""
    return _given(value, operations.reducescatter(_host(value), name, op=op))


def broadcast_global_variables(root_rank: int) -> Any:
    """For graphs of TensorFlow 1 only; raises RuntimeError elsewhere, where there are no global variables."""
    if keras.backend.backend() == "tensorflow":
        from horovod.tensorflow import broadcast_global_variables as of_tensorflow

        return of_tensorflow(root_rank)
    raise RuntimeError("there are no global variables\nhint: callbacks.BroadcastGlobalVariablesCallback(root_rank)")
