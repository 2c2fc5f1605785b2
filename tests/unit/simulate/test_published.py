# SPDX-License-Identifier: Apache-2.0
"""The model of horovod.simulate beside published results: how far it is from them, and what its command prints."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from support.pages import ROOT

from horovod.simulate import published
from horovod.simulate.__main__ import main
from horovod.simulate.published import Check, Row


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    return {check.letter: check for check in published.checked()}


def rows_of(check: Check, *sources: str) -> list[Row]:
    return [row for row in check.rows if row.point.cluster in sources]


def test_128_gpus_are_forecast_from_16_within_5_points_on_average(checks: dict[str, Check]) -> None:
    assert [row.point.ranks for row in checks["C"].rows] == [128] * 3
    assert checks["C"].mean <= 5


def test_more_hosts_are_forecast_from_1_and_2_and_rarely_too_low(checks: dict[str, Check]) -> None:
    rows = rows_of(checks["H"], "#779", "#396")
    assert [row.point.hosts for row in rows] == [4, 8, 16, 4, 8, 16]
    assert all(-2 <= round(row.error, 1) <= 6 for row in rows), [row.error for row in rows]


def test_the_mean_error_of_all_that_is_forecast_for_its_own_cluster_is_at_most_4_points(
    checks: dict[str, Check],
) -> None:
    rows = checks["C"].rows + checks["H"].rows
    assert sum(abs(row.error) for row in rows) / len(rows) <= 4


def test_most_published_points_are_in_their_bands(checks: dict[str, Check]) -> None:
    rows = [*checks["C"].rows] + rows_of(checks["H"], "#779", "#396")
    assert sum(row.is_inside for row in rows) >= 0.9 * len(rows)
    everything = [row for letter in "CDFHJ" for row in checks[letter].rows]
    assert sum(row.is_inside for row in everything) >= 0.8 * len(everything)
    assert all(row.band.low <= row.band.middle <= row.band.high for check in checks.values() for row in check.rows)


def test_a_third_measured_host_makes_the_forecast_better(checks: dict[str, Check]) -> None:
    ranks = {(row.point.cluster, row.point.ranks) for row in checks["J"].rows}
    same = [row for row in checks["H"].rows if (row.point.cluster, row.point.ranks) in ranks]
    assert len(same) == len(checks["J"].rows) > 2
    assert checks["J"].mean < sum(abs(row.error) for row in same) / len(same)


def test_what_differs_much_in_a_source_is_forecast_in_the_same_order(checks: dict[str, Check]) -> None:
    """Differences of 10 points are more than those of two measurements."""
    rows = [row for letter in "BCDFH" for row in checks[letter].rows]
    pairs = [
        (one, other)
        for one, other in itertools.permutations(rows, 2)
        if one.point.cluster.partition("-")[0] == other.point.cluster.partition("-")[0]
        and one.point.ranks == other.point.ranks
        and one.published > other.published + 10
    ]
    assert len(pairs) > 12
    for one, other in pairs:
        assert one.band.middle > other.band.middle, (one.point.cluster, one.point.model, other.point.model)


def test_without_calibration_the_model_is_far_off(checks: dict[str, Check]) -> None:
    """The reason why no number comes without a band: the network's nominal rate says little."""
    assert checks["A"].mean > 10


def test_a_job_that_the_input_limits_is_not_counted_but_shown(checks: dict[str, Check]) -> None:
    assert checks["K"].mean > 10 and not rows_of(checks["H"], "#871")
    text = published.as_text(list(checks.values()))
    assert "limited by reading the data" in text


@pytest.mark.slow("forecasts all published results twice")
def test_the_command_prints_every_error(capsys: pytest.CaptureFixture[str], checks: dict[str, Check]) -> None:
    assert main(["published"]) == 0
    text = capsys.readouterr().out
    assert text.count("mean error") == len(checks)
    assert all(f"{row.error:+6.1f}" in text for check in checks.values() for row in check.rows)
    assert main(["published", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert [table["check"] for table in tables] == list(checks)
    assert sum(len(table["rows"]) for table in tables) == sum(len(check.rows) for check in checks.values())


def test_the_file_names_the_source_and_the_hardware_of_each_number() -> None:
    content = json.loads((published.FILE).read_text(encoding="utf-8"))
    for cluster in content["clusters"]:
        assert all(cluster[name] for name in ("source", "hardware", "network")), cluster["id"]
        assert all(series["batch"] > 0 and series["model"] for series in cluster["series"]), cluster["id"]


def test_the_documentation_has_these_errors(checks: dict[str, Check]) -> None:
    text = (ROOT / "docs" / "forecast.md").read_text()
    shown = re.findall(r"\| (\d+\.\d) points \| (\d+ of \d+) \|", text)
    found = [(checks[letter].mean, f"{checks[letter].inside} of {len(checks[letter].rows)}") for letter in "CDHJFA"]
    assert [inside for _, inside in shown] == [inside for _, inside in found]
    assert [float(mean) for mean, _ in shown] == pytest.approx([mean for mean, _ in found], abs=0.1)
