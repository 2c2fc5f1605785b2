# SPDX-License-Identifier: Apache-2.0
"""Every flag of Horovod 0.28.1 works, or does nothing and says so."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from horovod.elastic.decide.job import BLAME_HOST, BLAME_WORKER
from horovod.launcher import cli
from horovod.launcher.options.flags import parse
from horovod.launcher.options.usage import UsageError

# As `horovodrun --help` of Horovod 0.28.1 has them, each with a value if it takes one.
WORKING = """
-v --version -np=2 --num-proc=2 -cb --check-build --disable-cache --start-timeout=9 --network-interfaces=lo
--network-interface=lo --output-filename=out --verbose --config-file=c.yaml -p=22 --ssh-port=22 -i=key
--ssh-identity-file=key --fusion-threshold-mb=1 --cycle-time-ms=1 --cache-capacity=1 --timeline-filename=t
--timeline-mark-cycles --no-timeline-mark-cycles --no-stall-check --stall-check --stall-check-warning-time-seconds=1
--stall-check-shutdown-time-seconds=1 --thread-affinity=1 --mpi-args=-v --tcp --binding-args=-v --log-level=INFO
--log-with-timestamp --log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp -prefix-timestamp
--prefix-output-with-timestamp -H=a:1 --hosts=a:1 -hostfile=f --hostfile=f --gloo --mpi --jsrun
--hierarchical-allreduce --no-hierarchical-allreduce --torus-allreduce --no-torus-allreduce --num-nccl-streams=1
"""
WITHOUT_EFFECT = """
--hierarchical-allgather --no-hierarchical-allgather --autotune --autotune-log-file=f --autotune-warmup-samples=1
--autotune-steps-per-sample=1 --autotune-bayes-opt-max-samples=1 --autotune-gaussian-process-noise=0.1
--mpi-threads-disable --gloo-timeout-seconds=1
"""
OFF_ANYWAY = ["--no-autotune", "--no-mpi-threads-disable"]
ELASTIC = """
--min-np=1 --min-num-proc=1 --max-np=1 --max-num-proc=1 --spares=1 --slots-per-host=1 --slots=1 --elastic-timeout=1
--reset-limit=1 --host-discovery-script=s
"""


def words(flag: str) -> list[str]:
    name, _, value = flag.partition("=")
    return [name, value] if value else [name]


def ready(*arguments: str) -> Any:
    return cli.check([*arguments, sys.executable])


@pytest.mark.parametrize("flag", [*WORKING.split(), *ELASTIC.split(), *OFF_ANYWAY])
def test_a_flag_that_works_is_taken_without_a_word(flag: str) -> None:
    options = parse([*words(flag), "command"])
    assert (options.command, options.without_effect) == (["command"], [])


@pytest.mark.parametrize("flag", WITHOUT_EFFECT.split())
def test_a_flag_without_effect_says_why(flag: str) -> None:
    options = parse([*words(flag), "command"])
    (note,) = options.without_effect
    assert options.command == ["command"] and note[0] == words(flag)[0] and note[1]


def test_a_flag_may_have_two_values() -> None:
    options = parse(["--blacklist-cooldown-range", "10", "100", "command", "5"])
    assert (options.cooldown, options.command) == ([10, 100], ["command", "5"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "--max-np 4",
            "--max-np is for elastic jobs\nhint: --min-np or --host-discovery-script makes this one elastic",
        ),
        ("--min-np 3 --max-np 4", "--min-np 3 is more than -np 2, the slots that the job needs to begin"),
        ("--min-np 1 --max-np 1", "--max-np 1 is less than -np 2, the slots that the job needs to begin"),
        ("--min-np 1 --spares 1", "--spares counts workers beyond --max-np, which is missing"),
        ("--spares 1", "--spares is for elastic jobs"),
        ("--min-np 1 --mpi", "--mpi starts all processes at once and cannot replace one"),
        ("--min-np 1 --reset-limit -1", "'-1' is not a number of changes; expected 0 or more"),
        ("--min-np 1 --blacklist-cooldown-range 0 5", "expected two numbers of seconds, the smaller one first"),
    ],
)
def test_flags_of_elastic_jobs_that_do_not_fit_together(given: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ready("-np", "2", *given.split())


def test_mpi_moves_no_data_of_elastic_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_TRANSPORT", "mpi")
    with pytest.raises(ValueError, match="HOROVOD_TRANSPORT=mpi cannot be used in elastic jobs"):
        ready("-np", "2", "--min-np", "1")


def test_an_elastic_job_has_a_plan_and_no_ranks() -> None:
    job = ready("-np", "2", "--min-np", "1", "-H", "localhost:2,127.0.0.1:2", "--reset-limit", "3")
    plan = job.elastic
    assert job.ranks == [] and plan.hosts == (("localhost", 2), ("127.0.0.1", 2))
    assert (plan.rules.np, plan.rules.min_np, plan.rules.max_np, plan.rules.reset_limit) == (2, 1, None, 3)
    assert ready("-np", "2", "--min-np", "1", "--reset-limit", "0").elastic.rules.reset_limit == 0
    assert plan.rules.blame == BLAME_HOST
    spared = ready("-np", "2", "--min-np", "1", "--max-np", "3", "--spares", "2").elastic
    assert spared.rules.spares == 2 and spared.hosts == (("localhost", 5),)
    assert ready("-np", "2", "--min-np", "1").elastic.rules.blame == BLAME_WORKER


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--gloo-timeout-seconds=many", "--gloo-timeout-seconds='many': expected a whole number, 0 or more"),
        ("--autotune-gaussian-process-noise=2", "--autotune-gaussian-process-noise='2': expected a number from 0 to 1"),
    ],
)
def test_a_flag_without_effect_still_takes_only_its_values(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse([*words(given), "command"])


def said(*arguments: str, **environment: str) -> list[str]:
    plan = cli._Plan(parse([*arguments, sys.executable]), {"PATH": "/usr/bin:/bin", **environment})
    return plan.without_effect()


def test_a_misspelt_setting_is_told_with_its_right_name() -> None:
    assert said("-np", "1", HOROVOD_FUSION_TRESHOLD="1", HOROVOD_WITH_MPI="1") == [
        "HOROVOD_FUSION_TRESHOLD has no effect: there is no such setting; did you mean HOROVOD_FUSION_THRESHOLD?"
    ]


def test_variables_without_effect_are_told_as_flags_are() -> None:
    """Once, where horovodrun does not start the ranks: rank 0 says it in init."""
    old = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "f", "HOROVOD_MPI_THREADS_DISABLE": "0"}
    (line,) = said("-np", "1", **old)
    assert line.startswith("HOROVOD_AUTOTUNE, HOROVOD_AUTOTUNE_LOG have no effect: algorithms are chosen by size")
    assert said("-np", "1", "--mpi", **old) == []
    assert len(said("-np", "1", HOROVOD_ENABLE_XLA_OPS="1", HOROVOD_GLOO_TIMEOUT_SECONDS="5")) == 2
    assert said("-np", "1", HOROVOD_HIERARCHICAL_ALLGATHER="off") != []
    old = ("HOROVOD_BATCH_D2D_MEMCOPIES", "HOROVOD_CCL_CACHE", "HOROVOD_ENABLE_XLA_OPS")
    assert [line.partition(" has no effect: ")[0] for line in said("-np", "1", **dict.fromkeys(old, "1"))] == [*old]
    assert said("-np", "1", HOROVOD_AUTOTUNE="", HOROVOD_GLOO_TIMEOUT_SECONDS="") == []


def test_flags_without_effect_are_one_line_for_each_reason() -> None:
    lines = said(
        "-np", "1", "--autotune", "--autotune-log-file", "f", "--gloo-timeout-seconds", "2", "--mpi-args", "-v"
    )
    assert [line.partition(" no effect: ")[0] for line in lines] == [
        "--autotune, --autotune-log-file have",
        "--gloo-timeout-seconds has",
        "--mpi-args has",
    ]
    assert said("-np", "1", "--mpi", "--mpi-args", "-v") == []
    assert said("-np", "1", "--elastic-timeout", "5", "--min-np", "1") == []
    (line,) = said("-np", "1", "--elastic-timeout", "5")
    assert line.startswith("--elastic-timeout has no effect")
    assert said("-np", "1", "-H", "a:1", "--host-discovery-script", "hosts.sh") == [
        "-H has no effect: --host-discovery-script lists the hosts"
    ]


def test_arguments_for_mpirun_may_begin_with_a_dash() -> None:
    assert parse(["--mpi-args", "--oversubscribe", "--mpi", "a"]).mpi_args == "--oversubscribe"
    assert parse(["--binding-args=-bind-to core", "a"]).binding_args == "-bind-to core"


def test_only_one_launcher_can_be_chosen() -> None:
    with pytest.raises(ValueError, match="--gloo and --mpi were given: expected one"):
        ready("-np", "1", "--gloo", "--mpi")


def test_tcp_and_a_network_reach_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    environment = ready("-np", "1", "--tcp", "--network-interface", "lo").environment
    assert (environment["NCCL_IB_DISABLE"], environment["NCCL_SOCKET_IFNAME"]) == ("1", "lo")
    assert not {"NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME"} & set(ready("-np", "1").environment)


def test_np_below_the_slots_starts_np_ranks() -> None:
    job = ready("-np", "4", "-H", "localhost:3,other:4")
    assert [(one.hostname, one.size) for one in job.ranks] == [("localhost", 4)] * 3 + [("other", 4)]


def test_without_flags_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "current_environment", lambda: {"PATH": "/usr/bin:/bin"})
    assert ready("-np", "1").environment == {"PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("flag", ["--no-prefix=yes", "--verbose=1", "--mpi=openmpi"])
def test_a_value_of_a_flag_that_takes_none_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag.partition('=')[0]} takes no value, got {flag}"):
        parse([flag, "-np", "2", "python"])
