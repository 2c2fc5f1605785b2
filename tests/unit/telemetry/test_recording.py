# SPDX-License-Identifier: Apache-2.0
"""The recorder of a profile, with a clock that the test turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forecasts import undisturbed

from horovod.gradients.recording import ListRecorder, Recorder, refuse_profile
from horovod.simulate.__main__ import main
from horovod.simulate.profile import read_profile


class Clock:
    """Milliseconds."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def between_ms(self, begin: float, end: float) -> float:
        return end - begin


class Script:
    """A training script whose steps take 100 ms: input 10, forward 25, backward 50, communication 5, update 10."""

    def __init__(self, path: Path, names: tuple[str, ...] = ("last", "first")) -> None:
        self.clock = Clock()
        self.names = names
        self.recorder = Recorder(str(path), "script", "cpu", 2, lambda size: ("float32", size, False), self.clock)

    def backward(self, slower_ms: float = 0.0) -> None:
        self.clock.time += 10
        self.recorder.zeroed()
        self.clock.time += 25
        for place, name in enumerate(self.names):
            self.recorder.started(name, 4 * (place + 1))
            self.clock.time += 50 / len(self.names) + slower_ms
        self.recorder.backward_is_over()
        self.clock.time += 5
        self.recorder.reduced()

    def step(self, slower_ms: float = 0.0) -> None:
        self.backward(slower_ms)
        self.clock.time += 10
        self.recorder.updated()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


def test_the_parts_of_a_step_are_written_after_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    script = Script(path)
    for _ in range(11):
        script.step(slower_ms=1000)  # the first ones: not recorded
    for _ in range(60):
        assert not path.exists()
        script.step()
    assert "horovod: the profile of 60 steps is in " in capsys.readouterr().err
    script.step(slower_ms=7)
    script.recorder.end()
    assert capsys.readouterr().err == ""
    content = json.loads(path.read_text())
    medians = {name: content[name]["median"] for name in ("input_ms", "forward_ms", "backward_ms", "update_ms")}
    assert medians == {"input_ms": 10, "forward_ms": 25, "backward_ms": 50, "update_ms": 10}
    assert content["step_ms"] == [85] * 60  # without input and communication
    assert content["gradients"] == {
        "name": ["last", "first"],
        "dtype": ["float32", "float32"],
        "bytes": [4, 8],
        "ready_ms": [[0, 0, 0], [25, 25, 25]],
    }
    assert content["packages"]["numpy"]
    profile = read_profile(undisturbed(path))
    assert profile.work.name == "script" and profile.busy_ranks == 2
    assert [*profile.work.ready_s, profile.work.step_s] == pytest.approx([0.025, 0.05, 0.085])


def test_a_script_that_ends_early_leaves_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path / "profile.json")
    script.train(31)
    script.recorder.end()
    assert "the profile of 20 steps is in" in capsys.readouterr().err
    assert len(read_profile(undisturbed(tmp_path / "profile.json")).work.samples) == 20


def test_too_few_steps_are_said_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path / "profile.json")
    script.train(30)
    script.recorder.end()
    error = capsys.readouterr().err
    assert "warning: no profile was written: it needs 31 training steps, the job made 30, of which 29 can" in error
    assert list(tmp_path.iterdir()) == []


def test_an_optimizer_without_a_gradient_is_told_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(tmp_path / "profile.json")
    script.recorder.updated()
    script.recorder.end()
    error = capsys.readouterr().err
    assert "no gradient was recorded\nhint: " in error and "DistributedGradientTape" in error and "31" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_script_whose_input_is_not_seen_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path / "profile.json")
    script.recorder.zeroed = lambda: None  # type: ignore[method-assign]
    script.train(71)
    assert "so the time for the input counts as forward\nhint: call it after the batch" in capsys.readouterr().err
    assert read_profile(undisturbed(tmp_path / "profile.json")).work.samples[0] == 95


def test_a_step_that_a_gradient_scaler_leaves_out_is_not_recorded(tmp_path: Path) -> None:
    script = Script(tmp_path / "profile.json")
    script.train(40)
    script.backward()  # and no step of the optimizer
    script.train(40)
    content = json.loads((tmp_path / "profile.json").read_text())
    assert content["step_ms"] == [85] * 60


def test_a_file_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(tmp_path / "none" / "profile.json")
    script.train(71)
    assert "warning: cannot write the profile: " in capsys.readouterr().err


