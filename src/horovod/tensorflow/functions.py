# SPDX-License-Identifier: Apache-2.0
"""Old import name of broadcasts of variables and objects; re-exports only."""

from horovod.tensorflow.state import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
