# SPDX-License-Identifier: Apache-2.0
"""Profiles and links that somebody has edited: each field that does not fit is one line of error that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.forecasts import GRADIENTS, PROFILE

from horovod.simulate.__main__ import main
from horovod.simulate.links import PRESETS, link_of
from horovod.simulate.profile import read_profile

LINK: dict[str, Any] = {
    "format": "horovod-link",
    "version": 1,
    "network": "tcp",
    "gbit": 10,
    "utilisation": [0.9, 0.95],
    "hosts": 2,
}
NAN, INFINITY = float("nan"), float("inf")
PAIR = "expected the lowest and the highest value"


def saved(folder: Path, name: str, content: Any) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def error_of(profile: str, link: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says when it fails; it must print no forecast."""
    code = main(["forecast", profile, "--link", link, "--ranks-a-host", "2", "--hosts", "1,4"])
    out, error = capsys.readouterr()
    assert (code, out) == (1, ""), out
    return error


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"step_ms": [1.0] * 19 + ["2"]}, 'field "step_ms[19]": expected a number of 0.001 or more, got "2"'),
        ({"step_ms": [None] * 20}, 'field "step_ms[0]": expected a number of 0.001 or more, got null'),
        ({"step_ms": [True] * 20}, 'field "step_ms[0]": expected a number of 0.001 or more, got true'),
        ({"step_ms": [0.0] * 20}, 'field "step_ms[0]": expected a number of 0.001 or more, got 0.0'),
        ({"step_ms": [1.0] * 20 + [-3]}, 'field "step_ms[20]": expected a number of 0.001 or more, got -3'),
        ({"step_ms": [1e308] * 20}, 'field "step_ms[0]": expected a number of at most 1e+15, got 1e+308'),
        ({"gradients": {**GRADIENTS, "name": 3}}, 'field "gradients": expected lists name, dtype, bytes and ready_ms'),
        ({"step_ms": {}}, 'field "step_ms": expected a list of 20 steps or more, got {}'),
        ({"step_ms": [1.0] * 19}, 'field "step_ms": expected 20 steps or more, got 19\nhint: record a job that trains'),
        ({"backward_ms": {"median": 0}}, 'field "backward_ms": the job made no backward pass'),
        ({"backward_ms": 4}, 'field "backward_ms": expected a table, got 4'),
        ({"forward_ms": {"median": -1}}, 'field "forward_ms.median": expected a number of 0 or more, got -1'),
        ({"gradients": {"name": ["a"]}}, 'field "gradients": expected lists name, dtype, bytes and ready_ms'),
        ({"gradients": dict.fromkeys(GRADIENTS, [])}, 'field "gradients": it has none'),
        (
            {"core_wait": 0.34},
            "a measured rank waited for a core 34% of its time: the host was too busy\nhint: ",
        ),
        ({"version": 7}, 'field "version": got 7, this version of Horovod reads 1\nhint: record it again'),
        ({"busy_ranks": "two"}, 'field "busy_ranks": expected a whole number from 1 to 100000, got "two"'),
        ({"busy_ranks": None}, 'field "busy_ranks": expected a whole number from 1 to 100000, got null'),
        ({"busy_ranks": [2]}, 'field "busy_ranks": expected a whole number from 1 to 100000, got [2]'),
        ({"busy_ranks": -2}, 'field "busy_ranks": expected a whole number from 1 to 100000, got -2'),
        ({"busy_ranks": True}, 'field "busy_ranks": expected a whole number from 1 to 100000, got true'),
        ({"busy_ranks": 1.5}, 'field "busy_ranks": expected a whole number from 1 to 100000, got 1.5'),
        ({"busy_ranks": NAN}, 'field "busy_ranks": expected a number of at most 1e+15, got NaN'),
        ({"busy_ranks": 10**400}, f'field "busy_ranks": expected a number of at most 1e+15, got 1{"0" * 59}...'),
        ({"device": "tpu"}, 'field "device": expected "cpu" or "gpu", got "tpu"'),
        ({"device": ["cpu"]}, 'field "device": expected "cpu" or "gpu", got ["cpu"]'),
        ({"name": "a\nb\x1b[2J"}, 'field "name": expected a text that can be printed, got "a\\nb\\u001b[2J"'),
        ({"name": 7}, 'field "name": expected a text that can be printed, got 7'),
        ({"version": True}, 'field "version": got true, this version of Horovod reads 1'),
        ({"forward_ms": {"median": NAN}}, 'field "forward_ms.median": expected a number of at most 1e+15, got NaN'),
        ({"update_ms": {"median": "3"}}, 'field "update_ms.median": expected a number of 0 or more, got "3"'),
        ({"update_ms": {}}, 'field "update_ms.median": expected a number of 0 or more, got null'),
        ({"input_ms": {"p90": INFINITY}}, 'field "input_ms.p90": expected a number of at most 1e+15, got Infinity'),
        ({"a\nb": -INFINITY}, 'field "a\\nb": expected a number of at most 1e+15, got -Infinity'),
    ],
)
def test_a_field_of_a_profile_that_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], text: str
) -> None:
    path = saved(tmp_path, "profile.json", {**PROFILE, **changes})
    error = error_of(path, "10gbit-tcp", capsys)
    assert error.startswith(f"horovod.simulate: {path}: {text}")
    assert error.count("\n") == 1 + error.count("\nhint: ")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ready_ms": [60.0, 0.0]}, 'ready_ms[0]": expected a list of three numbers: median, p10 and p90, got 60.0'),
        ({"ready_ms": [[], []]}, 'ready_ms[0]": expected a list of three numbers: median, p10 and p90, got []'),
        ({"ready_ms": ["ab", "abc"]}, 'ready_ms[0]": expected a list of three numbers: median, p10 and p90, got "ab"'),
        ({"ready_ms": [[1, 1, 1], [0, "0", 0]]}, 'ready_ms[1][1]": expected a number of 0 or more, got "0"'),
        ({"ready_ms": [[-1, 0, 0], [0, 0, 0]]}, 'ready_ms[0][0]": expected a number of 0 or more, got -1'),
        ({"ready_ms": [[1, 1, NAN], [0, 0, 0]]}, 'ready_ms[0][2]": expected a number of at most 1e+15, got NaN'),
        ({"bytes": ["x", 4]}, 'bytes[0]": expected a whole number from 0 to 1e+15, got "x"'),
        ({"bytes": [4, -4]}, 'bytes[1]": expected a whole number from 0 to 1e+15, got -4'),
        ({"bytes": [4, 0.5]}, 'bytes[1]": expected a whole number from 0 to 1e+15, got 0.5'),
        ({"ready_ms": [[1] * 3, [1e7] * 3]}, 'ready_ms[1]": expected at most the longest step, 101 ms, got 10000000.0'),
        ({"dtype": ["float32", "f99"]}, 'dtype[1]": expected a type that can be reduced, such as float32, got "f99"'),
        ({"dtype": ["float32", None]}, 'dtype[1]": expected a text, got null'),
        ({"name": ["b", 7]}, 'name[1]": expected a text, got 7'),
    ],
)
def test_a_row_of_the_gradients_that_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], text: str
) -> None:
    path = saved(tmp_path, "profile.json", {**PROFILE, "gradients": {**GRADIENTS, **changes}})
    assert error_of(path, "10gbit-tcp", capsys) == f'horovod.simulate: {path}: field "gradients.{text}\n'


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"utilisation": [80, 95]}, f'field "utilisation": {PAIR}, both from 0.0001 to 1'),
        *(({"utilisation": pair}, f'field "utilisation": {PAIR}') for pair in ([True, True], [0.9], [0, 0.5])),
        *(({"interference": pair}, f'field "interference": {PAIR}, both from 0 to 5') for pair in ([10, 20], [-1, 0])),
        *(({"latency_us": pair}, f'field "latency_us": {PAIR}, both from 0.001 to') for pair in ([5e-324, 9], [9, 1])),
        ({"network": "pigeon"}, 'field "network": expected "tcp" or "rdma"'),
        ({"gbit": 0}, 'field "gbit": expected a number of 0.001 or more'),
        ({"hosts": 2.7}, 'field "hosts": expected a whole number from 1 to 100000, got 2.7'),
        ({"hosts": 1e30}, 'field "hosts": expected a number of at most 1e+15, got 1e+30'),
        ({"hosts": 0}, 'field "hosts": expected a whole number from 1 to 100000, got 0'),
        ({"gbit": NAN}, 'field "gbit": expected a number of at most 1e+15, got NaN'),
        ({"gbit": "10"}, 'field "gbit": expected a number of 0.001 or more, got "10"'),
        ({"utilization": [0.5, 0.6]}, 'field "utilization": not known, expected one of format, version, network, '),
        (
            {"core_wait": 0.2},
            "a measured rank waited for a core 20% of its time: the host was too busy\nhint: ",
        ),
        ({"version": 2}, 'field "version": got 2, this version of Horovod reads 1\nhint: write version 1\n'),
    ],
)
def test_a_field_of_a_link_that_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], text: str
) -> None:
    link = saved(tmp_path, "link.json", {**LINK, **changes})
    error = error_of(saved(tmp_path, "profile.json", PROFILE), link, capsys)
    assert error.startswith(f"horovod.simulate: {link}: {text}")
    assert error.count("\n") == 1 + error.count("\nhint: ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (LINK, 'is not a profile (its "format" is "horovod-link", not "horovod-profile")'),
        ([1, 2], "is not a profile: expected a table, got [1, 2]"),
        ({"version": 1}, 'is not a profile (its "format" is null, not "horovod-profile")'),
    ],
)
def test_another_file_is_not_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, text: str
) -> None:
    path = saved(tmp_path, "some.json", content)
    assert error_of(path, "10gbit-tcp", capsys) == f"horovod.simulate: {path} {text}\n"


