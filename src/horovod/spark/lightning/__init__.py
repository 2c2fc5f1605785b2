# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator: a LightningModule, or a PyTorch model, trained on a Spark DataFrame by Lightning's Trainer."""

from typing import TYPE_CHECKING, Any

from horovod.core.missing import attribute

if TYPE_CHECKING:
    from horovod.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


if not TYPE_CHECKING:  # type checkers refuse other names

    def __getattr__(name: str) -> Any:
        if name in __all__:  # at the first use: ranks need no Spark ML
            from horovod.spark.lightning import estimator as of_lightning

            return getattr(of_lightning, name)
        return attribute(__name__, name)
