# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer with strategy="horovod" under horovodrun, and with DDP on the backend hvd."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest
from support.jobs import Done, run_job
from support.pages import ROOT, scripts_of

if importlib.util.find_spec("lightning") is None:
    pytest.skip("not run: lightning is not installed", allow_module_level=True)


def run(folder: Path, *command: str, prefix: bool = False) -> Done:
    """Two ranks of a script, without warnings."""
    flags = [] if prefix else ["--no-prefix"]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "PYTHONWARNINGS": "ignore"}  # torch's folder would stay in TMPDIR
    return run_job(folder, "-np", "2", *flags, [sys.executable, *command], env=env)


def test_without_lightning_or_with_an_old_one_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.torch import lightning
    from horovod.torch.lightning.strategy import register

    for version in ("1.9.5.post0", "2.0.9"):
        old = types.ModuleType("pytorch_lightning")
        old.__version__ = version  # type: ignore[attr-defined]
        with pytest.raises(ImportError, match=f"needs Lightning 2.1 or newer, found pytorch_lightning {version}\nhint"):
            register(old)
    for name in ("lightning", "pytorch_lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="horovod.torch.lightning needs Lightning\nhint: pip install lightning"):
        _ = lightning.HorovodStrategy


@pytest.mark.slow("trains with Lightning")
def test_two_ranks_train_as_one_with_whole_batches_and_a_rank_that_fails_ends_the_other(tmp_path: Path) -> None:
    script = Path(__file__).with_name("lightning_ranks.py")
    done = run(tmp_path, str(script), str(tmp_path))
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("done")) == ["done 0", "done 1"], (
        done.stderr
    )
    assert done.code == 1
    assert "rank 1's stderr:\n    ValueError: a row of rank 1 is wrong\nhorovodrun: rank 1 on host" in done.stderr
    # Rank 0 gets an error too, and writes for its callback; rank 1 writes nothing, and waits for no other rank.
    assert [path.name for path in tmp_path.glob("of-rank-*")] == ["of-rank-0"]


@pytest.mark.thorough
def test_the_script_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    (script,) = scripts_of(ROOT / "docs/lightning.md")
    (tmp_path / script.file).write_text(script.code)
    done = run(tmp_path, script.file, prefix=True)
    found, shown = (
        sorted(re.sub(r"\d+\.\d+", "0.0", line) for line in lines if "rank" in line)
        for lines in (done.stdout.splitlines(), script.printed)
    )
    assert done.code == 0 and found == shown and len(shown) == int(script.ranks[0]), done.stderr


@pytest.mark.thorough
def test_ddp_of_lightning_runs_on_the_backend_hvd(tmp_path: Path) -> None:
    script = ROOT / "tests/trainers/with_lightning.py"
    done = run(tmp_path, str(script), "hvd", str(tmp_path), "first")
    assert done.code == 0 and "backend hvd of 2" in done.stdout, done.stderr
