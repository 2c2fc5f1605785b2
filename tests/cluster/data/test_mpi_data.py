# SPDX-License-Identifier: Apache-2.0
"""Data through MPI, over two hosts of two ranks: the contract's results, with the bits of every other way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.extent import THOROUGH
from support.schedulers.mpi_jobs import BY_MPI, command_line
from support.started import ROOT, Folder, environment

from horovod.core.native import DTYPE_NAMES

DTYPES = DTYPE_NAMES if THOROUGH else ("float32", "bfloat16")


@pytest.mark.slow("a job on several hosts")
@pytest.mark.parametrize(
    "name", ["mpich", "openmpi", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("openmpi4", "intel"))]
)
def test_results_through_mpi_are_those_of_the_reference(cluster: MakeCluster, tmp_path: Path, name: str) -> None:
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    env = environment(folder.home, PYTHONPATH=str(ROOT / "tests"), **BY_MPI)
    program = command_line(name, "-m", "support.scripts.contract_rows", *DTYPES)
    done = made.hosts[0].run(*program, env=env)
    ended = re.findall(r"(\d) of 4 over mpi: \d+ rows", done.stdout)  # lines of ranks may run into each other
    assert (done.returncode, sorted(ended)) == (0, ["0", "1", "2", "3"]), done
    assert "expected" not in done.stdout, done.stdout
