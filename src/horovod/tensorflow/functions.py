# SPDX-License-Identifier: Apache-2.0
"""Horovod's old place of broadcasts of variables and objects."""

from horovod.tensorflow.state import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
