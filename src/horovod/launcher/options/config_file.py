# SPDX-License-Identifier: Apache-2.0
"""The file of --config-file: YAML, whose keys are other spellings of flags.

    params:
      fusion_threshold_mb: 32
    stall_check:
      enabled: false

A key of a setting is the `yaml` of its row in settings/table.py; the others are those of settings/without_effect.py,
and `controller`. A flag wins over the file, and the file over an environment variable.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

from horovod.core.wording import on_one_line, plain
from horovod.launcher.options.usage import UsageError
from horovod.settings import Row, SettingError, parse_flag, rows
from horovod.settings.without_effect import WITHOUT_EFFECT, OldFlag

__all__ = ["ConfigFile", "read_config_file"]

_CONTROLLERS = ("gloo", "mpi")
_OPPOSITE = "not "  # in front of a row's key that says the opposite of its setting


@dataclasses.dataclass
class ConfigFile:
    """The contents of a file. `without_effect`: keys that do nothing, each with the reason (without_effect.notes)."""

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # by keyword
    controller: str | None = None
    without_effect: list[tuple[str, str]] = dataclasses.field(default_factory=list)


class _ValueError(ValueError):
    """The text says what the value should have been."""


# Puts a value into what the file says. Raises _ValueError.
_Take = Callable[[ConfigFile, Any], None]


def read_config_file(filename: str) -> ConfigFile:
    """Raises UsageError, which names every key that cannot be used, and what was expected."""
    known = _known_keys()
    config = ConfigFile()
    problems = []
    for key, value in _entries(_loaded(filename)):
        take = known.get(key)
        if take is None and value is None and _is_section(key, known):
            continue
        if take is None:
            problems.append(f"{on_one_line(key)}: {_unknown(key, list(known))}")
        elif value is not None:  # a key without a value says nothing
            try:
                take(config, value)
            except _ValueError as expected:
                problems.append(f"{on_one_line(key)}: {value!r}: expected {expected}")
    if problems:
        raise UsageError("\n".join(f"--config-file {on_one_line(filename)}: {problem}" for problem in problems))
    return config


def _loaded(filename: str) -> dict[Any, Any]:
    try:
        import yaml
    except ImportError:
        raise UsageError("--config-file needs PyYAML\nhint: pip install pyyaml") from None
    try:
        found = yaml.safe_load(Path(filename).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config-file {on_one_line(filename)}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        why = indent(plain(error), "  ").lstrip()
        raise UsageError(f"--config-file {on_one_line(filename)}: not YAML: {why}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"--config-file {on_one_line(filename)}: expected keys, such as `params:`, got {found!r}")
    return found


def _entries(section: dict[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield from _entries(value, f"{key}.")
        else:
            yield key, value


def _is_section(key: str, known: Iterable[str]) -> bool:
    return any(one.startswith(f"{key}.") for one in known)


def _unknown(key: str, known: list[str]) -> str:
    if _is_section(key, known):
        return f"expected keys below it, such as {next(one for one in known if one.startswith(key))}"
    nearest = difflib.get_close_matches(key, known, 1, cutoff=0.0)[0]
    return f"there is no such key; the nearest one is {nearest}"


def _known_keys() -> dict[str, _Take]:
    known: dict[str, _Take] = {"controller": _take_controller}
    for row in rows():
        if row.yaml is not None:
            known[row.yaml.removeprefix(_OPPOSITE)] = _setting(row)
    for flag in WITHOUT_EFFECT:
        known[flag.yaml] = _old_flag(flag)
    return known


def _take_controller(config: ConfigFile, value: Any) -> None:
    config.controller = str(value).lower()
    if config.controller not in _CONTROLLERS:
        raise _ValueError("one of " + ", ".join(_CONTROLLERS))


def _setting(row: Row) -> _Take:
    def take(config: ConfigFile, value: Any) -> None:
        if row.parse is str and not isinstance(value, str):
            raise _ValueError(row.expected)
        try:
            parsed = parse_flag(row, _text(value))
        except SettingError:
            raise _ValueError("true or false" if isinstance(row.default, bool) else row.expected) from None
        opposite = row.yaml is not None and row.yaml.startswith(_OPPOSITE)
        config.settings[row.keyword] = not parsed if opposite else parsed

    return take


def _old_flag(flag: OldFlag) -> _Take:
    def take(config: ConfigFile, value: Any) -> None:
        try:
            parsed = flag.parse(_text(value))
        except ValueError:
            raise _ValueError("true or false" if flag.is_switch else flag.kind[1]) from None
        if parsed is not False or flag.both:
            config.without_effect.append((flag.yaml, flag.why))

    return take


def _text(value: Any) -> str:
    """As a flag's value is written."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
