# SPDX-License-Identifier: Apache-2.0
"""`transform`: a model's outputs as columns, in Arrow batches. A Python worker loads the model once."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from horovod.core.wording import counted, on_one_line
from horovod.data.parquet import to_numpy
from horovod.spark.common.util import get_output_cols, get_spark_df_output_schema

__all__ = ["Predictor", "transform"]

BATCH_ROWS = 1024
ANSWER = "__horovod_answer"  # a column while the outputs are made
Arrays = list[np.ndarray[Any, Any]]

_loaded: dict[str, Any] = {}  # the model that this worker has used last, by the digest of its bytes


class Predictor:
    """A model's bytes, and the functions that load them and call the model. `prepare` sets up a Spark worker."""

    def __init__(
        self,
        content: bytes,
        load: Callable[[bytes], Any],
        predict: Callable[[Any, Arrays], Sequence[Any]],
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._content = content
        self._load = load
        self._predict = predict
        self.prepare = prepare or _nothing
        self._digest = hashlib.sha256(content).hexdigest()

    def __call__(self, inputs: Arrays) -> Arrays:
        """The outputs for some rows, one for each label."""
        if self._digest not in _loaded:
            _loaded.clear()
            _loaded[self._digest] = self._load(self._content)
        return [np.asarray(output) for output in self._predict(_loaded[self._digest], inputs)]


def _nothing() -> None:
    pass


class _Answers:
    """The function that Spark calls with the feature columns of a partition, batch by batch: yields the outputs."""

    def __init__(self, predictor: Predictor, features: Sequence[str], schema: Sequence[tuple[str, str]]) -> None:
        self._predictor = predictor
        self._features = features
        self._outputs = schema

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """From arrays, or tuples of them, to StructArrays of at most BATCH_ROWS rows."""
        self._predictor.prepare()
        first_row = 0
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            for start in range(0, len(columns[0]), BATCH_ROWS):
                yield self._answer([column.slice(start, BATCH_ROWS) for column in columns], first_row + start)
            first_row += len(columns[0])

    def _answer(self, columns: Sequence[Any], first_row: int) -> Any:
        import pyarrow as pa

        named = zip(columns, self._features, strict=True)
        outputs = self._predictor([to_numpy(column, name, "the partition", first_row) for column, name in named])
        if len(outputs) != len(self._outputs):
            raise ValueError(
                f"the model has {counted(len(outputs), 'output')}, and there are "
                f"{counted(len(self._outputs), 'label column')}"
            )
        rows = len(columns[0])
        made = [_column(values, rows, first_row, *row) for values, row in zip(outputs, self._outputs, strict=True)]
        return pa.StructArray.from_arrays(made, names=[name for name, _ in self._outputs])


def _column(values: np.ndarray[Any, Any], rows: int, first_row: int, name: str, kind: str) -> Any:
    import pyarrow as pa

    flat = values.reshape(rows, -1)
    if kind == "vector":
        inner = pa.list_(pa.field("element", pa.int32(), False)), pa.list_(pa.field("element", pa.float64(), False))
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * flat.shape[1])
        dense = pa.ListArray.from_arrays(offsets, pa.array(flat.astype(np.float64).reshape(-1)), type=inner[1])
        parts = [pa.array(np.ones(rows, np.int8)), pa.nulls(rows, pa.int32()), pa.nulls(rows, inner[0]), dense]
        fields = [
            pa.field("type", pa.int8(), False),
            pa.field("size", pa.int32()),
            pa.field("indices", inner[0]),
            pa.field("values", inner[1]),
        ]
        return pa.StructArray.from_arrays(parts, fields=fields)
    if flat.shape[1] != 1:
        raise ValueError(
            f"output {on_one_line(name)} has {flat.shape[1]} values in a row: expected one, as the label has"
        )
    column = flat[:, 0]
    if kind.startswith(("int", "bool")):
        column = _whole(column, first_row, name, kind)
    return pa.array(column.astype(kind))


def _whole(column: np.ndarray[Any, Any], first_row: int, name: str, kind: str) -> np.ndarray[Any, Any]:
    """Rounded to integers. Raises ValueError for a number that the type does not have, such as NaN."""
    rounded = np.rint(column) if column.dtype.kind == "f" else column
    fits = np.isfinite(rounded)
    if kind != "bool":
        # As floats: the largest int64 is not a float, and 2.0 ** 63 is too large.
        limit = 2.0 ** (np.iinfo(kind).bits - 1)
        fits &= (rounded >= -limit) & (rounded < limit)
    if not fits.all():
        row = int(np.argmin(fits))
        raise ValueError(
            f"output {on_one_line(name)}, row {first_row + row} of the partition: the model's answer is "
            f"{column[row]}, and the column has the label's type {kind}\n"
            "hint: look for NaN in the features and the weights; with a label of type double any number fits"
        )
    return rounded


