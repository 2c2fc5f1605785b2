# SPDX-License-Identifier: Apache-2.0
"""Old import name of ElasticSampler; re-exports only."""

from horovod.torch.elastic_sampler import ElasticSampler

__all__ = ["ElasticSampler"]
