# SPDX-License-Identifier: Apache-2.0
"""What a forecast says before its numbers: a measurement that the model cannot explain, a profile of other ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
