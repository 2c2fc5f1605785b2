# SPDX-License-Identifier: Apache-2.0
"""Helpers that some scripts took from Horovod, by their old import name. No step of a gradient's way.

Horovod compiled one extension for each framework; here one native core serves them all. So `an extension is available`
means that the framework's package is there and the core can be opened.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from horovod.core import basics, native
from horovod.core.collectives import resolve_op
from horovod.core.exceptions import HorovodVersionMismatchError
from horovod.core.wording import plain, tell
from horovod.settings import changed_environment as env

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

_SEES_GPUS: dict[str, Callable[[Any], bool]] = {
    "tensorflow": lambda tf: bool(tf.config.list_physical_devices("GPU")),
    "torch": lambda torch: bool(torch.cuda.is_available()),
    "mxnet": lambda mxnet: mxnet.context.num_gpus() > 0,
}

# Unlike those of a framework's package, these take `verbose`; there is nothing more to tell.


def mpi_built(verbose: bool = False) -> bool:
    """See core/basics.py."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """See core/basics.py."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """See core/basics.py."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """See core/basics.py."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """See core/basics.py."""
    return basics.ccl_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """True if horovod.<ext_base_name> can be used: it exists, its framework is installed, and the native core opens."""
    try:
        check_extension(ext_base_name, "", "")
    except ImportError as error:
        if verbose:
            tell(error, sys.stdout)
        return False
    return True


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Raises ImportError that says why horovod.<ext_name> cannot be used.

    `ext_name` may hold the package's full name; the other arguments named a compiled extension and are not used.
    """
    framework = ext_name.removeprefix("horovod.")
    if importlib.util.find_spec("horovod." + framework) is None:
        raise ImportError(f"horovod.{framework} does not exist in this version")
    if importlib.util.find_spec(framework) is None:
        raise ImportError(f"horovod.{framework} needs {framework}, which is not installed")
    native.library()


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """True if that framework sees a GPU in this process. `ext_base_name` may be the package's full name."""
    framework = ext_base_name.removeprefix("horovod.").partition(".")[0]
    if framework not in _SEES_GPUS or importlib.util.find_spec(framework) is None:
        return False
    return _SEES_GPUS[framework](importlib.import_module(framework))


def get_ext_suffix() -> str:
    """The suffix of compiled Python extensions on this machine."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: Any) -> str:
    """The path of the native core; the arguments named a compiled extension and are not used."""
    return str(native.library_path())


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of HorovodVersionMismatchError."""
    return str(HorovodVersionMismatchError(name, version, installed_version))


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Compares `version` with that of the installed framework, and warns if they differ.

    It does not matter here, as nothing is compiled against a framework. With `exception`: raises
    HorovodVersionMismatchError caused by it instead of the warning.
    """
    installed = str(importlib.import_module(name).__version__)
    if installed == version:
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, installed) from exception
    warnings.warn(plain(get_version_mismatch_message(name, version, installed)), stacklevel=2)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """The function (op, average) -> op."""
    return resolve_op


def is_iterable(x: Any) -> bool:
    """True if iter(x) works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """True if version `ver` is `target` or later, by the numbers that it begins with.

    Raises ValueError if a version does not begin with a number.
    """
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ValueError(f"version {version!r}: expected numbers with dots between them")
    numbers = [int(number) for number in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def num_rank_is_power_2(num_rank: int) -> bool:
    """True if `num_rank` is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741
    """`l` in n parts, in order; the first parts are one longer if it cannot be divided evenly."""
    size, longer = divmod(len(l), n)
    starts = [part * size + min(part, longer) for part in range(n + 1)]
    return [l[a:b] for a, b in itertools.pairwise(starts)]
