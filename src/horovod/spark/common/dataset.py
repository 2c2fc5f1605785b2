# SPDX-License-Identifier: Apache-2.0
"""A DataFrame's way into the store: Parquet files and a manifest, written once for each DataFrame, and read by ranks.

The manifest, `_horovod.json`, is written last. It holds the row groups, so no rank reads footers, and the shapes of the
columns.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from horovod.core.wording import counted, quoted, tell
from horovod.data import parquet
from horovod.spark.common import constants
from horovod.spark.common.access import of_spark
from horovod.spark.common.cache import TrainingDataCache
from horovod.spark.common.store import MANIFEST, Store
from horovod.spark.task.rows import VALIDATION

__all__ = ["clear_training_cache", "get_dataset_properties", "get_simple_meta_from_parquet", "plan_of", "prepare_data"]
__all__ += ["check_rows", "columns_of", "metadata_of", "selected"]

GROUP_BYTES = 32 << 20
VERSION = 1
_HINT = "hint: clear_training_cache() and fit(df) write it anew"
_cache = TrainingDataCache()

Metadata = dict[str, dict[str, Any]]


def clear_training_cache() -> None:
    """Forgets which DataFrames are in stores: the next fit writes them anew."""
    _cache.clear()


def get_dataset_properties(dataset_idx: int) -> tuple[int, int, Metadata, float]:
    """(training rows, validation rows, metadata, mean bytes of a row) of data that prepare_data wrote."""
    properties: tuple[int, int, Metadata, float] = _cache.get_dataset_properties(dataset_idx)
    return properties


@contextlib.contextmanager
def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str],
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> Iterator[int]:
    """Writes a DataFrame to the store unless it is there; a context manager that gives the index of the data.

    Vectors become lists of float32, which Parquet stores compactly also if they are sparse, so `compress_sparse`
    changes nothing. Raises ValueError if a count is below 1, a column is missing or of a type that ranks cannot read,
    `validation` is wrong, or training or validation would have no rows.
    """
    for name, value in (("num_processes", num_processes), ("partitions_per_process", partitions_per_process)):
        if not value or value < 1:
            raise ValueError(f"{name} is {value}: expected at least 1")
    check_validation(validation, df)
    columns = columns_of(feature_columns, label_columns, sample_weight_col)
    _check_columns(df, columns)
    key = _cache.create_key(df, store, validation, tuple(columns))
    with _cache.use_key(key):
        if _cache.is_cached(key, store):
            index = _cache.next_dataset_index(key)
            if verbose:
                tell(f"horovod: the data is in {store.get_train_data_path(index)} already", sys.stdout)
        else:
            index = _cache.next_dataset_index(key)
            if hasattr(store, "check_access"):  # a store of the user's own class may have none
                store.check_access()
            _write(num_processes, store, df, columns, validation, partitions_per_process, index, verbose)
            _cache.set_dataset_properties(
                index, get_simple_meta_from_parquet(store, label_columns, feature_columns, sample_weight_col, index)
            )
        yield index


def columns_of(features: Sequence[str], labels: Sequence[str], sample_weight: str | None) -> list[str]:
    """All columns that ranks read, each once."""
    return list(dict.fromkeys([*features, *labels, *([sample_weight] if sample_weight else [])]))


def check_rows(train_rows: int, val_rows: int | None, validation: Any) -> None:
    """Raises ValueError if there is nothing to train on, or nothing for the validation. None: without validation."""
    for kind, rows in (("training", train_rows), ("validation", val_rows)):
        if rows == 0:
            empty = "the DataFrame has no rows" if val_rows is None else f"validation={validation!r} leaves no rows"
            raise ValueError(f"{empty} for {kind}")


def check_validation(validation: Any, df: Any = None) -> None:
    """Raises ValueError unless it is None, a fraction in [0, 1), or a column of numbers or bool."""
    if validation is None:
        return
    if isinstance(validation, str):
        if df is None:
            return
        kinds = {field.name: field.dataType.simpleString() for field in df.schema.fields}
        if validation not in kinds:
            raise ValueError(f"the validation column {quoted(validation)} is not in the DataFrame")
        if kinds[validation].partition("(")[0] not in _NUMBERS:
            raise ValueError(
                f"the validation column {quoted(validation)} is {kinds[validation]}: expected bool or a number, "
                "which is > 0 in rows for validation"
            )
    elif isinstance(validation, bool) or not isinstance(validation, (int, float)):
        raise ValueError(f"validation is {validation!r}: expected a fraction or the name of a column")
    elif not 0 <= validation < 1:
        raise ValueError(f"validation is {validation}: expected a fraction in [0, 1)")


_NUMBERS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"}


def _check_columns(df: Any, columns: Sequence[str]) -> None:
    fields = {field.name: field.dataType for field in df.schema.fields}
    for name in columns:
        if name not in fields:
            known = ", ".join(map(quoted, fields))
            raise ValueError(f"column {quoted(name)} is not in the DataFrame\nhint: it has {known}")
        inner = fields[name]
        while inner.typeName() == "array":
            inner = inner.elementType
        if inner.typeName() in ("map", "struct", "variant", "void"):
            raise ValueError(
                f"column {quoted(name)} is {fields[name].simpleString()}: no rank can make an array of it\n"
                "hint: select its parts as columns of numbers, lists or vectors"
            )


def _write(
    num_processes: int,
    store: Store,
    df: Any,
    columns: Sequence[str],
    validation: float | str | None,
    partitions_per_process: int,
    index: int,
    verbose: int,
) -> None:
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType for field in df.schema.fields}
    train, val, share = df, None, 0.0
    if isinstance(validation, str):
        is_validation = F.col(validation).cast("double") > 0
        train, val, share = df.filter(~is_validation | F.col(validation).isNull()), df.filter(is_validation), 0.1
    elif validation:
        train, val = df.randomSplit([1 - validation, float(validation)], seed=0)
        share = float(validation)
    parts = [(train, store.get_train_data_path(index), 1 - share)]
    if val is not None:
        parts.append((val, store.get_val_data_path(index), share))
    for part, path, fraction in parts:
        if verbose:
            tell(f"horovod: writing the DataFrame to {path}", sys.stdout)
        files = max(int(num_processes * partitions_per_process * fraction), num_processes)
        chosen = selected(part, columns).coalesce(files)
        try:
            chosen.write.option("parquet.block.size", GROUP_BYTES).mode("overwrite").parquet(path)
        except Exception as error:  # of Spark's many classes
            raise of_spark(error, path) from error
        found = parquet.plan(path, storage_options=_storage_options(store))
        rows = (1, found.rows) if part is val else (found.rows, None if val is None else 1)
        check_rows(*rows, validation)
        types = {name: kinds[name].simpleString() for name in columns}
        text = {"version": VERSION, "plan": json.loads(found.to_json()), "spark_types": types, "shapes": _shapes(found)}
        store.write_text(f"{path.rstrip('/')}/{MANIFEST}", json.dumps(text))


def selected(df: Any, columns: Sequence[str], validation: float | str | None = None) -> Any:
    """The columns in forms that ranks can read; with `validation`, a column VALIDATION marks its rows.

    Raises ValueError if a column is missing or of a type that ranks cannot read, or `validation` is wrong.
    """
    from pyspark.sql import functions as F

    check_validation(validation, df)
    _check_columns(df, columns)
    kinds = {field.name: field.dataType for field in df.schema.fields}
    chosen = [_readable(name, kinds[name]) for name in columns]
    if validation:
        is_marked = isinstance(validation, str)
        mark = F.col(f"`{validation}`").cast("double") > 0 if is_marked else F.rand(0) < validation
        chosen.append(F.coalesce(mark, F.lit(False)).alias(VALIDATION))
    return df.select(*chosen)


def _readable(name: str, kind: Any) -> Any:
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    column = F.col(f"`{name}`")
    return vector_to_array(column, "float32").alias(name) if kind.simpleString() == "vector" else column


def _storage_options(store: Store) -> Mapping[str, Any] | None:
    return getattr(store, "storage_options", None)


def _shapes(found: parquet.Plan) -> dict[str, list[int] | None]:
    """The shape of each column's values in the first row; None for one that no array can hold."""
    one_row = next(parquet.read(found, [parquet.Piece(0, 0, 1)]))
    return {name: list(values.shape[1:]) for name, values in one_row.items()}


