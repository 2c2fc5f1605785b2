# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.bench link` in two ranks, each on a host of its own by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.forecasts import undisturbed
from support.jobs import Done, run_job

from horovod.simulate.links import link_of


def measure(folder: Path, *flags: str) -> Done:
    bench = [sys.executable, "-m", "horovod.bench", "link", "--seconds", "0.1", *flags]
    return run_job(folder, "-np", "2", "-H", "localhost:1,127.0.0.1:1", bench)


@pytest.mark.slow("measures a link")
def test_the_file_has_the_measured_rate_if_a_lower_one_is_given(tmp_path: Path) -> None:
    done = measure(tmp_path, "--gbit", "0.001")
    assert done.code == 0, done
    link = link_of(undisturbed(tmp_path / "link.json"))
    assert link.utilisation[1] == 1 and link.interference is not None
    assert f"--gbit 0.001 does not fit this rate: the file has {link.gbit:.2f} in its place\n" in done.stdout


def test_a_file_that_cannot_be_written_is_one_error_of_rank_0_before_the_measurement(tmp_path: Path) -> None:
    done = measure(tmp_path, "--json", "nodir/x.json")
    assert done.code == 1 and done.stdout == "", done
    assert "[0]<stderr>:horovod.bench: cannot write nodir/x.json: No such file or directory\n" in done.stderr
    assert "rank 0 on host localhost exited with code 1" in done.stderr, done
    assert "[1]" not in done.stderr and "Traceback" not in done.stderr
