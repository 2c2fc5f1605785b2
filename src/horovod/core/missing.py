# SPDX-License-Identifier: Apache-2.0
"""Attributes that a package does not have: modules of it that are not loaded yet, and wrong names.

A module of a package is an attribute of it, and loaded when it is first asked for: Horovod's packages load many of
theirs at once, and scripts rely on it. For names that scripts look for in the wrong package, an import raises an
ImportError that names the right place, and an attribute AttributeError with the same text, so that hasattr() answers as
for any other name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["ELSEWHERE", "announce", "attribute", "error_of", "watch"]

_OF_A_FRAMEWORK = "import a framework's package, for example `import horovod.torch as hvd`"
_BROADCAST_IN_FIT = "callbacks.BroadcastGlobalVariablesCallback"
_SETS = "ProcessSet add_process_set remove_process_set"
_CALLBACKS = (
    "BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback LearningRateWarmupCallback "
    "MetricAverageCallback"
)


def _all_to(target: str, names: str) -> dict[str, str]:
    return {name: f"{target}{name}" for name in names.split()}


def _of_keras(package: str) -> dict[str, str]:
    return {
        **_all_to("horovod.core.", "broadcast_object allgather_object Min Max Product BitAnd BitOr BitXor"),
        **_all_to(f"{package}.callbacks.", _CALLBACKS),
        **_all_to("horovod.tensorflow.", "DistributedGradientTape SyncBatchNormalization broadcast_variables"),
        "broadcast_parameters": f"{package}.{_BROADCAST_IN_FIT}",
        "broadcast_optimizer_state": f"{package}.{_BROADCAST_IN_FIT}",
        "DistributedTrainer": f"{package}.DistributedOptimizer",
        "SyncBatchNorm": "horovod.tensorflow.SyncBatchNormalization",
    }


def _like_torch(package: str, optimizer: str) -> dict[str, str]:
    return {
        "broadcast_variables": f"{package}.broadcast_parameters",
        "broadcast_global_variables": f"{package}.broadcast_parameters",
        "DistributedGradientTape": f"{package}.{optimizer}",
        "callbacks": "horovod.keras.callbacks",
    }


# By package: what scripts look for there, and where it is, perhaps under another name.
ELSEWHERE = {
    "horovod": {
        "pytorch": "horovod.torch",
        "tf": "horovod.tensorflow",
        "tf_keras": "horovod.tensorflow.keras",
        "gluon": "horovod.mxnet",
        "flax": "horovod.jax",
        "optax": "horovod.jax",
        "numpy": "horovod.core",
    },
    "horovod.torch": {
        **_like_torch("horovod.torch", "DistributedOptimizer"),
        "DistributedTrainer": "horovod.torch.DistributedOptimizer",
        "SyncBatchNormalization": "horovod.torch.SyncBatchNorm",
    },
    "horovod.jax": {
        **_like_torch("horovod.jax", "value_and_grad"),
        "DistributedOptimizer": "horovod.jax.DistributedGradientTransformation",
        "DistributedTrainer": "horovod.jax.DistributedGradientTransformation",
        "SyncBatchNormalization": "horovod.jax.SyncBatchNorm",
    },
    "horovod.mxnet": _like_torch("horovod.mxnet", "DistributedTrainer"),
    "horovod.tensorflow": {
        **_all_to("horovod.tensorflow.keras.callbacks.", _CALLBACKS),
        "callbacks": "horovod.tensorflow.keras.callbacks",
        "load_model": "horovod.tensorflow.keras.load_model",
        "broadcast_parameters": "horovod.tensorflow.broadcast_variables",
        "broadcast_optimizer_state": "horovod.tensorflow.broadcast_variables",
        "DistributedTrainer": "horovod.tensorflow.DistributedOptimizer",
        "SyncBatchNorm": "horovod.tensorflow.SyncBatchNormalization",
    },
    "horovod.keras": {**_of_keras("horovod.keras"), **_all_to("horovod.core.", _SETS)},
    "horovod.tensorflow.keras": _of_keras("horovod.tensorflow.keras"),
}


def _elsewhere(full_name: str) -> str:
    package, _, name = full_name.rpartition(".")
    return ELSEWHERE.get(package, {}).get(name, "")


class _Finder:
    """Stands before the finders of files, which would say `No module named ...`.

    It does not derive from importlib.abc.MetaPathFinder, whose import loads 25 more modules.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        # Not a ModuleNotFoundError: `from horovod import spark` drops its text.
        if place := _elsewhere(fullname):
            raise ImportError(f"there is no {fullname}\nhint: use {place}", name=fullname)


def announce() -> None:
    """Makes imports of these names say where they are."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def attribute(package: str, name: str) -> ModuleType:
    """The module `name` of a package, loaded now. Raises AttributeError, as a package's `__getattr__` must.

    With the text of error_of() if there is no such module, and with that of the ImportError if it cannot be loaded.
    """
    from importlib.util import find_spec  # only here: it loads more modules

    full_name = f"{package}.{name}"
    if name.startswith("__") or _elsewhere(full_name) or find_spec(full_name) is None:
        raise error_of(package, name)
    try:
        return importlib.import_module(full_name)
    except ImportError as error:
        text = f"module {package!r} has no attribute {name!r}, as it cannot be imported: {error}"
        raise AttributeError(text, name=name) from error


def error_of(package: str, name: str) -> AttributeError:
    """The error that a package's `__getattr__` raises for a name that it does not have."""
    full_name = f"{package}.{name}"
    text = f"module {package!r} has no attribute {name!r}"
    if place := _elsewhere(full_name):
        return AttributeError(f"{text}\nhint: use {place}", name=name)
    if package == "horovod" or (package == "horovod.core" and name in _names_of_frameworks()):
        return AttributeError(f"{text}\nhint: {_OF_A_FRAMEWORK}", name=name)
    return AttributeError(text, name=name, obj=sys.modules.get(package))  # Python may know a similar name


def _names_of_frameworks() -> set[str]:
    return {"DistributedOptimizer", "elastic", "Compression", *(name for names in ELSEWHERE.values() for name in names)}


def watch(package: str) -> None:
    """Gives a package a `__getattr__` that does attribute(); type checkers do not see it, and refuse wrong names."""

    def get(name: str) -> ModuleType:
        return attribute(package, name)

    vars(sys.modules[package])["__getattr__"] = get