def plan_of(store: Store, path: str) -> tuple[parquet.Plan, dict[str, Any]]:
    """The row groups of a folder of the store, and its manifest, empty if another program wrote the folder.

    Raises ValueError, which names what is missing, if the folder is half-written or files of the manifest are gone.
    """
    manifest = f"{path.rstrip('/')}/{MANIFEST}"
    options = _storage_options(store)
    if not store.exists(manifest):
        if store.exists(f"{path.rstrip('/')}/_temporary"):
            raise ValueError(f"{path} is half-written: it has no {MANIFEST}\n{_HINT}")
        return parquet.plan(path, storage_options=options), {}
    try:
        content = json.loads(store.read(manifest))
        found = parquet.Plan.from_json(json.dumps(content["plan"]), options)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, expected {VERSION}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest} cannot be read: {error}\n{_HINT}") from error
    files = {group.file for group in found.groups}
    missing = sorted(file for file in files if not store.exists(file))
    if missing:
        raise ValueError(
            f"{counted(len(missing), 'file')} of {manifest} {'is' if len(missing) == 1 else 'are'} missing: "
            f"{missing[0]}\n{_HINT}"
        )
    return found, content


def get_simple_meta_from_parquet(
    store: Store,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None,
    sample_weight_col: str | None = None,
    dataset_idx: int | None = None,
) -> tuple[int, int, Metadata, float]:
    """(training rows, validation rows, metadata, mean bytes of a row) of data in the store.

    The metadata has for each column spark_data_type, is_sparse_vector_only, shape, intermediate_format and max_size. A
    shape of None is not checked. Raises ValueError if a column is missing.
    """
    path = store.get_train_data_path(dataset_idx)
    if not store.is_parquet_dataset(path):
        raise ValueError(f"there are no Parquet files in {path}\nhint: fit(df) writes them, or another program")
    found, content = plan_of(store, path)
    if not found.rows:
        raise ValueError(f"{path} has no rows")
    shapes = content.get("shapes") or _shapes(found)
    wanted = [*label_columns, *(feature_columns or []), *([sample_weight_col] if sample_weight_col else [])]
    for name in wanted:
        if name not in found.types:
            known = ", ".join(map(quoted, found.types))
            raise ValueError(f"{path} has no column {quoted(name)}\nhint: it has {known}")
    metadata = {
        name: _metadata_of(arrow, shapes[name], content.get("spark_types", {}).get(name))
        for name, arrow in found.types.items()
    }
    val_path = store.get_val_data_path(dataset_idx)
    val_rows = plan_of(store, val_path)[0].rows if store.is_parquet_dataset(val_path) else 0
    return found.rows, val_rows, metadata, found.nbytes / found.rows


def metadata_of(df: Any, shapes: Mapping[str, list[int] | None]) -> Metadata:
    """As that of get_simple_meta_from_parquet, for columns of a DataFrame whose shapes are known."""
    return {name: _metadata_of("", shape, df.schema[name].dataType.simpleString()) for name, shape in shapes.items()}


def _metadata_of(arrow: str, shape: list[int] | None, spark_type: str | None) -> dict[str, Any]:
    from horovod.spark.common import types

    is_vector = spark_type == "vector"
    size = 1
    for length in shape or ():
        size *= length
    is_list = bool(shape)
    form = constants.ARRAY if is_vector or is_list else constants.NOCHANGE
    return {
        "spark_data_type": types.spark_type_of(spark_type or arrow),
        "is_sparse_vector_only": False,
        "shape": size if shape is not None else None,
        "intermediate_format": form,
        "max_size": size,
    }
