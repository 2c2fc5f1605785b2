# SPDX-License-Identifier: Apache-2.0
"""Who may import whom, as ARCHITECTURE.md says it."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import horovod

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(horovod.__file__).parent
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "mxnet", "ray"}
# What a folder may import of ours, besides itself.
ALLOWED = {
    "settings": set(),
    "world": {"horovod", "core", "settings"},  # of the core: see below
    "metrics": {"horovod", "world", "settings"},
    "core": {"world", "settings", "metrics"},
    "gradients": {"core", "world", "settings"},  # of the world: how files are written, and versions
    "launcher": {"horovod", "core", "world", "settings", "elastic"},
    "elastic": {"core", "world", "settings"},
    "torch": {"core", "gradients", "elastic"},
    # The data service has a rendezvous of its own. Keras: see below.
    "tensorflow": {"core", "gradients", "world", "settings", "elastic", "common", "keras"},
    "jax": {"core", "gradients", "elastic"},
    "mxnet": {"core", "gradients", "settings", "elastic", "common"},
    "keras": {"core", "gradients", "elastic", "tensorflow", "torch", "jax"},  # the package of its backend
    "_keras": {"core", "keras"},
    "common": {"core", "settings", "elastic"},
    "runner": {"core", "settings", "elastic", "launcher"},
    "trace": {"horovod", "core", "world"},  # of the core: wording; of the world: how files are written
    "simulate": {"core", "world", "gradients", "trace"},  # of trace: the parts of pages; of gradients: the profile
    "bench": {"horovod", "simulate", "core", "world", "settings", "launcher", "torch"},
    "caffe": {"core", "world", "settings", "launcher", "gradients", "torch"},
    "ray": {"core", "world", "settings", "launcher", "elastic", "torch", "runner"},  # torch: collectives between actors
    "data": {"core", "world"},  # of the world: how files are written
    # Its estimators also the package of their framework.
    "spark": {"horovod", "core", "world", "settings", "launcher", "data", "torch", "keras", "tensorflow"},
}
# The core stands on the world, which takes these leaves of it.
LEAVES = {"exceptions", "native", "temporary_files", "wording"}
# Frameworks of other names: the one that bench compares with, and the engine of caffe.
BUILT_ON = {
    "bench": {"torch"},
    "caffe": {"torch"},
    "data": {"torch", "tensorflow"},
    "spark": {"torch", "keras", "tensorflow", "jax"},
}
# The modules beside the folders, which a user meets first. `horovod` itself stands for all of them above.
ALLOWED_AT_TOP: dict[str, set[str]] = {"__init__": {"core", "launcher", "horovod"}}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names |= {node.module or ""} if node.module != "horovod" else {f"horovod.{a.name}" for a in node.names}
    return names


def modules_in(path: Path) -> set[str]:
    """As imported(), with each name that is imported from a package of ours: it may be a module."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return imported(path) | {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_a_folder_imports_only_what_it_may(folder: str) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "horovod":
                part = parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "horovod"
                assert part in ALLOWED[folder] | {folder}, f"{path} imports {name}"
            elif folder not in (parts[0], "tensorflow", "keras") and parts[0] not in BUILT_ON.get(folder, ()):
                assert parts[0] not in FRAMEWORKS, f"{path} imports {name}"


def test_every_part_of_the_package_stands_in_the_table() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.rglob("*.py"))}
    assert folders == set(ALLOWED)
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(ALLOWED_AT_TOP)


@pytest.mark.parametrize("module", sorted(ALLOWED_AT_TOP))
def test_a_module_at_the_top_imports_only_what_it_may(module: str) -> None:
    for name in imported(PACKAGE / f"{module}.py"):
        parts = name.split(".")
        assert parts[0] not in FRAMEWORKS, name
        if parts[0] == "horovod":
            part = parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "horovod"
            assert part in ALLOWED_AT_TOP[module], name


def test_of_tensorflows_package_only_its_part_for_keras_imports_ours_for_keras() -> None:
    """So that the packages stand on each other: tensorflow, keras with its backends, tensorflow.keras."""
    for path in (PACKAGE / "tensorflow").rglob("*.py"):
        if path.parent.name != "keras":
            assert not [name for name in imported(path) if name.startswith("horovod.keras")], path


def test_private_modules_of_frameworks_are_imported_only_where_architecture_says() -> None:
    private = re.compile(r"(jax|tensorflow|keras|tf_keras|torch|mxnet|ray)\.(_|src\.|python\.|.*\._)")
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Private interfaces of frameworks")[1].split("\n## ")[0]
    listed = set(re.findall(r"\| `([a-z/_]+\.py)` \|", section))
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(private.match(name) for name in modules_in(path))
    }
    assert found == listed


def test_the_world_imports_leaves_of_the_core_only() -> None:
    of_core = re.compile(r"horovod\.core\.(\w+)")
    for folder, allowed in (("world", LEAVES), ("core", LEAVES)):
        for path in (PACKAGE / folder).rglob("*.py"):
            if folder == "world" or path.stem in LEAVES:
                names = {part for name in modules_in(path) for part in of_core.findall(name)}
                assert names <= allowed, f"{path} imports {names - allowed}"


FOLDERS = ["core", "world", "gradients", "settings", "elastic", "torch", "jax", "tensorflow/data", "keras", "mxnet"]
FOLDERS += ["simulate", "caffe", "common", "launcher", "ray", "data", "spark"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_modules_of_a_folder_import_each_other_in_a_circle(folder: str) -> None:
    """Imports inside of functions count as well."""
    paths = (PACKAGE / folder).rglob("*.py")
    inside = {path: ".".join(("horovod", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths}
    edges = {}
    for path, name in inside.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        edges[name] = (found & set(inside.values())) - {name}
    assert len(edges) > 1 and any(edges.values())
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(f"they import each other: {' -> '.join(error.args[1])}") from None


def test_horovodrun_and_the_core_load_no_framework_and_no_importlib_resources() -> None:
    code = (
        "import sys; import horovod.launcher.cli, horovod.launcher.host.agent, horovod.world.bootstrap; "
        f"print(sorted(({FRAMEWORKS!r} | {{'numpy', 'horovod.elastic', 'importlib.resources'}}) & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_no_lazy_name_of_core_is_a_modules_as_well() -> None:
    """Whoever imported the module first would get it in place of the function."""
    import horovod.core

    modules = {path.stem for path in (PACKAGE / "core").glob("*.py")}
    assert not modules & set(horovod.core._MODULE_OF)
