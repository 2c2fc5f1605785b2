# SPDX-License-Identifier: Apache-2.0
"""A short job whose timeline tools/try-viewers shows to other programs."""

import time

import numpy as np

import horovod.core as hvd

hvd.init()
for _ in range(20):
    handles = [hvd.allreduce_async(np.ones(1000 * (part + 1)), name=f"gradient.{part}") for part in range(4)]
    time.sleep(0.002 * hvd.rank())
    for handle in handles:
        hvd.synchronize(handle)
hvd.shutdown()
