# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator: a PyTorch model trained on a Spark DataFrame."""

from horovod.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
