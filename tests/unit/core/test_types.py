# SPDX-License-Identifier: Apache-2.0
"""Names that editors and type checkers see. Their types are checked by `make lint`, with tests/typing/script.py."""

from __future__ import annotations

import ast
from pathlib import Path

import horovod
import horovod.core
import horovod.torch
from horovod.core import basics

STUB = Path(horovod.core.__file__).with_suffix(".pyi")


def test_the_package_says_that_it_has_types() -> None:
    assert Path(horovod.__file__).with_name("py.typed").exists()


def test_the_stub_of_core_has_the_names_that_are_loaded_when_they_are_used() -> None:
    tree = ast.parse(STUB.read_text())
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assigned = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    assert (imported | assigned | set(basics.__all__)) - {None, "_operations"} == set(horovod.core.__all__)


def test_dir_shows_public_names_alone() -> None:
    shown = set(dir(horovod.torch))
    assert {"allreduce", "DistributedOptimizer", "elastic", "init"} <= shown
    assert not shown & {"basics", "ops", "adasum_optimizer", "parameter_gradients", "annotations"}
    assert dir(horovod.core) == sorted(horovod.core.__all__)
