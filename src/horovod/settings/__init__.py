# SPDX-License-Identifier: Apache-2.0
"""The settings: environment variables, flags, YAML keys and keywords, each a row of one table."""

from horovod.settings.table import (
    Row,
    SettingError,
    Settings,
    change_environment,
    changed_environment,
    current_environment,
    environment_of,
    job_directory,
    parse_flag,
    rows,
)

__all__ = [
    "Row",
    "SettingError",
    "Settings",
    "change_environment",
    "changed_environment",
    "current_environment",
    "environment_of",
    "job_directory",
    "parse_flag",
    "rows",
]
