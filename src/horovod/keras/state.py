# SPDX-License-Identifier: Apache-2.0
"""Models from files, with distributed optimizers; and the broadcast of global variables, for graphs of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from horovod.core.compression import Compressor
from horovod.gradients.options import ReductionOptions
from horovod.keras import backends
from horovod.keras.compression import Compression
from horovod.keras.distributed import is_distributed
from horovod.keras.optimizer import distributed
from horovod.keras.patches import switch_off_jit

__all__ = ["broadcast_global_variables", "load_model", "load_with"]


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """keras.models.load_model, with the model's optimizer distributed and its state kept.

    custom_optimizers: classes beside Keras' own that the file may name. legacy_opts is accepted for old scripts.
    """
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
        switch_off_jit(model, keras.backend.backend() if own is keras else "tensorflow")
    return model


def _layers_of(own: Any) -> list[type]:
    """Horovod's layers for `own`: a file may name them."""
    if keras.backend.backend() != "tensorflow" and own is keras:
        return []
    made: list[type] = backends.named("tensorflow").layers_of(own)
    return made


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


def broadcast_global_variables(root_rank: int) -> Any:
    """For graphs of TensorFlow 1 only; raises RuntimeError elsewhere, as there are no global variables."""
    in_tensorflow = backends.of_tensorflow()
    if in_tensorflow is not None:
        return in_tensorflow.broadcast_global_variables(root_rank)
    raise RuntimeError("there are no global variables\nhint: callbacks.BroadcastGlobalVariablesCallback(root_rank)")
