# SPDX-License-Identifier: Apache-2.0
"""Types of columns: Spark's, Arrow's, NumPy's and Python's, each from the other."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "data_type_to_numpy",
    "data_type_to_str",
    "numpy_type_to_str",
    "pyarrow_to_spark_data_type",
    "spark_scalar_to_python_type",
    "spark_type_of",
]

# By name of Spark's class: the names of the type in Spark's SQL and in Arrow, NumPy's type, Python's.
_TABLE: dict[str, tuple[tuple[str, ...], type, type]] = {
    "BooleanType": (("boolean", "bool"), np.bool_, bool),
    "ByteType": (("tinyint", "int8", "uint8"), np.int8, int),
    "ShortType": (("smallint", "int16", "uint16"), np.int16, int),
    "IntegerType": (("int", "int32", "uint32"), np.int32, int),
    "LongType": (("bigint", "int64", "uint64"), np.int64, int),
    "FloatType": (("float", "halffloat"), np.float32, float),
    "DoubleType": (("double",), np.float64, float),
    "StringType": (("string", "large_string"), np.str_, str),
    "BinaryType": (("binary", "large_binary"), np.bytes_, bytes),
}


def spark_type_of(name: str) -> type:
    """Spark's class for the name of a type in Spark's SQL or in Arrow; DenseVector for vectors, ArrayType for lists."""
    from pyspark.ml.linalg import DenseVector
    from pyspark.sql import types

    if name == "vector":
        vector: type = DenseVector
        return vector
    for cls, (names, _, _) in _TABLE.items():
        if name in names:
            return getattr(types, cls)
    for begin, cls in (
        ("array", "ArrayType"),
        ("list", "ArrayType"),
        ("large_list", "ArrayType"),
        ("fixed_size_list", "ArrayType"),
        ("decimal", "DecimalType"),
        ("date", "DateType"),
        ("timestamp", "TimestampType"),
    ):
        if name.startswith(begin):
            return getattr(types, cls)
    raise ValueError(f"Spark's type of {name!r} is not known")


def pyarrow_to_spark_data_type(dtype: Any) -> type:
    """Spark's class for an Arrow type."""
    return spark_type_of(str(dtype))


def _row_of(dtype: Any) -> tuple[tuple[str, ...], type, type]:
    name = dtype.__name__ if isinstance(dtype, type) else type(dtype).__name__
    if name in ("DenseVector", "SparseVector", "VectorUDT", "DecimalType"):
        name = "DoubleType"
    if name not in _TABLE:
        raise ValueError(f"{name} has no type of NumPy: expected one of {', '.join(_TABLE)}")
    return _TABLE[name]


def data_type_to_numpy(dtype: Any) -> type:
    """NumPy's type for Spark's; that of the values for vectors."""
    return _row_of(dtype)[1]


def data_type_to_str(dtype: Any) -> str:
    """The name of Spark's type in Spark's SQL."""
    return _row_of(dtype)[0][0]


def numpy_type_to_str(dtype: Any) -> str:
    """The name in Spark's SQL of NumPy's type."""
    for names, ours, _ in _TABLE.values():
        if np.dtype(dtype) == np.dtype(ours):
            return names[0]
    raise ValueError(f"Spark has no type for NumPy's {dtype}")


def spark_scalar_to_python_type(dtype: Any) -> type:
    """Python's type for a type of Spark's that has single values."""
    return _row_of(dtype)[2]
