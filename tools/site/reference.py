# SPDX-License-Identifier: Apache-2.0
"""The public names of each module, with signatures and docstrings, read from the source by griffe.

Nothing is imported: no framework has to be there. A name appears under the module that users import it from.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
# The modules that scripts import, in the order of the pages.
MODULES = (
    "horovod.torch",
    "horovod.torch.elastic",
    "horovod.torch.lightning",
    "horovod.torch.distributed",
    "horovod.tensorflow",
    "horovod.tensorflow.elastic",
    "horovod.tensorflow.data.compute_service",
    "horovod.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic",
    "horovod.keras",
    "horovod.keras.callbacks",
    "horovod.keras.elastic",
    "horovod.jax",
    "horovod.jax.nnx",
    "horovod.jax.elastic",
    "horovod.mxnet",
    "horovod.mxnet.elastic",
    "horovod.caffe",
    "horovod.core",
    "horovod",
    "horovod.common.exceptions",
    "horovod.data",
    "horovod.ray",
    "horovod.spark",
    "horovod.spark.torch",
    "horovod.spark.keras",
    "horovod.spark.lightning",
    "horovod.spark.common.store",
)
AS_HVD = re.compile(r"horovod\.(torch|tensorflow|keras|jax|mxnet|core|tensorflow\.keras|ray|spark|data)")
# Names that a module's __getattr__ makes, and where they are.
LAZY = {
    "horovod.run": "launcher.function.run_function.run",
    "horovod.jax.SyncBatchNorm": "jax.sync_batch_norm.SyncBatchNorm",
    "horovod.torch.lightning.HorovodStrategy": "torch.lightning.strategy._Strategy",
}
Types = dict[str, str]  # by type variable the type in its place


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    kind: str  # a directive of Sphinx's Python domain: function, class, method, property, attribute or data
    signature: str = ""  # parameters and result; empty for data
    text: str = ""
    value: str = ""  # of data
    members: tuple[Entry, ...] = ()


class Reference:
    """The package as griffe reads it."""

    def __init__(self) -> None:
        loader = griffe.GriffeLoader(search_paths=[str(ROOT / "src")], allow_inspection=False)
        self._package: Any = loader.load("horovod")
        loader.resolve_aliases(implicit=True, external=False)

    def text_of(self, module: str) -> str:
        """The module's docstring, without the words for readers of the code."""
        return re.sub(r"\s*No step of a gradient's way\.", "", _text(self._found(module)))

    def entries(self, module: str) -> list[Entry]:
        """The public names of a module; constants come last. Submodules among them have pages of their own."""
        found = [self._entry(self._found(module), name) for name in self._names(module)]
        return sorted(filter(None, found), key=lambda one: (one.kind == "data", one.name.lower()))

    def _names(self, module: str) -> set[str]:
        """Those of `__all__`, or of the stub if it is computed, and those that `__getattr__` makes."""
        here = self._found(module)
        names = {str(name) for name in here.exports or ()} or self._names_of_stub(here)
        names = names or {name for name, one in here.members.items() if not one.is_alias and not one.is_module}
        lazy = {path.rpartition(".")[2] for path in LAZY if path.rpartition(".")[0] == module}
        return {name for name in names | lazy if not name.startswith("_")}

    def _names_of_stub(self, module: Any) -> set[str]:
        stub = Path(module.filepath).with_suffix(".pyi")
        names: set[str] = set()
        for node in ast.parse(stub.read_text()).body if stub.exists() else ():
            if isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                names |= {str(name) for name in self._found(str(node.module)).exports}
            elif isinstance(node, ast.ImportFrom):
                names |= {one.asname for one in node.names if one.asname == one.name}
        return names

    def _found(self, path: str) -> Any:
        return self._package if path == "horovod" else self._package[path.removeprefix("horovod.")]

    def _entry(self, module: Any, name: str) -> Entry | None:
        path = f"{module.path}.{name}"
        found = self._found(LAZY[path]) if path in LAZY else module.members[name]
        if found.is_module and name in module.imports:  # a submodule has the name, too
            found = self._found(module.imports[name])
        try:
            found, types = self._resolved(found)
        except griffe.AliasResolutionError as error:  # of another package, which is not read
            return Entry(name, "data", "", f"Another name of `{error.alias.target_path}`.")
        if found.is_module:
            return None
        if found.is_class:
            return _class(name, found)
        if found.is_function:
            return Entry(name, "function", signature_of(found, types), _text(found))
        return Entry(name, "data", "", _text(found), "" if found.value is None else str(found.value))

    def _resolved(self, found: Any) -> tuple[Any, Types]:
        """Follows a name: `allreduce = operations.allreduce` is a method of the class of `operations`."""
        found = _final(found)
        owner, _, name = str(found.value if found.is_attribute else "").rpartition(".")
        around = found.parent.members if found.parent else {}
        if not owner:
            return self._resolved(around[name]) if name in around else (found, {})
        if owner not in around:
            return found, {}
        made = _final(around[owner])
        maker = made.parent.members.get(str(made.value).partition("(")[0])
        if maker is None:
            return found, {}
        maker = _final(maker)
        if not maker.is_class:
            return _class_inside(maker, name), {}
        typed = [made.annotation, *maker.bases]
        meant = [one[1] for one in (re.fullmatch(r"Operations\[(.*)\]", str(text)) for text in typed) if one]
        return _final(maker.all_members[name]), {"T": meant[0]}


def _final(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def _class_inside(function: Any, name: str) -> Any:
    """A class that a function makes."""
    tree = ast.parse(Path(function.filepath).read_text())
    node = next(one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == name)
    return griffe.visit(function.module.name, filepath=function.filepath, code=ast.unparse(node)).members[name]


def _class(name: str, found: Any) -> Entry:
    """With all public members that have a docstring, those of bases in this package included."""
    try:
        members = found.all_members
    except KeyError:  # a base that is made at run time
        members = found.members
    own = {
        key: _final(one) for key, one in members.items() if not one.is_alias or one.target_path.startswith("horovod.")
    }
    shown = []
    for key, one in sorted(own.items()):
        if key.startswith("_") or not one.has_docstring:
            continue
        if one.is_function:
            shown.append(Entry(key, "method", signature_of(one, {}), _text(one)))
        elif one.is_attribute:
            shown.append(Entry(key, "property" if "property" in one.labels else "attribute", "", _text(one)))
    start = own.get("__init__")
    if start is None or not start.is_function:
        return Entry(name, "class", "", _text(found), "", tuple(shown))
    text = "\n\n".join(filter(None, [_text(found), _text(start)]))
    return Entry(name, "class", signature_of(start, {}, result=False), text, "", tuple(shown))


def signature_of(function: Any, types: Types, result: bool = True) -> str:
    """As Python writes it, on one line, without self."""
    parts: list[str] = []
    for number, one in enumerate(function.parameters):
        if number == 0 and one.name in ("self", "cls"):
            continue
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(one.kind.value, "")
        if one.kind.value == "keyword-only" and not any(part.startswith("*") for part in parts):
            parts.append("*")
        annotation = "" if one.annotation is None else f": {one.annotation}"
        equals = " = " if annotation else "="
        default = "" if one.default is None or stars else f"{equals}{one.default}"
        parts.append(stars + one.name + annotation + default)
    returned = f" -> {function.returns}" if result and function.returns is not None else ""
    text = f"({', '.join(parts)}){returned}"
    for variable, meant in types.items():
        text = re.sub(rf"\b{variable}\b", meant, text)
    return text


def _text(found: Any) -> str:
    return inspect.cleandoc(found.docstring.value) if found.docstring else ""
