# SPDX-License-Identifier: Apache-2.0
"""Reads prototxt files. Every error names the file and the line, and the nearest name if a name is unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from horovod.caffe.errors import CaffeError, nearest
from horovod.caffe.schema import message
from horovod.core.wording import on_one_line

__all__ = ["Origin", "read_text"]

_NO_FIELD = re.compile(r'Message type "caffe\.(?P<message>\w+)" (?:should not have|has no field named) "(?P<name>\w+)"')
_NO_VALUE = re.compile(r'Enum type "caffe\.(?P<enum>[\w.]+)" has no value named (?P<name>\w+)')
# Fields of Intel Caffe that change images at random, and that are not there. Their nearest names would mislead.
_INTEL = {
    "TransformationParameter": (
        "crop_h", "crop_w", "distort_param", "emit_constraint", "expand_param", "noise_param",
        "random_aspect_ratio_param", "random_resize_param", "resize_param",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where a message comes from, so that an error found later can still name a line."""

    path: str
    text: str = ""

    def line_of(self, field: str, value: str, occurrence: int = 0) -> int | None:
        """The line of `field: "value"`, counted from 1; None if the file does not have it."""
        pattern = rf"""(?<!\w){field}\s*:\s*["']?{re.escape(value)}["']?(?![\w.])"""
        found = [match for match in re.finditer(pattern, self.text) if not self._in_comment(match.start())]
        return self.text.count("\n", 0, found[occurrence].start()) + 1 if len(found) > occurrence else None

    def _in_comment(self, position: int) -> bool:
        return "#" in self.text[self.text.rfind("\n", 0, position) + 1 : position]

    def error(self, text: str, field: str = "", value: str = "") -> CaffeError:
        """An error at the line of `field: "value"`, or about the whole file."""
        line = self.line_of(field, value) if field else None
        error = CaffeError(f"{on_one_line(self.path)}:{line}: {text}" if line else f"{self.path}: {text}")
        error.located = True
        return error


def read_text(path: str, kind: str) -> tuple[Any, Origin]:
    """Reads a text file as a message of that kind. Raises CaffeError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Origin(path).error(f"cannot be read: {error}") from error
    parsed = message(kind)()
    try:
        text_format.Parse(text, parsed)
    except text_format.ParseError as error:
        explained = CaffeError(_explained(path, error))
        explained.located = True
        raise explained from error
    return parsed, Origin(path, text)


def _explained(path: str, error: text_format.ParseError) -> str:
    line, column = error.GetLine(), error.GetColumn()
    place = on_one_line(path) + (f":{line}:{column}" if line is not None else "")
    detail = re.sub(r"^\d+:\d+ : ", "", str(error))
    if found := _NO_FIELD.search(detail):
        if found["name"] in _INTEL.get(found["message"], ()):
            supported = "hint: prepare the images before, by convert_imageset; crop_size and mirror are supported"
            return f"{place}: {found['message']}: Intel Caffe's field {found['name']!r} is not supported\n{supported}"
        known = message(found["message"]).DESCRIPTOR.fields_by_name
        return f"{place}: {found['message']} has no field {found['name']!r}{nearest(found['name'], known)}"
    if found := _NO_VALUE.search(detail):
        values = _enum(found["enum"]).values_by_name
        expected = ", ".join(values)
        text = f"{found['enum'].split('.')[-1]} has no value {found['name']!r}; expected one of {expected}"
        return f"{place}: {text}{nearest(found['name'], values)}"
    return f"{place}: {detail}"


def _enum(name: str) -> Any:
    owner, _, simple = name.rpartition(".")
    if owner:
        return message(owner).DESCRIPTOR.enum_types_by_name[simple]
    return message("NetParameter").DESCRIPTOR.file.enum_types_by_name[simple]
