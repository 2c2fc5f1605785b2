# SPDX-License-Identifier: Apache-2.0
"""Horovod's flags and environment variables that do nothing here, so that old scripts go on; and misspelt variables.

A flag without effect is accepted, its value is checked, and one line says why it does nothing. horovodrun says it, or
else rank 0 in init.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from horovod.settings import kinds
from horovod.settings.table import rows

__all__ = ["OLD_VARIABLES", "WITHOUT_EFFECT", "OldFlag", "notes", "variables_without_effect"]

_PREFIX = "HOROVOD_"


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    value = float(text)
    if math.isnan(value) or not 0 <= value <= 1:
        raise ValueError(text)
    return value


_COUNT = (_count, "a whole number, 0 or more")
_SHARE = (_share, "a number from 0 to 1")
_SWITCH = kinds.switch()
_TEXT = (str, "text")

_TUNED = "algorithms are chosen by size, ranks and hosts; what has to be measured is measured without a flag"
_SHAPED = "data in host memory always takes the hierarchical way between hosts; NCCL finds its own"
_THREADS = "horovodrun's own transports use no MPI"
_TIMEOUTS = "--start-timeout limits the start, HOROVOD_LOST_TIMEOUT_SECONDS the silence of a rank"


@dataclasses.dataclass(frozen=True)
class OldFlag:
    """`why` it has no effect. `yaml`: its key in a configuration file. `both`: said also if it is switched off."""

    name: str
    kind: tuple[Callable[[str], Any], str]
    yaml: str
    why: str
    both: bool = False

    @property
    def variable(self) -> str:
        """Its spelling as an environment variable."""
        return _PREFIX + self.name[2:].upper().replace("-", "_").removesuffix("_FILE")

    @property
    def is_switch(self) -> bool:
        return self.kind is _SWITCH

    def parse(self, text: str) -> Any:
        """Raises ValueError for what is not `kind`."""
        return self.kind[0](text)


WITHOUT_EFFECT = (
    OldFlag("--hierarchical-allgather", _SWITCH, "params.hierarchical_allgather", _SHAPED, both=True),
    OldFlag("--autotune", _SWITCH, "autotune.enabled", _TUNED),
    OldFlag("--autotune-log-file", _TEXT, "autotune.log_file", _TUNED),
    OldFlag("--autotune-warmup-samples", _COUNT, "autotune.warmup_samples", _TUNED),
    OldFlag("--autotune-steps-per-sample", _COUNT, "autotune.steps_per_sample", _TUNED),
    OldFlag("--autotune-bayes-opt-max-samples", _COUNT, "autotune.bayes_opt_max_samples", _TUNED),
    OldFlag("--autotune-gaussian-process-noise", _SHARE, "autotune.gaussian_process_noise", _TUNED),
    OldFlag("--mpi-threads-disable", _SWITCH, "library_options.mpi_threads_disable", _THREADS),
    OldFlag("--gloo-timeout-seconds", _COUNT, "library_options.gloo_timeout_seconds", _TIMEOUTS),
)


# Horovod has no flags for these.
OLD_VARIABLES = {
    "HOROVOD_BATCH_D2D_MEMCOPIES": "NCCL takes the tensors of a batch as one group, without copies",
    "HOROVOD_CCL_CACHE": "there is no oneCCL; Horovod's own transports and MPI carry tensors in host memory",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum chooses its chunks itself",
    "HOROVOD_DISABLE_NVTX_RANGES": "there are no NVTX ranges; HOROVOD_TIMELINE records the operations",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "only the stream that uses a GPU's result waits for it, in any case",
    "HOROVOD_ENABLE_XLA_OPS": "functions that XLA compiles need no switch",
}


def variables_without_effect(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that do nothing, or are almost named like a setting, each with the reason. For `notes`."""
    known = [row.variable for row in rows()]
    old = {flag.variable: flag for flag in WITHOUT_EFFECT}
    found = []
    for name in sorted(name for name in environment if name.startswith(_PREFIX)):
        if name in OLD_VARIABLES:
            found.append((name, OLD_VARIABLES[name]))
        elif name in old:
            found += [(name, old[name].why)] if _asks_for_it(old[name], environment[name]) else []
        elif name not in known:
            nearest = difflib.get_close_matches(name, known, 1, cutoff=0.9)
            found += [(name, f"there is no such setting; did you mean {one}?") for one in nearest]
    return found


def _asks_for_it(old: OldFlag, text: str) -> bool:
    """False for a switch that is off, or an empty value: nothing is missed then."""
    try:
        return bool(text.strip()) and (old.both or not old.is_switch or old.parse(text))
    except ValueError:
        return True


def notes(given: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each reason. `given`: names as the user wrote them, each with the reason."""
    names: dict[str, list[str]] = {}
    for name, why in given:
        names.setdefault(why, []).append(name)
    return [f"{', '.join(same)} {'have' if len(same) > 1 else 'has'} no effect: {why}" for why, same in names.items()]
