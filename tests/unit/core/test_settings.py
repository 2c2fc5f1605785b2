# SPDX-License-Identifier: Apache-2.0
"""One registry: every spelling of a setting means the same, and a bad value is an error that names it."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import horovod
from horovod.settings import SettingError, Settings, environment_of, parse_flag, rows
from horovod.world import communicators, launchers

PACKAGE = Path(horovod.__file__).parent


def test_defaults_are_horovods() -> None:
    settings = Settings.from_environment({})
    assert settings == Settings()
    assert (settings.fusion_threshold_bytes, settings.cycle_time_ms) == (128 << 20, 1.0)
    assert (settings.stall_warning_s, settings.stall_shutdown_s, settings.start_timeout_s) == (60.0, 0.0, 30.0)


def test_the_environment_and_back() -> None:
    values = {
        "fusion_threshold_bytes": 0,
        "cycle_time_ms": 0.5,
        "transport": "shm",
        "stall_check_disable": True,
        "rank": 3,
        "size": 4,
        "hostname": "a",
        "rendezvous_port": 4711,
        "secret_file": "/proc/1/fd/3",
    }
    assert Settings.from_environment({**environment_of(**values), "HOROVOD_SIZE": "4"}) == Settings(
        **values,
        launch_environment={"HOROVOD_SIZE": "4"},
    )


def test_an_empty_variable_is_an_unset_one() -> None:
    assert Settings.from_environment({"HOROVOD_CYCLE_TIME": "", "HOROVOD_RANK": " "}) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB", "a whole number, 0 or more"),
        ("HOROVOD_FUSION_THRESHOLD", "-1", "a whole number, 0 or more"),
        ("HOROVOD_CYCLE_TIME", "nan", "a number, 0 or more"),
        ("HOROVOD_CYCLE_TIME", "inf", "a number, 0 or more"),
        ("HOROVOD_TRANSPORT", "shm,tcp", "a name"),
        ("HOROVOD_PRETEND_HOSTS", "2,0", "whole numbers, 1 or more, with commas between"),
        ("HOROVOD_STALL_CHECK_DISABLE", "maybe", "0 or 1"),
        ("HOROVOD_SIZE", "0", "a whole number, 1 or more"),
        ("HOROVOD_HELPER_THREADS", "257", "a whole number from 0 to 256"),
        ("HOROVOD_START_TIMEOUT", "0", "a number, 0.1 or more"),
        ("HOROVOD_LOG_LEVEL", "loud", "one of trace, debug"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_expected(
    variable: str, value: str, expected: str
) -> None:
    with pytest.raises(SettingError, match=f"^{variable}='{re.escape(value)}': expected {expected}"):
        Settings.from_environment({variable: value})


def test_every_communicator_can_be_asked_for() -> None:
    for row in communicators.all_communicators():
        assert Settings.from_environment({"HOROVOD_TRANSPORT": row.name}).communicator == row.name


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("2", True), ("true", True), ("Off", False)])
def test_switches(text: str, value: bool) -> None:
    assert Settings.from_environment({"HOROVOD_STALL_CHECK_DISABLE": text}).stall_check_disable is value


def test_flags_have_their_own_unit() -> None:
    row = {row.keyword: row for row in rows()}["fusion_threshold_bytes"]
    assert parse_flag(row, "32") == 32 << 20
    for text in ("1.5", "-5"):  # as it was written, not in bytes
        with pytest.raises(SettingError, match=f"^--fusion-threshold-mb='{text}': expected"):
            parse_flag(row, text)


def test_each_local_rank_has_its_core_or_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings.from_environment({"HOROVOD_THREAD_AFFINITY": "3,1", "HOROVOD_LOCAL_RANK": "1"})
    assert dict(settings.native_settings())["engine_cpu"] == "1"
    assert environment_of(thread_affinity=(3, 1)) == {"HOROVOD_THREAD_AFFINITY": "3,1"}
    short = Settings.from_environment({"HOROVOD_THREAD_AFFINITY": "3,1", "HOROVOD_LOCAL_RANK": "2"})
    assert "engine_cpu" not in dict(short.native_settings())
    assert "has no core for local rank 2" in capsys.readouterr().err
    dataclasses.replace(short, log_hide_time=False).native_settings()
    assert re.match(r"\[\d{4}-.*\.\d{6}\] horovod: warning: .* local rank 2", capsys.readouterr().err)
    dataclasses.replace(short, log_level="error").native_settings()
    assert capsys.readouterr().err == ""
    with pytest.raises(SettingError, match="HOROVOD_THREAD_AFFINITY='1,-2': expected core numbers"):
        Settings.from_environment({"HOROVOD_THREAD_AFFINITY": "1,-2"})


def test_the_native_core_gets_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    settings = Settings(cycle_time_ms=0.25, stall_warning_s=1.5, stall_shutdown_s=0.0001, start_timeout_s=30)
    assert settings.native_settings() == [
        ("fusion_threshold_bytes", "134217728"),
        ("cycle_time_ms", "0.25"),
        ("cached_names", "7680"),
        ("relays_above_hosts", "256"),
        ("groups_apart", "0"),
        ("omp_threads", "4"),
        ("stall_warning_ms", "1500"),
        ("stall_shutdown_ms", "1"),  # never rounded to 0, which would be "never"
        ("start_timeout_ms", "30000"),
        ("frozen_timeout_ms", "3000"),
        ("lost_timeout_ms", "5000"),
        ("fault_point", ""),
        *((f"gpu_{kind}", "best") for kind in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")),
        ("cuda_library", ""),
        ("nccl_library", ""),
        ("nccl_streams", "1"),
        ("nccl_timeout_ms", "600000"),
        ("gpu_levels", "none"),
        ("transport", "auto"),
        ("instruction_set", "best"),
        ("host_group_size", "0"),
        ("log_level", "warning"),
        ("log_time", "0"),
    ]
    assert ("helper_threads", "0") in Settings(helper_threads=0).native_settings()
    off = dict(Settings(stall_check_disable=True, stall_shutdown_s=5).native_settings())
    assert (off["stall_warning_ms"], off["stall_shutdown_ms"]) == ("0", "0")
    for shown in ({"log_hide_time": False}, {"log_timestamp": True}):
        assert dict(Settings(**shown).native_settings())["log_time"] == "1"


def test_an_operation_may_go_another_way_on_gpus_than_the_others() -> None:
    environment = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_GPU_ALLGATHER": "MPI", "HOROVOD_GPU_ALLTOALL": "host"}
    native = dict(Settings.from_environment(environment).native_settings())
    assert (native["gpu_allreduce"], native["gpu_allgather"], native["gpu_alltoall"]) == ("nccl", "host", "host")


@pytest.mark.parametrize(
    ("environment", "announced"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ("OMPI_COMM_WORLD_SIZE", "4")),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"PMI_SIZE": "2"}, ("PMI_SIZE", "2")),
        ({"WORLD_SIZE": "8"}, ("WORLD_SIZE", "8")),
        ({"WORLD_SIZE": "many"}, ("WORLD_SIZE", "many")),
        ({"WORLD_SIZE": "many", "PMI_SIZE": "2"}, ("PMI_SIZE", "2")),
        ({"HOROVOD_SIZE": "2"}, ("HOROVOD_SIZE", "2")),
        ({"SLURM_NTASKS": "4"}, None),  # an allocation, for example salloc, not a task of a step
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # the batch script itself
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, ("SLURM_NTASKS", "4")),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, None),
        ({"SLURM_NTASKS": "2", "PMIX_RANK": "1"}, ("SLURM_NTASKS", "2")),
    ],
)
def test_other_launchers_announcements_are_seen(environment: dict[str, str], announced: tuple[str, str] | None) -> None:
    settings = Settings.from_environment({**environment, "HOME": "/root"})
    assert launchers.announced_world(settings.launch_environment) == announced


def test_rows_are_spelled_once() -> None:
    for spelling in ("keyword", "variable", "flag", "yaml"):
        spelled = [getattr(row, spelling) for row in rows() if getattr(row, spelling) is not None]
        assert len(spelled) == len(set(spelled))
    for row in rows():
        assert row.variable.startswith("HOROVOD_") and row.sentence.endswith(".")


def test_every_row_is_read_somewhere() -> None:
    table = PACKAGE / "settings" / "table.py"
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path != table)
    own = table.read_text()
    for row in rows():
        is_read = bool(re.search(rf"\b{row.keyword}\b", sources)) or f"self.{row.keyword}" in own
        assert is_read != row.sentence.startswith("No effect"), row.keyword


def test_only_the_registry_touches_the_environment() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path == PACKAGE / "settings" / "table.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            touched = isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv")
            assert not touched, f"{path}:{node.lineno}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("module", "imported"), [("exceptions", ["horovod.core.wording"]), ("wording", [])])
def test_exceptions_import_of_ours_only_how_texts_are_shown(module: str, imported: list[str]) -> None:
    found = []
    for node in ast.walk(ast.parse((PACKAGE / "core" / f"{module}.py").read_text())):
        if isinstance(node, (ast.ImportFrom, ast.Import)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [one for one in names if one.startswith("horovod")]
    assert found == imported
