# SPDX-License-Identifier: Apache-2.0
"""Horovod's helpers for estimators, under their names."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod.core.wording import counted, quoted
from horovod.settings import current_environment
from horovod.spark.common.dataset import (
    check_validation,
    clear_training_cache,
    get_dataset_properties,
    get_simple_meta_from_parquet,
    prepare_data,
)
from horovod.spark.common.types import (
    data_type_to_numpy,
    data_type_to_str,
    numpy_type_to_str,
    pyarrow_to_spark_data_type,
    spark_scalar_to_python_type,
)

__all__ = [
    "check_shape_compatibility",
    "check_validation",
    "clear_training_cache",
    "data_type_to_numpy",
    "data_type_to_str",
    "get_dataset_properties",
    "get_output_cols",
    "get_simple_meta_from_parquet",
    "get_spark_df_output_schema",
    "host_hash",
    "is_databricks",
    "numpy_type_to_str",
    "prepare_data",
    "pyarrow_to_spark_data_type",
    "spark_scalar_to_python_type",
    "to_list",
    "to_petastorm_fn",
]


def is_databricks() -> bool:
    """True on Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in current_environment()


def host_hash(salt: Any = None) -> str:
    """The name of this host in a job: equal for processes that share a host and its namespaces, and have one salt."""
    names = sorted(f"{path.name}:{os.readlink(path)}" for path in Path("/proc/self/ns").iterdir())
    host = socket.gethostname()
    text = "-".join([host, *names, current_environment().get("CONTAINER_ID", ""), "" if salt is None else str(salt)])
    return f"{host.split('.')[0]}-{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}"


def to_list(var: Any, length: int) -> list[Any] | None:
    """`var` as a list of `length`: one value is repeated; None stays. ValueError for a list of another length."""
    if var is None:
        return None
    if not isinstance(var, list):
        return [var] * length
    if len(var) == 1:
        return var * length
    if len(var) != length:
        raise ValueError(f"a list of {counted(len(var), 'value')}: expected one value, or {length}")
    return var


def check_shape_compatibility(
    metadata: Mapping[str, Mapping[str, Any]],
    feature_columns: Sequence[str],
    label_columns: Sequence[str],
    input_shapes: Sequence[Sequence[int | None]] | None = None,
    output_shapes: Sequence[Sequence[int | None]] | None = None,
    label_shapes: Sequence[Sequence[int | None]] | None = None,
) -> None:
    """Raises ValueError if columns do not fit a model: their number, or the size of one against its shape.

    `label_shapes` take the place of `output_shapes`. In a shape, -1 or None is the batch, which may stand first only.
    """
    outputs = label_shapes or output_shapes
    for kind, names, shapes in (("feature", feature_columns, input_shapes), ("label", label_columns, outputs)):
        if shapes is None:
            continue
        if len(names) != len(shapes):
            raise ValueError(
                f"{counted(len(names), f'{kind} column')} for {counted(len(shapes), 'shape')} of the model: "
                f"{', '.join(map(quoted, names))}; {list(shapes)}"
            )
        for name, shape in zip(names, shapes, strict=True):
            size, expected = metadata[name]["shape"], 1
            for length in shape:
                expected *= 1 if length in (None, -1) else int(length or 0)
            if size is not None and size != expected:
                raise ValueError(
                    f"column {quoted(name)} has {counted(size, 'value')} in a row, and its shape {list(shape)} has "
                    f"{expected}\nhint: set input_shapes or label_shapes, or change the column"
                )


def get_output_cols(input_df_schema: Any, output_cols: Sequence[str]) -> list[str]:
    """The output columns. Raises ValueError if the DataFrame has one already."""
    existing = [name for name in output_cols if name in input_df_schema.fieldNames()]
    if existing:
        raise ValueError(
            f"the DataFrame has a column {quoted(existing[0])} already\nhint: setOutputCols() gives other names"
        )
    return list(output_cols)


def get_spark_df_output_schema(
    input_df_schema: Any,
    label_cols: Sequence[str],
    output_cols: Sequence[str],
    metadata: Mapping[str, Mapping[str, Any]],
) -> Any:
    """The schema that `transform` gives: that of the DataFrame and a column for each label, of the label's type."""
    from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
    from pyspark.sql import types

    fields = list(input_df_schema.fields)
    for label, name in zip(label_cols, output_cols, strict=True):
        kind = metadata[label]["spark_data_type"]
        is_vector = kind in (DenseVector, SparseVector, VectorUDT, types.ArrayType)
        dtype = VectorUDT() if is_vector else types.DoubleType() if kind is types.DecimalType else kind()
        fields.append(types.StructField(name, dtype, True))
    return types.StructType(fields)


def to_petastorm_fn(schema_cols: Sequence[str], metadata: Mapping[str, Mapping[str, Any]]) -> Callable[[Any], Any]:
    """A function that turns a row of a DataFrame into a dict whose vectors are lists."""

    def to_dict(row: Any) -> dict[str, Any]:
        values = {name: row[name] for name in schema_cols}
        return {name: list(v.toArray()) if hasattr(v, "toArray") else v for name, v in values.items()}

    return to_dict
