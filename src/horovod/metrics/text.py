# SPDX-License-Identifier: Apache-2.0
"""Samples as text: OpenMetrics 1.0, and the older format of Prometheus.

Node exporter's textfile collector reads only the older one, where a counter's family has its suffix, and an info metric
is a gauge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from horovod.metrics.series import Family, Sample

__all__ = ["OPEN_METRICS", "PLAIN", "in_open_metrics", "in_plain_text"]

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_SUFFIX = {"counter": "_total", "info": "_info", "gauge": ""}


def in_open_metrics(samples: Iterable[Sample]) -> str:
    """Samples of a family follow each other."""
    lines = []
    for family, rows in itertools.groupby(samples, lambda sample: sample.family):
        lines.append(f"# TYPE {family.name} {family.kind}")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}")
        lines.append(f"# HELP {family.name} {family.help}")
        lines += map(_line, rows)
    return "\n".join([*lines, "# EOF", ""])


def in_plain_text(samples: Iterable[Sample]) -> str:
    """Return the samples in Prometheus' older format."""
    lines = []
    for family, rows in itertools.groupby(samples, lambda sample: sample.family):
        name = _full_name(family)
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind.replace('info', 'gauge')}"]
        lines += map(_line, rows)
    return "\n".join([*lines, ""])


def _full_name(family: Family) -> str:
    return family.name + _SUFFIX[family.kind]


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{_full_name(sample.family)}{{{labels}}} {sample.value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
