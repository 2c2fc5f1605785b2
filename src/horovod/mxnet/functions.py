# SPDX-License-Identifier: Apache-2.0
"""Old import name of the functions for objects; re-exports only."""

from horovod.mxnet.state import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object"]
