# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.simulate run`: a small simulated job, its tables, its faults and its errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horovod.simulate import run
from horovod.simulate.__main__ import main

JOB = ("run", "--hosts", "4", "--ranks", "2", "--names", "5", "--bytes", "4000")


def made(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str, job: tuple[str, ...] = JOB) -> Any:
    path = tmp_path / "run.json"
    assert main([*job, *arguments, "--json", str(path)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    return json.loads(path.read_text())


def test_a_steady_step_is_one_message_up_and_one_down_for_a_host_and_batch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, steady = made(capsys, tmp_path)["run"]["steps"]
    assert first["up"]["request"] == 3 * 5
    assert set(steady["up"]) == {"ready"} and set(steady["down"]) == {"records"}
    assert steady["batches"] == 1 and steady["up"]["ready"] == steady["down"]["records"] == 3
    assert 0 < steady["rank_0_busy_ns"] < steady["ended_ns"] - steady["began_ns"]
    assert 0 < steady["collectives_ns"] < steady["ended_ns"] - steady["began_ns"]


def test_one_seed_prints_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("7", "7", "8"):
        assert main([*JOB, "--seed", seed, "--shuffled"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("4 hosts with 2 ranks each, 5 names, 0.0 MB a step; seed 7\nlink: 10 Gbit/s, 30 us; ")


def test_a_slower_network_takes_longer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def took(*arguments: str) -> int:
        step = made(capsys, tmp_path, "--bytes", "4000000", *arguments)["run"]["steps"][1]
        return int(step["ended_ns"] - step["began_ns"])

    assert took("--gbit", "1") > 5 * took("--gbit", "10") > 5 * took("--gbit", "100")
    assert took("--link", "1gbit-tcp") > took("--link", "25gbit-rdma")
    assert took("--gbit", "100", "--message-us", "100") > took("--gbit", "100")


def test_a_profile_gives_the_bytes_and_the_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    profile = {
        "format": "horovod-profile",
        "version": 1,
        "name": "small",
        "device": "cpu",
        "busy_ranks": 1,
        "step_ms": [31.0] * 20,
        "forward_ms": {"median": 10.0},
        "backward_ms": {"median": 20.0},
        "update_ms": {"median": 1.0},
        "gradients": {
            "name": ["a", "b"],
            "dtype": ["float32"] * 2,
            "bytes": [400, 4000],
            "ready_ms": [[15.0, 15.0, 15.0], [5.0, 5.0, 5.0]],
        },
    }
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    found = made(capsys, tmp_path, "--profile", str(path), job=("run", "--hosts", "2", "--ranks", "1"))
    assert found["job"] == {"hosts": 2, "ranks_per_host": 1, "names": 2, "bytes": 4400}
    step = found["run"]["steps"][1]
    assert 25e6 < step["ended_ns"] - step["began_ns"] < 27e6  # the last gradient is ready 10 + 15 ms after the start


@pytest.mark.parametrize("fault", ["", "rename@1", "kill-rank:3@1", "join:2@1"])
def test_hundreds_of_names_are_no_more_than_a_log_holds(
    fault: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    faults = ["--fault", fault] if fault else []
    found = made(capsys, tmp_path, *faults, job=("run", "--hosts", "3", "--ranks", "2", "--names", "600"))
    assert found["failures"] == [] and all(one["came"] for one in found["run"]["faults"])


def test_a_file_that_cannot_be_written_is_refused_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--json", "--trace"):
        assert main([*JOB, flag, "none/run.json"]) == 1
        assert capsys.readouterr().err == "horovod.simulate: cannot write none/run.json: No such file or directory\n"


def test_a_rank_that_leaves_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--fault", "leave:3@1"]) == 0
    assert "rank 3 left: the others' operations that need it end with an error" in capsys.readouterr().out


def test_a_trace_shows_steps_waits_and_batches_of_all_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    made(capsys, tmp_path, "--trace", str(path), "--fault", "late:5:3@1")
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in events} == {(rank // 2, rank) for rank in range(8)}
    waits = {
        event["tid"]: event["dur"] for event in events if event["name"] == "wait 5"
    }  # the batch of the second step
    assert len(waits) == 8 and all(0 <= wait < 100 for wait in waits.values())
    batches = {(event["ts"], event["dur"]) for event in events if event["name"] == "batch 5"}
    assert len(batches) == 1
    steps = [event["dur"] for event in events if event["name"] == "step 1" and event["tid"] != 5]
    assert len(steps) == 7 and all(3000 < duration < 3500 for duration in steps)
    assert main([*JOB, "--hosts", "33", "--trace", str(path)]) == 1
    assert "--trace: 66 ranks, expected at most 64\nhint: " in capsys.readouterr().err


def test_a_lost_rank_is_named_with_the_time_to_notice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--fault", "kill-rank:5@1"]) == 0
    assert "\nrank 5 died: the last survivor heard of it after " in capsys.readouterr().out


def test_calls_that_fail_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, "--fault", "shape:5"]) == 0
    assert "\n8 calls failed, each with an error\n" in capsys.readouterr().out


def test_what_does_not_hold_is_printed_with_the_line_that_replays_it(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "horovod.simulate", *JOB, "--plant", "3", "--seeds", "20"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    seed, _, problem = next(text for text in done.stderr.splitlines() if " sleeps " in text).partition(": ")
    hint = next(text for text in done.stderr.splitlines() if text.startswith("hint: replay it by: "))
    replay = shlex.split(hint.removeprefix("hint: replay it by: "))
    assert replay[-2:] == ["--seed", seed.removeprefix("seed ")] and "--seeds" not in replay
    again = subprocess.run([sys.executable, *replay[1:]], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert again.returncode == 1 and f"{seed}: {problem}\n" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--fault", "melt:3"), "--fault melt:3: expected KIND:TARGET:AMOUNT@STEP, such as kill-rank:17@1"),
        (("--fault", "kill-rank"), "--fault kill-rank: kill-rank needs a target, such as kill-rank:0"),
        (("--fault", "slow:3"), "--fault slow:3: slow needs a factor, such as slow:0:4"),
        (("--fault", "cut:3:5"), "--fault cut:3:5: cut has no amount"),
        (("--fault", "kill-rank:8"), "kill-rank: expected a rank below 8, got 8"),
        (("--fault", "kill-host:4@1"), "kill-host: expected a host below 4, got 4"),
        (("--fault", "late:1:5@2"), "late: expected a step below 2, got 2"),
        (("--json", "one.json", "--trace", "./one.json"), "./one.json is given twice, as json and as trace\nhint: "),
        (("--link", "token"), "--link token: there is no such file, nor such a link\nhint: links are 1gbit-tcp, "),
        (("--link", ""), "an empty name was given as link\nhint: give the name of a file"),
        (("--trace", ""), "an empty name was given as trace\nhint: give the name of a file"),
        (
            ("--link", "25gbit-tcp", "--latency-us", "5"),
            "--latency-us is for --gbit: --link 25gbit-tcp has its own\nhint: leave one of them out",
        ),
        (("--link", "25gbit-tcp", "--message-us", "3"), "--message-us is for --gbit: --link 25gbit-tcp has its own\n"),
        (("--fault", "rename:3"), "--fault rename:3: rename has no target: all names are other names"),
        (
            ("--fault", "freeze:3:0"),
            "--fault freeze:3:0: it does nothing, expected an amount above 0\nhint: freeze:3 is for ever",
        ),
        (("--fault", "slow:3:0"), "--fault slow:3:0: it does nothing, expected an amount above 1"),
        (("--fault", "slow:3:1.0"), "--fault slow:3:1.0: it does nothing, expected an amount above 1"),
        (("--fault", "delay:3:0@e5"), "--fault delay:3:0@e5: it does nothing, expected an amount above 0"),
        (("--fault", "kill-rank:3@e0"), "--fault kill-rank:3@e0: expected an event from 1 on"),
        (("--fault", "kill-rank:4294967296"), "--fault kill-rank:4294967296: expected KIND:TARGET:AMOUNT@STEP, "),
        (("--fault", "late:1:5", "--fault", "late:2:5"), "late: one rank is it already in step 1"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOB, *arguments]) == 1
    assert f"horovod.simulate: {text}" in capsys.readouterr().err


def test_bytes_beside_a_profile_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "--hosts", "2", "--profile", str(tmp_path / "profile.json"), "--bytes", "635000"]) == 1
    assert "--bytes is for --names: a profile has its own tensors\nhint: " in capsys.readouterr().err


def test_a_link_may_be_a_file_of_any_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "network"
    path.write_text('{"format": "horovod-link", "version": 1, "network": "tcp", "gbit": 8, "utilisation": [0.5, 0.5]}')
    assert made(capsys, tmp_path, "--link", str(path))["link"]["gbit"] == 4


def test_a_step_that_did_not_end_has_no_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lost = (*JOB, "--steps", "3", "--fault", "kill-rank:5@1")
    steps = made(capsys, tmp_path, job=lost)["run"]["steps"]
    assert [step["began_ns"] is None for step in steps] == [False, False, True]
    assert [step["ended_ns"] is None for step in steps] == [False, True, True]
    assert main([*lost]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:7]}
    assert rows["0"][-1] == "ms" and rows["1"][-2:] == ["ms", "-"] and rows["2"] == ["-"] * 9
    assert len({len(line) for line in lines[3:7]}) == 1
    assert "-: the step did not end, or no rank took part in it." in lines
    assert not [line for line in lines if line.startswith("  step 2")]
    assert main([*JOB]) == 0
    assert "-: the step" not in capsys.readouterr().out


def test_all_ranks_may_join_in_one_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    faults = [argument for rank in range(8) for argument in ("--fault", f"join:{rank}@1")]
    steps = made(capsys, tmp_path, *faults)["run"]["steps"]
    assert steps[0]["ended_ns"] > steps[0]["began_ns"] and steps[1]["ended_ns"] is None
    assert steps[1]["batches"] == 0 and steps[1]["up"]["join"] > 0


def test_a_fault_that_never_came_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    faults = ("--fault", "late:5:3@1", "--fault", "kill-rank:5@e500000")
    assert made(capsys, tmp_path, *faults)["run"]["faults"] == [
        {"fault": "late:5:3@1", "came": True},
        {"fault": "kill-rank:5@e500000", "came": False},
    ]
    assert main([*JOB, *faults, "--seeds", "2"]) == 0
    printed = capsys.readouterr()
    assert "\n--fault kill-rank:5@e500000 never came: the job had ended before\n" in printed.out
    assert "late:5" not in printed.out and printed.err.count("; kill-rank:5@e500000 never came\n") == 2


@pytest.mark.thorough
def test_the_page_shows_what_its_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/scale.md").read_text()
    first, lost = re.findall(r"^    python -m horovod.simulate (run .*)$", page, re.MULTILINE)
    assert main(first.split()) == 0
    assert f"```\n{capsys.readouterr().out}```\n" in page
    assert main(lost.split()) == 0
    assert f"ends with `{capsys.readouterr().out.splitlines()[-1]}`" in page


def test_a_run_that_needs_more_memory_than_there_is_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_free_bytes", lambda: 50e6)
    assert main([*JOB]) == 1
    assert "8 ranks with 5 names need about 0.1 GB of memory, and 0.1 GB are free\nhint: fewer --hosts" in (
        capsys.readouterr().err
    )
