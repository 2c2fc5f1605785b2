# SPDX-License-Identifier: Apache-2.0
"""A script as a type checker sees it: `make lint` checks that it knows the types of public names. It is never run."""

from typing import Any, assert_type

import torch

import horovod
import horovod.core
import horovod.jax
import horovod.ray
import horovod.spark.torch
import horovod.torch as hvd

hvd.init()
assert_type(hvd.rank(), int)
assert_type(hvd.allreduce_async(torch.ones(1)), int)
hvd.broadcast_parameters({}, root_rank="0")  # type: ignore[arg-type]
hvd.allreduce(torch.ones(1), op="Sum")  # type: ignore[arg-type]
assert_type(horovod.core.size(), int)
assert_type(horovod.core.broadcast_object({"a": 1}, root_rank=0), Any)
horovod.core.no_such_operation()  # type: ignore[attr-defined]
horovod.run(print, np="2")  # type: ignore[arg-type]
horovod.no_such_name()  # type: ignore[attr-defined]
horovod.jax.no_such_name()  # type: ignore[attr-defined]
horovod.jax.SyncBatchNorm()
horovod.ray.no_such_name()  # type: ignore[attr-defined]
horovod.spark.torch.TorchEstimator()
horovod.spark.torch.no_such_name()  # type: ignore[attr-defined]
