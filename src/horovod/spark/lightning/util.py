# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for helpers that are those of TorchEstimator without Lightning; re-exports only."""

from horovod.spark.torch.util import (
    deserialize_fn,
    is_module_available,
    is_module_available_fn,
    save_into_bio,
    save_into_bio_fn,
    serialize_fn,
)

__all__ = ["deserialize_fn", "is_module_available", "is_module_available_fn", "save_into_bio", "save_into_bio_fn"]
__all__ += ["serialize_fn"]
