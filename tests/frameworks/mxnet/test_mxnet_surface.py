# SPDX-License-Identifier: Apache-2.0
"""Horovod 0.28.1's names for MXNet, with parameters and defaults, against ours; what an installation with MXNet says of
itself. The facts and the check are those of tests/unit/core/test_surface.py."""

from __future__ import annotations

import subprocess
import sys

import pytest
from unit.core import test_surface as surface

pytest.importorskip("mxnet", reason="not run: mxnet is not installed")


@pytest.mark.parametrize("module", [module for module in surface.SURFACE if module.startswith("horovod.mxnet")])
def test_a_module_has_horovods_names_parameters_and_defaults(module: str) -> None:
    surface.test_a_module_has_horovods_names_parameters_and_defaults(module)


@pytest.mark.parametrize("module", ["horovod.mxnet.functions", "horovod.mxnet.mpi_ops"])
def test_an_old_place_only_re_exports(module: str) -> None:
    surface.test_an_old_place_only_re_exports(module)


def test_a_name_of_another_package_says_where_it_is() -> None:
    surface.test_a_name_of_another_package_says_where_it_is("horovod.mxnet")


def test_modules_are_attributes_of_their_package() -> None:
    surface.test_modules_are_attributes_of_their_package("horovod.mxnet")


def test_check_build_lists_mxnet() -> None:
    command = [sys.executable, "-m", "horovod.launcher", "--check-build"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "    [X] MXNet" in done.stdout and "    [ ] PyTorch" in done.stdout


def test_an_mxnet_that_does_not_fit_is_an_error_of_the_import() -> None:
    """Another release, and an engine that forgets errors."""
    code = """if True:
    import os, mxnet
    for version, engine in (("2.0.0", ""), (mxnet.__version__, "NaiveEngine")):
        mxnet.__version__, os.environ["MXNET_ENGINE_TYPE"] = version, engine
        try:
            import horovod.mxnet
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "horovod.mxnet is for MXNet 1.9, got 2.0.0\nhint: pip install 'mxnet==1.9.1'" in done.stdout
    assert "MXNET_ENGINE_TYPE=NaiveEngine forgets the errors" in done.stdout
