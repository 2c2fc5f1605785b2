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


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    kind: str  # a directive of Sphinx's Python domain: function, class, method, property, data, ...
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
        return _text(self._module(module))

    def entries(self, module: str) -> list[Entry]:
        """The public names of a module. Submodules among them have pages of their own."""
        found = [self._entry(self._module(module), name) for name in self.names(module)]
        return sorted(filter(None, found), key=lambda one: (one.kind == "data", one.name.lower()))

    def names(self, module: str) -> list[str]:
        """Those of `__all__`, and what a script gets from the module's `__getattr__`."""
        here = self._module(module)
        exported = [str(name) for name in here.exports or ()]
        if not exported:  # computed; a stub or the definitions show them
            exported = [name for name, one in here.members.items() if one.is_alias and _is_stub(here, one)]
            exported += [name for name, one in here.members.items() if not one.is_alias and not one.is_module]
        lazy = [one.removesuffix(",") for one in LAZY.get(module, "").split()]
        return sorted({name for name in [*exported, *lazy] if not name.startswith("_")})

    def _module(self, module: str) -> Any:
        return self._package[module.removeprefix("horovod.")] if module != "horovod" else self._package

    def _entry(self, module: Any, name: str) -> Entry | None:
        found = module.members.get(name)
        if found is None:
            found = self._package[LAZY_HOMES[f"{module.path}.{name}"]]
        try:
            found, types = self._resolved(found)
        except griffe.AliasResolutionError as error:  # of another package, which is not read
            return Entry(name, "data", "", f"Another name of `{error.alias.target_path}`.")
        if found.is_module:
            return None
        if found.is_class:
            return self._class(name, found)
        if found.is_function:
            return Entry(name, "function", signature_of(found, types), _text(found))
        return Entry(name, "data", "", _text(found), "" if found.value is None else str(found.value))

    def _resolved(self, found: Any) -> tuple[Any, dict[str, str]]:
        """What a name stands for, and the types in place of type variables.

        `allreduce = operations.allreduce` is a method of the class of `operations`.
        """
        found = found.final_target if found.is_alias else found
        parts = str(found.value).split(".") if found.is_attribute and found.value is not None else []
        if len(parts) == 1 and parts[0].isidentifier() and parts[0] in found.parent.members:
            return self._resolved(found.parent.members[parts[0]])
        if len(parts) != 2 or parts[0] not in found.parent.members:
            return found, {}
        owner = found.parent.members[parts[0]]
        owner = owner.final_target if owner.is_alias else owner
        made = re.match(r"([\w.]+)(?:\[(\w+)\])?\(", str(owner.value))
        maker = made and owner.parent.members.get(made[1])
        if not maker:
            return found, {}
        maker = maker.final_target if maker.is_alias else maker
        if maker.is_class:
            bases = [re.match(r"\w+\[(\w+)\]", str(base)) for base in maker.bases]
            types = [made[2], *(base[1] for base in bases if base)]
            return maker.all_members[parts[1]].final_target if maker.all_members[parts[1]].is_alias else (
                maker.all_members[parts[1]]
            ), {"T": next(filter(None, types), "Any")}
        return _class_inside(maker, parts[1]), {}

    def _class(self, name: str, found: Any) -> Entry:
        try:
            members = found.all_members
        except KeyError:  # a base that is made at run time
            members = found.members
        shown = []
        for member_name, one in sorted(members.items()):
            if one.is_alias and not str(one.target_path).startswith("horovod."):
                continue
            one = one.final_target if one.is_alias else one
            if member_name.startswith("_") or not one.has_docstring:
                continue
            if one.is_function:
                kind = "method"
                shown.append(Entry(member_name, kind, signature_of(one, {}, bound=True), _text(one)))
            elif one.is_attribute:
                kind = "property" if "property" in one.labels else "attribute"
                shown.append(Entry(member_name, kind, "", _text(one)))
        start = members.get("__init__")
        start = start.final_target if start is not None and start.is_alias else start
        takes = start.is_function if start is not None else False
        signature = signature_of(start, {}, bound=True, result=False) if takes else ""
        text = "\n\n".join(filter(None, [_text(found), _text(start) if takes else ""]))
        return Entry(name, "class", signature, text, "", tuple(shown))


# Names that a module's __getattr__ loads, and where they are.
LAZY_HOMES = {
    "horovod.run": "launcher.function.run_function.run",
    "horovod.jax.SyncBatchNorm": "jax.sync_batch_norm.SyncBatchNorm",
    "horovod.torch.lightning.HorovodStrategy": "torch.lightning.strategy._Strategy",
}
LAZY: dict[str, str] = {}
for _path in LAZY_HOMES:
    LAZY[_path.rpartition(".")[0]] = _path.rpartition(".")[2]


def _is_stub(module: Any, alias: Any) -> bool:
    return str(alias.target_path).startswith("horovod.")


def _class_inside(function: Any, name: str) -> Any:
    """A class that is defined in a function's body."""
    source = function.source
    tree = ast.parse(inspect.cleandoc("\n" + source))
    node = next(one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == name)
    module = griffe.visit(function.module.name, filepath=function.filepath, code=ast.unparse(node), parent=None)
    return module.members[name]


def signature_of(function: Any, types: dict[str, str], bound: bool = False, result: bool = True) -> str:
    """As Python writes it, on one line, without self."""
    parts, keyword_only = [], False
    for one in list(function.parameters):
        if one.name in ("self", "cls") and one is list(function.parameters)[0]:
            continue
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(one.kind.value, "")
        if one.kind.value == "keyword-only" and not keyword_only:
            parts += [] if any(part.startswith("*") for part in parts) else ["*"]
            keyword_only = True
        keyword_only = keyword_only or stars == "*"
        text = stars + one.name
        annotation = "" if one.annotation is None else f": {one.annotation}"
        default = "" if one.default is None or stars else f" = {one.default}" if annotation else f"={one.default}"
        parts.append(text + annotation + default)
    returned = f" -> {function.returns}" if result and function.returns is not None else ""
    text = f"({', '.join(parts)}){returned}"
    for variable, meant in types.items():
        text = re.sub(rf"\b{variable}\b", meant, text)
    return text


def _text(found: Any) -> str:
    return inspect.cleandoc(found.docstring.value) if found.docstring else ""
