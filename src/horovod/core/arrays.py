# SPDX-License-Identifier: Apache-2.0
"""The operations for NumPy arrays, for programs without a framework: what `horovod.core` exports.

Arrays may be of any dtype in native.DTYPE_NAMES (bfloat16 through ml_dtypes) and any strides.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from horovod.core.operations_api import Operations
from horovod.core.tensors import NumpyAdapter

__all__ = ["collectives", "operations"]

operations: Operations[NDArray[Any]] = Operations(NumpyAdapter())
collectives = operations.collectives
