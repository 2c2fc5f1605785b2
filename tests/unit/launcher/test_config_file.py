# SPDX-License-Identifier: Apache-2.0
"""The file of --config-file: every key is another spelling of a flag, and what cannot be used is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT, fenced

from horovod.launcher import cli
from horovod.launcher.options.config_file import read_config_file
from horovod.launcher.options.usage import UsageError
from horovod.settings import rows
from horovod.settings.without_effect import WITHOUT_EFFECT

# Every key of Horovod 0.28.1, with a value that is not the default.
EVERYTHING = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 2.5
  cache_capacity: 100
  hierarchical_allreduce: true
  hierarchical_allgather: false
  torus_allreduce: true
autotune:
  enabled: true
  log_file: tuned.csv
  warmup_samples: 4
  steps_per_sample: 11
  bayes_opt_max_samples: 21
  gaussian_process_noise: 0.5
timeline:
  filename: timeline.json
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 30
  shutdown_time_seconds: 90
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  thread_affinity: 3
  gloo_timeout_seconds: 60
logging:
  level: DEBUG
  with_timestamp: true
"""


def written(directory: Path, text: str) -> str:
    (directory / "config.yaml").write_text(text)
    return str(directory / "config.yaml")


def test_every_key_of_horovod_is_taken(tmp_path: Path) -> None:
    config = read_config_file(written(tmp_path, EVERYTHING))
    assert config.controller == "gloo"
    assert config.settings == {
        "fusion_threshold_bytes": 32 << 20,
        "cycle_time_ms": 2.5,
        "cached_names": 100,
        "hierarchical_allreduce": True,
        "torus_allreduce": True,
        "nccl_streams": 2,
        "timeline": "timeline.json",
        "timeline_mark_cycles": True,
        "stall_check_disable": True,
        "stall_warning_s": 30.0,
        "stall_shutdown_s": 90.0,
        "thread_affinity": (3,),
        "log_level": "debug",
        "log_hide_time": False,
    }
    names = [name for name, _ in config.without_effect]
    assert len(names) == 9 and {name.partition(".")[0] for name in names} == {"params", "autotune", "library_options"}


@pytest.mark.parametrize("text", ["", "params:\n", "params:\n  cycle_time_ms:\n", "# nothing\n"])
def test_a_file_may_say_nothing(tmp_path: Path, text: str) -> None:
    config = read_config_file(written(tmp_path, text))
    assert (config.settings, config.controller, config.without_effect) == ({}, None, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "params: {fusion_threshold: 1}",
            "params.fusion_threshold: there is no such key; the nearest one is params.fu",
        ),
        ("params: {cycle-time-ms: 1}", "params.cycle-time-ms: there is no such key; the nearest one is params.cycle_t"),
        ("loging: {level: info}", "loging.level: there is no such key; the nearest one is logging.level"),
        ("params: 5", "params: expected keys below it, such as params."),
        ("params: {cycle_time_ms: fast}", "params.cycle_time_ms: 'fast': expected a number, 0 or more"),
        ("params: {cycle_time_ms: -1}", "params.cycle_time_ms: -1: expected a number, 0 or more"),
        ("params: {fusion_threshold_mb: 1.5}", "params.fusion_threshold_mb: 1.5: expected a whole number, 0 or more"),
        ("params: {cache_capacity: true}", "params.cache_capacity: True: expected a whole number, 0 or more"),
        ("timeline: {filename: 5}", "timeline.filename: 5: expected text"),
        ("stall_check: {enabled: maybe}", "stall_check.enabled: 'maybe': expected true or false"),
        ("logging: {level: loud}", "logging.level: 'loud': expected one of trace, debug"),
        ("autotune: {gaussian_process_noise: 2}", "autotune.gaussian_process_noise: 2: expected a number from 0 to 1"),
        ("autotune: {enabled: maybe}", "autotune.enabled: 'maybe': expected true or false"),
        ("controller: ddl", "controller: 'ddl': expected one of gloo, mpi"),
        ("- params", "expected keys, such as `params:`, got ['params']"),
        ("params: [", "not YAML: "),
        ("params: !!python/object/apply:os.getcwd []", "not YAML: "),  # nothing of the file is ever run
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    name = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read_config_file(name)
    assert str(error.value).startswith(f"--config-file {name}: {said}")


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read_config_file(written(tmp_path, "params: {cycle_time_ms: x, nothing: 1}\ncontroller: ddl"))
    assert len(str(error.value).splitlines()) == 3


def job(*arguments: str) -> Any:
    return cli.check([*arguments, sys.executable])


def test_a_flag_wins_over_the_file_wherever_it_stands_and_the_file_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = written(tmp_path, "params: {cycle_time_ms: 2, cache_capacity: 9}\nstall_check: {enabled: false}")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "5")
    from_file = job("-np", "1", "--config-file", name).environment
    assert (from_file["HOROVOD_CYCLE_TIME"], from_file["HOROVOD_CACHE_CAPACITY"]) == ("2.0", "9")
    assert (from_file["HOROVOD_STALL_CHECK_DISABLE"], from_file["HOROVOD_STALL_CHECK_TIME_SECONDS"]) == ("1", "5")
    for words in (["--cycle-time-ms", "3", "--config-file", name], ["--config-file", name, "--cycle-time-ms", "3"]):
        both = job("-np", "1", *words, "--stall-check", "--disable-cache").environment
        assert (both["HOROVOD_CYCLE_TIME"], both["HOROVOD_CACHE_CAPACITY"]) == ("3.0", "0")
        assert both["HOROVOD_STALL_CHECK_DISABLE"] == "0"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="--config-file none.yaml: No such file or directory"):
        job("-np", "1", "--config-file", "none.yaml")


def test_yaml_is_imported_only_for_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from horovod.launcher import cli\n"
        "cli.check(['-np', '1', sys.executable])\n"
        f"try: cli.check(['--config-file', {written(tmp_path, '')!r}, '-np', '1', sys.executable])\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "--config-file needs PyYAML\nhint: pip install pyyaml\n", done


def test_the_example_of_the_page_has_every_key(tmp_path: Path) -> None:
    (example,) = [text for text in fenced(ROOT / "docs" / "launcher.md") if text.startswith("controller:")]
    config = read_config_file(written(tmp_path, example))
    without_effect = {name for name, _ in config.without_effect}
    marked = {line.split(":")[0].strip() for line in example.splitlines() if line.endswith("#")}
    assert marked == {name.rpartition(".")[2] for name in without_effect}
    with_effect = {row.keyword for row in rows() if row.yaml is not None}
    assert set(config.settings) == with_effect and len(without_effect) == len(WITHOUT_EFFECT)