def test_a_profile_of_many_gradients_stays_small(tmp_path: Path) -> None:
    script = Script(
        tmp_path / "profile.json", tuple(f"a.module.with.a.long.name.{number:04}.weight" for number in range(1500))
    )
    script.train(71)
    text = (tmp_path / "profile.json").read_text()
    assert len(text) < 100_000 and len(read_profile(undisturbed(tmp_path / "profile.json")).work.sizes) == 1500


def profile_of_lists(path: Path, forward_ms: Callable[[int], float]) -> dict[str, Any]:
    """What is written of 71 steps, whose forward takes so long by the step's number, and backward 25 ms."""
    script = Script(path)
    lists = ListRecorder(script.recorder)
    for step in range(70 + 1):
        script.clock.time += forward_ms(step)
        for place, name in enumerate(script.names):
            lists.ready(name, "float32", len(script.names), 4)
            script.clock.time += 25 * (1 - place)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_steps_after_a_pause_are_left_out_if_nothing_tells_of_their_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = profile_of_lists(tmp_path / "profile.json", lambda step: 400 if step % 20 == 19 else 35)
    said = "3 of 60 steps had a forward of more than 3 median steps, as after a validation or a checkpoint: left out"
    assert said in capsys.readouterr().err
    assert content["step_ms"] == [60] * 57 and content["gradients"]["ready_ms"] == [[0, 0, 0], [25, 25, 25]]


def test_long_steps_that_come_often_are_part_of_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every 4th batch loads, for example."""
    content = profile_of_lists(tmp_path / "profile.json", lambda step: 400 if step % 4 == 3 else 35)
    said = "15 of 60 steps had a forward of more than 3 median steps: too many for pauses of the script, so they count"
    assert said in capsys.readouterr().err
    assert sorted(content["step_ms"]) == [60] * 45 + [425] * 15


def test_forwards_that_are_slow_beside_others_but_not_beside_a_step_are_no_pauses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = profile_of_lists(tmp_path / "profile.json", lambda step: 20 if step % 30 == 29 else 2)
    assert "median steps" not in capsys.readouterr().err
    assert sorted(content["step_ms"]) == [27] * 58 + [45] * 2


def test_sparse_gradients_are_marked_and_the_forecast_says_that_their_growth_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    clock = Clock()
    lists = ListRecorder(Recorder(str(path), "script", "cpu", 2, lambda described: described, clock))
    for _ in range(71):
        clock.time += 10
        lists.ready("dense", "float32", 2, 4_000_000)
        clock.time += 10
        lists.ready("sparse", "float32", 2, 1_500_000, is_sparse=True)
    assert json.loads(path.read_text())["gradients"]["sparse"] == [1]
    assert read_profile(undisturbed(path)).sparse == (1, 1.5e6)
    capsys.readouterr()
    assert main(["forecast", str(path), "--link", "1gbit-tcp", "--hosts", "2"]) == 0
    warning = "warning: 1 gradient of 1.5 MB is sparse and counts as if dense, with the bytes of one rank: "
    assert warning in capsys.readouterr().out
    assert main(["run", "--profile", str(path), "--hosts", "2", "--ranks", "2"]) == 0
    assert warning in capsys.readouterr().err


def test_gradients_of_frameworks_that_are_not_recorded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_profile("MXNet")
    monkeypatch.setenv("HOROVOD_PROFILE", "profile.json")
    with pytest.raises(ValueError, match="gradients of MXNet cannot be profiled"):
        refuse_profile("MXNet")


def test_a_forward_pass_before_zero_grad_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path / "profile.json")
    for _ in range(71):
        script.clock.time += 25
        script.recorder.zeroed()
        for name in script.names:
            script.recorder.started(name, 4)
            script.clock.time += 25
        script.recorder.backward_is_over()
        script.recorder.reduced()
        script.recorder.updated()
    assert "warning: the forward pass is missing in the profile" in capsys.readouterr().err


def test_passes_of_which_the_optimizer_does_not_know_leave_no_profile_and_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(tmp_path / "profile.json")
    for _ in range(100):
        script.backward()
        script.step()
    script.recorder.end()
    printed = capsys.readouterr().err
    assert "the job made 100, of which 0 can be used\nhint: " in printed and "backward_passes_per_step" in printed
