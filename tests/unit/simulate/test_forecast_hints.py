# SPDX-License-Identifier: Apache-2.0
"""What a forecast says before its numbers: a measurement that the model cannot explain, a profile of other ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.forecasts import PROFILE

from horovod.simulate.__main__ import main

MODEL = ("forecast", "--model", "resnet50", "--step-ms", "294", "--link", "25gbit-cloud", "--ranks-a-host", "8")


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*MODEL, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_measurement_that_the_model_cannot_explain_widens_the_band_and_is_the_first_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*MODEL, "--calibrate", "2:100,4:20", "--hosts", "4,8"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("warning: the model cannot explain what was measured: it is ")
    found = made(capsys, "--calibrate", "2:100,4:20", "--hosts", "4,8")
    assert found["miss"] == max(abs(error["points"]) for error in found["errors"]) > 20
    for row in found["rows"]:
        low, high = row["band"]
        assert high == 100 or high - row["efficiency"] >= found["miss"]
        assert low == 0 or row["efficiency"] - low >= found["miss"]


@pytest.mark.parametrize("waited", ["profile", "link"])
def test_times_of_a_host_that_was_a_little_busy_widen_the_band(
    waited: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bands = {}
    for share in (0.0, 0.06):
        shares = {"profile": 0.0, "link": 0.0, waited: share}
        (tmp_path / "profile").write_text(json.dumps({**PROFILE, "core_wait": shares["profile"]}))
        link = {"format": "horovod-link", "version": 1, "network": "tcp", "gbit": 1, "utilisation": [0.8, 0.9]}
        (tmp_path / "link").write_text(json.dumps({**link, "core_wait": shares["link"]}))
        flags = ["forecast", str(tmp_path / "profile"), "--link", str(tmp_path / "link"), "--hosts", "4"]
        assert main(flags) == 0
        warned = capsys.readouterr().out.startswith("warning: a measured rank waited for a core 6% of its time")
        assert warned == bool(share)
        assert main([*flags, "--json"]) == 0
        bands[share] = json.loads(capsys.readouterr().out)["rows"][0]["band"]
    assert bands[0.06][0] == pytest.approx(bands[0.0][0] - 6) and bands[0.06][1] > bands[0.0][1]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["1:100,2:90"], "--calibrate 1: one rank on one host is 100%\nhint: "),
        (["2:91, 2:90"], "--calibrate 2: given twice\nhint: "),
        (["2:91", "4:80,2:91"], "--calibrate 2: given twice\nhint: "),
    ],
)
def test_measurements_that_say_nothing_are_refused(
    given: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*MODEL[:-2], *(f"--calibrate={one}" for one in given)]) == 1
    assert text in capsys.readouterr().err


def test_measurements_may_be_given_by_several_flags(capsys: pytest.CaptureFixture[str]) -> None:
    together = made(capsys, "--calibrate", "1:97.5,2:92", "--hosts", "8")
    assert made(capsys, "--calibrate", "2:92", "--calibrate", "1:97.5", "--hosts", "8") == together
