# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator: a PyTorch model trained on a Spark DataFrame."""

from typing import TYPE_CHECKING, Any

from horovod.core.missing import attribute

if TYPE_CHECKING:
    from horovod.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


if not TYPE_CHECKING:  # type checkers refuse other names

    def __getattr__(name: str) -> Any:
        if name in __all__:  # at the first use: ranks need no Spark ML
            from horovod.spark.torch import estimator

            return getattr(estimator, name)
        return attribute(__name__, name)