@pytest.mark.parametrize("content", ["{", "[" * 100_000, f'{{"version": 1{"0" * 5000}}}'])
def test_what_is_not_json_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    path = saved(tmp_path, "profile.json", content)
    assert error_of(path, "10gbit-tcp", capsys) == f"horovod.simulate: cannot read {path}: it is not JSON\n"


def test_a_profile_is_not_a_link_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, "profile.json", PROFILE)
    expected = f'{path} is not a link file (its "format" is "horovod-profile", not "horovod-link")\n'
    assert error_of(path, path, capsys) == f"horovod.simulate: {expected}"


def test_the_origin_of_a_link_is_a_table_a_file_or_a_measurement(tmp_path: Path) -> None:
    measured = link_of(saved(tmp_path, "measured.json", LINK))
    written = link_of(saved(tmp_path, "written.json", {name: LINK[name] for name in LINK if name != "hosts"}))
    assert [link.origin for link in (PRESETS["10gbit-tcp"], written, measured)] == [
        "from a table, not measured",
        "from a file, not measured",
        "measured on 2 hosts",
    ]


@pytest.mark.parametrize(
    ("small", "large", "halves"),
    [("bfloat16", "float32", False), ("float32", "bfloat16", True), ("float16", "float16", True)],
)
def test_gradients_are_of_16_bits_if_most_bytes_are(tmp_path: Path, small: str, large: str, halves: bool) -> None:
    gradients = {**GRADIENTS, "dtype": [large, small]}
    assert read_profile(saved(tmp_path, "profile.json", {**PROFILE, "gradients": gradients})).halves is halves