def transform(
    df: Any,
    predictor: Predictor,
    features: Sequence[str],
    labels: Sequence[str],
    output_cols: Sequence[str],
    metadata: Mapping[str, Mapping[str, Any]] | None,
) -> Any:
    """The DataFrame with a column for each label. Without metadata, its first row tells the sizes of the outputs."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions as F

    outputs = get_output_cols(df.schema, output_cols)
    missing = [name for name in features if name not in df.columns]
    if missing:
        raise ValueError(f"column `{missing[0]}` is not in the DataFrame\nhint: it has {', '.join(df.columns)}")
    metadata = metadata or _metadata_of(df, labels)
    sizes = [metadata[label]["output_size"] for label in labels if "output_size" in metadata[label]]
    if len(sizes) < len(labels):
        sizes = _sizes_of(predictor, df, features, len(labels))
    schema = get_spark_df_output_schema(df.schema, labels, outputs, metadata)
    kinds = []
    for field, size in zip(schema.fields[-len(labels) :], sizes, strict=True):
        if size > 1:
            field.dataType = VectorUDT()
        kinds.append(_numpy_kind(field.dataType))
    columns = [F.col(f"`{name}`") for name in features]
    arrays = [
        vector_to_array(column, "float32") if df.schema[name].dataType.simpleString() == "vector" else column
        for column, name in zip(columns, features, strict=True)
    ]
    answers = _Answers(predictor, features, list(zip(outputs, kinds, strict=True)))
    if hasattr(F, "arrow_udf") and not df.sparkSession.version.startswith(("3.", "4.0")):
        return _by_columns(df, answers, arrays, schema, outputs)
    return _by_rows(df, answers, arrays, schema)


def _by_columns(df: Any, answers: _Answers, arrays: Sequence[Any], schema: Any, outputs: Sequence[str]) -> Any:
    """Only the features travel to Python, and only the outputs back."""
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    def call(batches: Any) -> Any:
        return answers(batches)

    # Spark asks for hints, not text, and has one kind of iterator for one column and for several.
    call.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    answer = F.arrow_udf(call, StructType(schema.fields[-len(outputs) :])).asNondeterministic()
    # Not deterministic, for Spark's optimizer: it calls a deterministic one once for each place that reads an output.
    whole = df.select("*", answer(*arrays).alias(ANSWER))
    kept = [F.col(f"`{name}`") for name in df.columns]
    return whole.select(*kept, *(F.col(ANSWER).getField(name).alias(name) for name in outputs))


def _by_rows(df: Any, answers: _Answers, arrays: Sequence[Any], schema: Any) -> Any:
    """Before Spark 4.1: whole rows travel to Python and back."""
    kept = len(df.columns)

    def mapped(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        pieces = (whole.slice(at, BATCH_ROWS) for whole in batches for at in range(0, whole.num_rows, BATCH_ROWS))
        rows, inputs = itertools.tee(pieces)
        made = answers(tuple(piece.columns[kept:]) for piece in inputs)
        for piece, answer in zip(rows, made, strict=True):
            yield pa.RecordBatch.from_arrays([*piece.columns[:kept], *answer.flatten()], schema.names)

    names = [f"c{number}" for number in range(kept + len(arrays))]  # mapInArrow takes no name with a dot
    return df.select("*", *arrays).toDF(*names).mapInArrow(mapped, schema)


def _metadata_of(df: Any, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The labels' types in the DataFrame; double for one that is not there."""
    from pyspark.sql import types

    kinds = {field.name: type(field.dataType) for field in df.schema.fields}
    return {label: {"spark_data_type": kinds.get(label, types.DoubleType)} for label in labels}


def _sizes_of(predictor: Predictor, df: Any, features: Sequence[str], labels: int) -> list[int]:
    row = df.select(*(f"`{name}`" for name in features)).first()
    if row is None:
        return [1] * labels
    values = [value.toArray() if hasattr(value, "toArray") else value for value in row]
    return [output[:1].size for output in predictor([np.asarray([value], np.float32) for value in values])]


def _numpy_kind(dtype: Any) -> str:
    from horovod.spark.common.util import data_type_to_numpy

    return "vector" if dtype.simpleString() == "vector" else np.dtype(data_type_to_numpy(dtype)).name
