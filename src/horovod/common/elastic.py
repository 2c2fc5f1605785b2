# SPDX-License-Identifier: Apache-2.0
"""Old import name of elastic training's states and wrapper; re-exports only."""

from horovod.elastic.state.state import ObjectState, State
from horovod.elastic.worker.notices import notification_manager
from horovod.elastic.worker.wrapper import run_fn

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]
