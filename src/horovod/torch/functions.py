# SPDX-License-Identifier: Apache-2.0
"""Old import name of what makes ranks equal; re-exports only."""

from horovod.torch.state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
