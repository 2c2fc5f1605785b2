# SPDX-License-Identifier: Apache-2.0
"""Old import names of the callbacks of elastic training, for subclasses that name their Keras themselves.

    class Commit(CommitStateCallbackImpl, keras.callbacks.Callback):
        def __init__(self, state):
            super().__init__(keras.backend, state, 10)

Ours are in keras/elastic_callbacks.py, and need no `backend`. No step of a gradient's way.
"""

from __future__ import annotations

from typing import Any

from horovod.keras.elastic_callbacks import Commit, UpdateBatch, UpdateEpoch

__all__ = ["CommitStateCallbackImpl", "UpdateBatchStateCallbackImpl", "UpdateEpochStateCallbackImpl"]


class CommitStateCallbackImpl(Commit):
    """See horovod.keras.elastic.CommitStateCallback. `args`: of the class that stands behind this one."""

    def __init__(self, backend: Any, state: Any, batches_per_commit: int, *args: Any) -> None:
        super().__init__(*args)
        self._hvd_setup(state, batches_per_commit)


class UpdateBatchStateCallbackImpl(UpdateBatch):
    """See horovod.keras.elastic.UpdateBatchStateCallback."""

    def __init__(self, backend: Any, state: Any, *args: Any) -> None:
        super().__init__(*args)
        self._hvd_setup(state)


class UpdateEpochStateCallbackImpl(UpdateEpoch):
    """See horovod.keras.elastic.UpdateEpochStateCallback."""

    def __init__(self, backend: Any, state: Any, *args: Any) -> None:
        super().__init__(*args)
        self._hvd_setup(state)
