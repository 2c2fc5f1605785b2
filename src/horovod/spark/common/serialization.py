# SPDX-License-Identifier: Apache-2.0
"""Estimators and models saved by Spark ML's writers: JSON, in which what JSON does not have is pickled as base64.

The store and the backend are saved as None. A file holds code, as any pickle does: load files of people that you trust.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLWritable

from horovod.core import pickling
from horovod.core.wording import on_one_line

__all__ = [
    "HorovodParamsReader",
    "HorovodParamsWriter",
    "HorovodReadable",
    "HorovodWritable",
    "NOT_SAVED",
    "dumps",
    "loads",
]

NOT_SAVED = ("store", "backend")
_PICKLED = "pickle"


def dumps(value: Any) -> bytes:
    """Pickles a value, with its classes and functions if they cannot be imported."""
    return pickling.dumps(value)


def loads(content: bytes) -> Any:
    """The value that `dumps` pickled."""
    return pickling.loads(content)


def _encoded(name: str, value: Any) -> Any:
    if value is None or name in NOT_SAVED:
        return None
    if isinstance(value, (bool, int, float, str)):
        return value
    return {_PICKLED: base64.b64encode(dumps(value)).decode()}


def _decoded(value: Any) -> Any:
    return loads(base64.b64decode(value[_PICKLED])) if isinstance(value, dict) else value


class HorovodParamsWriter(DefaultParamsWriter):
    """Writes an estimator or a model; `write().overwrite().save(path)`."""

    @staticmethod
    def saveMetadata(
        instance: Any,
        path: str,
        sc: Any,
        extraMetadata: Mapping[str, Any] | None = None,
        paramMap: Mapping[str, Any] | None = None,
        param_serializer_fn: Callable[[str, Any], Any] | None = None,
    ) -> None:
        """Writes the class, the uid and all parameters to path/metadata."""
        encode = param_serializer_fn or _encoded
        given = {param.name: value for param, value in instance._paramMap.items()} if paramMap is None else paramMap
        saved = {name: encode(name, value) for name, value in instance._to_save(dict(given)).items()}
        plain = instance._defaultParamMap
        try:
            # Defaults are written by the parent, as JSON: ours are lists, dicts, numbers and None.
            instance._defaultParamMap = {p: v for p, v in plain.items() if p.name not in NOT_SAVED}
            extra = {**(extraMetadata or {}), "horovod": _encoded("", instance._extra_to_save())}
            DefaultParamsWriter.saveMetadata(instance, path, sc, extra, saved)
        finally:
            instance._defaultParamMap = plain

    def saveImpl(self, path: str) -> None:
        """Writes the instance to the folder."""
        HorovodParamsWriter.saveMetadata(self.instance, path, self.sparkSession)


class HorovodParamsReader(DefaultParamsReader):
    """Reads an estimator or a model that HorovodParamsWriter wrote."""

    def load(self, path: str) -> Any:
        """The instance that was saved in the folder."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        cls = self.cls.__module__ + "." + self.cls.__name__
        if metadata["class"] != cls:
            raise ValueError(
                f"{on_one_line(path)} holds a {metadata['class']}\nhint: load it with that class, not with {cls}"
            )
        instance = self.cls()
        instance._resetUid(metadata["uid"])
        values = {name: _decoded(value) for name, value in metadata["paramMap"].items()}
        for name, value in instance._from_saved(values).items():
            instance.set(instance.getParam(name), value)
        instance._setDefault(**metadata["defaultParamMap"])
        instance._restore_extra(_decoded(metadata["horovod"]))
        return instance


class HorovodReadable(MLReadable):
    """Adds `read()` and `load(path)`."""

    @classmethod
    def read(cls) -> HorovodParamsReader:
        """The reader of this class."""
        return HorovodParamsReader(cls)


class HorovodWritable(MLWritable):
    """Adds `write()` and `save(path)`; a subclass may say how its parameters are saved."""

    def write(self) -> HorovodParamsWriter:
        """The writer of this object."""
        return HorovodParamsWriter(self)

    def _to_save(self, values: dict[str, Any]) -> dict[str, Any]:
        return values

    def _from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        return values

    def _extra_to_save(self) -> Any:
        """State that is not a parameter."""
        return None

    def _restore_extra(self, extra: Any) -> None:
        """Takes what `_extra_to_save` gave."""
