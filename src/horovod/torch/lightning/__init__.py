# SPDX-License-Identifier: Apache-2.0
"""Lightning on Horovod: `import horovod.torch.lightning`, then `Trainer(strategy="horovod")` in a job of any launcher.

Lightning has two import names, `lightning.pytorch` and `pytorch_lightning`, with classes of their own. The strategy is
registered in each that is imported, before this module or after it. `HorovodStrategy` is that of the imported one.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from horovod.torch.lightning.strategy import register, strategy_of

__all__ = ["HorovodStrategy", "package"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def package() -> str:
    """The import name of Lightning that this process uses: one that it has imported, or else one that it can import."""
    found = [name for name in PACKAGES if sys.modules.get(name)]
    found = found or [name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0])]
    if not found:
        raise ImportError("horovod.torch.lightning needs Lightning\nhint: pip install lightning")
    return found[0]


def __getattr__(name: str) -> Any:
    if name == "HorovodStrategy":
        return strategy_of(package())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Finder:
    """Comes before the other finders, and registers the strategy in a Lightning that is imported later."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in PACKAGES:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_register(module: ModuleType) -> None:
                execute(module)
                register(module)

            spec.loader.exec_module = and_register  # type: ignore[method-assign]
        return spec


for _name in PACKAGES:
    if _name in sys.modules:
        register(sys.modules[_name])
sys.meta_path.insert(0, _Finder())
