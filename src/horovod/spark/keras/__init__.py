# SPDX-License-Identifier: Apache-2.0
"""KerasEstimator: a Keras model trained on a Spark DataFrame."""

from typing import TYPE_CHECKING, Any

from horovod.core.missing import attribute

if TYPE_CHECKING:
    from horovod.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]


if not TYPE_CHECKING:  # type checkers refuse other names

    def __getattr__(name: str) -> Any:
        if name in __all__:  # at the first use: ranks need no Spark ML
            from horovod.spark.keras import estimator

            return getattr(estimator, name)
        return attribute(__name__, name)
