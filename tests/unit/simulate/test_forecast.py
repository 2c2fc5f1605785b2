# SPDX-License-Identifier: Apache-2.0
"""Forecasts: what the model promises whatever the numbers, profiles and links as files, and what the command prints."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forecasts import PROFILE
from support.pages import ROOT

from horovod.bench.gradients import resnet50_shapes
from horovod.simulate.__main__ import main
from horovod.simulate.costs import Cluster, batch_s, negotiation_s
from horovod.simulate.draws import NOT_FITTED, Measured, Ranges, agreeing, band_of, drawn
from horovod.simulate.forecast import CAUSES, Job, forecast
from horovod.simulate.links import PRESETS
from horovod.simulate.models import MODELS, layers_of
from horovod.simulate.profile import read_profile
from horovod.simulate.step import CYCLES_OF_2017, Closing, Workload, efficiency, of_model, step_s
from horovod.simulate.stragglers import MOST_RANKS, slowest, spread_of

GUESS = drawn(Ranges(), 50)
# A batch takes what is ready. If a faster network finds less ready, it may need one batch more: that much is allowed.
ONE_BATCH = 0.004
# Above 16 and above 256 hosts, the direct exchange and the negotiation cost fewer messages.
OTHER_WAYS = 0.01
WAYS = ("direct", "nccl")


def median(work: Workload, cluster: Cluster, **values: float) -> float:
    return float(np.median(efficiency(work, cluster, GUESS.having(**values), Closing())))


WORK = [of_model("resnet50", 0.3), of_model("vgg16", 0.4), of_model("bert-base", 0.1)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("work", WORK, ids=lambda work: work.name)
def test_more_bandwidth_fewer_hosts_and_less_jitter_never_lower_the_efficiency(work: Workload, way: str) -> None:
    cluster = Cluster(8, 4, "pcie", "tcp", 25, way)
    by_rate = [median(work, dataclasses.replace(cluster, gbit=gbit)) for gbit in (1, 5, 10, 25, 50, 100, 400)]
    by_hosts = [median(work, dataclasses.replace(cluster, hosts=hosts)) for hosts in (512, 128, 32, 8, 4, 2, 1)]
    by_jitter = [median(work, cluster, jitter=jitter) for jitter in (0.1, 0.05, 0.02, 0.01, 0)]
    for values, allowed in ((by_rate, ONE_BATCH), (by_hosts, OTHER_WAYS), (by_jitter, ONE_BATCH)):
        assert all(after >= before - allowed for before, after in itertools.pairwise(values)), values
        assert values[-1] > values[0]


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_is_100_percent(way: str) -> None:
    for closing in (Closing(), CYCLES_OF_2017):
        reached = efficiency(WORK[0], Cluster(1, 1, way=way), GUESS, closing)
        assert (reached == 1).all()


def test_a_slow_network_takes_as_long_as_the_bytes_need() -> None:
    """By hand: 4 hosts of one rank send 2 x 3 / 4 of 553 MB each, over 1 Gbit/s, while backward hides a part."""
    exact = drawn(NOT_FITTED, 1)
    work = of_model("vgg16", 0.4)
    wire_s = 1.5 * float(work.sizes.sum()) / (1e9 / 8)
    for way in ("direct", "nccl"):
        took = float(step_s(work, Cluster(4, 1, network="tcp", gbit=1, way=way), exact, Closing())[0])
        first_s = float(work.ready_s[0])
        assert wire_s + first_s <= took <= wire_s + first_s + 0.05, way


def test_a_batch_costs_messages_to_every_host_or_in_groups_of_many() -> None:
    """Of 3 us: 8 to each other host, or 4 to each peer in its group of 32 hosts and in the 31 other groups."""
    exact = drawn(NOT_FITTED, 1)

    def took(size: int, hosts: int) -> float:
        return float(batch_s(size, Cluster(hosts, 1, gbit=10, way="direct"), exact, hosts)[0])

    assert took(64, 16) == pytest.approx(8 * 15 * 3e-6 + 4 * 30e-6)
    assert took(64, 1024) == pytest.approx(4 * 62 * 3e-6 + 6 * 30e-6)
    assert took(1 << 20, 4) == pytest.approx(1.5 * (1 << 20) / 1.25e9 + 4 * 30e-6)
    assert took(1 << 20, 1024) == pytest.approx(2 * 1023 / 1024 * (1 << 20) / 1.25e9 + 6 * 30e-6)
    assert took(64 << 20, 1024) == pytest.approx(2 * 1023 / 1024 * (64 << 20) / 1.25e9 + 4 * 30e-6)


def test_many_hosts_have_larger_batches_and_a_tree_of_leaders() -> None:
    closed = [Closing().among(hosts).close_bytes for hosts in (1, 256, 1024, 10_000)]
    assert closed == [1 << 20, 1 << 20, 4 << 20, 16 << 20]
    exact = drawn(NOT_FITTED, 1)
    agreed = [float(negotiation_s(Cluster(hosts, 1), exact)[0]) for hosts in (256, 1024)]
    assert agreed == [pytest.approx(2 * 30e-6 + 2 * 256 * 3e-6), pytest.approx(4 * 30e-6 + 4 * 32 * 3e-6)]


def test_the_formulas_of_an_allreduce_by_hand() -> None:
    """16 MB: hosts of 8 ranks, 25 Gbit/s (3.125 GB/s) over RDMA, NVLink inside."""
    exact = drawn(NOT_FITTED, 1)
    size, fast, inside = 16e6, 3.125e9, 40e9

    def took(hosts: int, way: str) -> float:
        return float(batch_s(size, Cluster(hosts, 8, "nvlink", "rdma", 25, way), exact, hosts)[0])

    ring_s = 1.9 * (28 * 3.4e-6 + 2 * 9.6e-6) + 30 / 16 * size / fast  # 30 steps of 16 ranks, of which 2 cross
    assert took(2, "ring") == pytest.approx(ring_s)
    alone_s = 14 * 3.4e-6 + 14 / 8 * size / inside
    assert took(1, "ring") == took(1, "direct") == pytest.approx(alone_s)
    assert took(4, "direct") == pytest.approx(4 * 9.6e-6 + 6 / 4 * size / fast + alone_s)
    tree_s = 1.9 * (2 * 10 * 9.6e-6 + 14 * 3.4e-6) + 2 * size / fast
    assert took(1024, "nccl") == pytest.approx(tree_s) and took(1024, "ring") > tree_s
    assert took(2, "nccl") == took(2, "ring")


def test_batches_close_by_size_by_age_or_when_all_wait() -> None:
    """Each batch takes a second here, whatever its size: the end says how many there were, and when they began."""
    trips_s = 4 * 30e-6
    guess = drawn(NOT_FITTED, 1).having(latency=1 / trips_s, utilisation=np.inf, overhead_s=0, negotiation=0, phase=0)

    def end(ready: list[float], sizes: list[float], **rules: float) -> float:
        work = Workload("made up", np.array(ready), np.array(sizes), ready[-1])
        closing = Closing(**{"close_bytes": 100, "linger_s": 0.5, **rules})
        return float(step_s(work, Cluster(2, 1, way="direct"), guess, closing)[0])

    assert end([1.0, 1.1], [10, 10]) == pytest.approx(2.1)  # all wait: one batch
    assert end([1.0, 1.1], [200, 10]) == pytest.approx(3.0)  # the first is full at once
    assert end([1.0, 1.1, 1.2], [60, 60, 10]) == pytest.approx(3.1)  # two are full together
    assert end([1.0, 3.0], [10, 10]) == pytest.approx(4.0)  # the first is old: it has gone before
    assert end([1.0, 3.0], [10, 10], linger_s=9) == pytest.approx(4.0)  # all wait
    assert end([1.0, 1.2], [10, 10], most_bytes=15) == pytest.approx(3.2)
    assert end([1.0, 1.2], [10, 10], cycle_s=4) == pytest.approx(5.0)
    assert end([1.0, 4.2], [10, 10], cycle_s=4) == pytest.approx(9.0)


def test_compute_is_slower_while_data_moves() -> None:
    guess = drawn(NOT_FITTED, 1).having(latency=1 / (4 * 30e-6), utilisation=np.inf, overhead_s=0, negotiation=0)
    work = Workload("made up", np.array([1.0]), np.array([1000.0]), 9.0)
    took = step_s(work, Cluster(2, 1, way="direct"), guess.having(interference=0.25), Closing(close_bytes=100))
    assert float(took[0]) == pytest.approx(9.2)  # in that second, 0.8 s of compute were done


def test_the_slowest_of_many_ranks_is_no_later_than_the_latest_sample() -> None:
    assert slowest(1) == 0 and slowest(2) == pytest.approx(0.564, abs=0.01)  # 1 / sqrt(pi)
    assert slowest(MOST_RANKS) == slowest(100_000) > slowest(16)
    samples = [1.0, 1.0, 1.0, 2.0]
    assert slowest(2, samples) < slowest(64, samples) <= (2.0 - 1.25) / np.std(samples) + 1e-9
    assert slowest(8, [1.0, 1.0]) == 0


def test_draws_that_disagree_with_what_was_measured_are_left_out() -> None:
    cluster = Cluster(2, 8, "nvlink", "tcp", 25, "nccl")
    truth = drawn(dataclasses.replace(Ranges(), utilisation=(0.3, 0.3), jitter=(0.01, 0.01)))
    reached = float(np.median(efficiency(WORK[1], cluster, truth, Closing(), 2)))
    found = agreeing([Measured(WORK[1], cluster, Closing(), reached)], Ranges())
    band = band_of(found.utilisation)
    assert band.low < 0.3 < band.high and band.width < 0.3
    assert found.draws == drawn(Ranges()).draws == 200


@pytest.mark.parametrize("name", MODELS)
def test_the_tables_of_layers_have_the_papers_sizes(name: str) -> None:
    millions = {"bert-base": 110.1, "inception3": 23.8, "resnet50": 25.6, "resnet101": 44.5, "vgg16": 138.4}[name]
    assert sum(layer.parameters for layer in layers_of(name)) / 1e6 == pytest.approx(millions, abs=0.1)
    assert len({layer.name for layer in layers_of(name)}) == len(layers_of(name))
    gradients = {"bert-base": 195, "inception3": 284, "resnet50": 161, "resnet101": 314, "vgg16": 32}[name]
    assert len(layers_of(name)) == gradients


def test_resnet50_has_the_gradients_of_the_benchmark() -> None:
    assert sorted(layer.parameters for layer in layers_of("resnet50")) == sorted(map(np.prod, resnet50_shapes()))


JOB = Job(of_model("vgg16", 0.4), PRESETS["25gbit-cloud"], (1, 2, 8), 4, "pcie", "nccl", batch=64)


def test_a_forecast_has_a_band_causes_and_what_would_help() -> None:
    made = forecast(JOB)
    assert [row.ranks for row in made.rows] == [4, 8, 32]
    for row in made.rows:
        assert row.band.low <= row.band.middle <= row.band.high
        assert set(row.causes) == set(CAUSES) and min(row.causes.values()) >= 0
        assert row.rate == pytest.approx(row.ranks * 64 / 0.4 * row.band.middle / 100)
    assert made.rows[-1].limit == "bandwidth" and made.is_wide
    gains = [one.gain.middle for one in made.what_ifs]
    assert gains == sorted(gains, reverse=True) and gains[0] > 5
    assert {one.change for one in made.what_ifs if one.changes_training} == {
        "compression=hvd.Compression.fp16",
        "twice the batch, or twice backward_passes_per_step",
    }
    assert forecast(JOB) == made, "the same question has the same answer"


def test_what_was_measured_narrows_the_band_and_its_error_is_told() -> None:
    wide = forecast(JOB).rows[-1].band
    made = forecast(dataclasses.replace(JOB, known=((1, 0.95), (2, 0.62))))
    band = made.rows[-1].band
    assert band.width < wide.width / 2 and not made.is_wide
    assert abs(made.rows[1].band.middle - 62) < 3
    assert [hosts for hosts, _ in made.errors] == [1, 2] and all(abs(error) < 3 for _, error in made.errors)


def test_a_cause_that_is_not_there_costs_nothing() -> None:
    alone = forecast(dataclasses.replace(JOB, hosts=(1,), ranks_a_host=1))
    assert alone.rows[0].band.low == alone.rows[0].band.high == 100 and alone.what_ifs == ()
    assert set(alone.rows[0].causes.values()) == {0} and alone.rows[0].limit == ""


def written(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**PROFILE, **changes}))
    return str(path)


def test_a_link_that_was_measured_stays_as_it_was_measured() -> None:
    """A preset is a guess, which an efficiency of the cluster corrects."""
    link = dataclasses.replace(JOB.link, utilisation=(0.5, 0.6), latency_us=(15, 90), overhead_us=(2, 4))
    known = dataclasses.replace(JOB, link=link, known=((2, 0.95),))
    assert known.ranges.utilisation == Ranges.utilisation and known.ranges.jitter == Ranges.jitter
    measured = dataclasses.replace(known, link=dataclasses.replace(link, hosts=2))
    assert measured.ranges.utilisation == (0.5, 0.6) and measured.known_hosts == 2
    assert measured.ranges.latency == pytest.approx((0.5, 3)) and measured.ranges.overhead_s == pytest.approx(
        (2e-6, 4e-6)
    )


def test_a_measurement_that_few_draws_explain_is_explained_by_more() -> None:
    """A nearly ideal link: of the first 4,000 draws, hardly one is as fast on two hosts."""
    work = Workload("mlp", np.linspace(0.2, 0.5, 12), np.full(12, 2.0 * (1 << 20)), 0.5)
    made = forecast(Job(work, PRESETS["1gbit-tcp"], (2,), 1, "memory", "direct", known=((2, 0.968),)))
    assert made.miss == 0 and abs(made.rows[0].band.middle - 96.8) < 3


def test_the_scatter_of_the_steps_is_that_of_the_stragglers() -> None:
    assert JOB.ranges.jitter == (0.01, 0.03)
    steady, uneven = (
        dataclasses.replace(JOB, work=dataclasses.replace(WORK[0], samples=samples))
        for samples in ((0.4, 0.4, 0.4), (0.36, 0.44))
    )
    assert steady.ranges.jitter == pytest.approx((0, 0)) and uneven.ranges.jitter == pytest.approx((0.07, 0.13))
    assert forecast(uneven).rows[-1].causes["stragglers"] > forecast(steady).rows[-1].causes["stragglers"] + 2


def test_steps_of_a_profile_count_by_their_mean(tmp_path: Path) -> None:
    """57 steps of 5 ms and 3 of 205: the rank makes a step in 15 ms, though the medians say 5."""
    parts = {
        name: {"median": median} for name, median in (("forward_ms", 1.0), ("backward_ms", 3.0), ("update_ms", 1.0))
    }
    ready = {**PROFILE["gradients"], "ready_ms": [[1.0] * 3, [3.0] * 3]}
    path = written(tmp_path, step_ms=[5.0] * 57 + [205.0] * 3, gradients=ready, **parts)
    work = read_profile(path).work
    assert work.step_s == pytest.approx(0.015) and work.update_s == pytest.approx(0.003)
    assert work.ready_s.tolist() == pytest.approx([0.006, 0.012])
    # Of two ranks, the slower one takes 24.5 ms on average.
    alone = step_s(
        work,
        Cluster(2, 1),
        GUESS.having(
            jitter=spread_of(work.samples),
            uneven=0,
            utilisation=1e9,
            messages=0,
            scatter=0,
            negotiation=0,
            interference=0,
        ),
        Closing(),
    )
    assert alone == pytest.approx(0.0245, rel=0.02)


def test_a_profile_is_read_as_a_step(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path))
    assert profile.work.ready_s.tolist() == pytest.approx([0.03, 0.09])
    assert profile.work.sizes.tolist() == [400, 4000000]
    assert profile.work.compute_s == pytest.approx(0.09) and profile.work.step_s == pytest.approx(0.1)
    assert (profile.device, profile.busy_ranks, len(profile.work.samples)) == ("cpu", 2, 20)


LINK = {"format": "horovod-link", "version": 1, "network": "tcp", "gbit": 10, "utilisation": [0.9, 0.95], "hosts": 2}


def test_the_command_reads_a_profile_and_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "link.json"
    link.write_text(json.dumps({**LINK, "latency_us": [20, 40], "overhead_us": [2, 3], "interference": [0, 0]}))
    arguments = ["forecast", written(tmp_path), "--link", str(link), "--ranks-a-host", "2", "--batch", "32"]
    assert main([*arguments, "--hosts", "1,4"]) == 0
    text = capsys.readouterr().out
    assert "train: 2 gradients, 4.0 MB, step of a rank with 2 busy ranks on its host 100.0 ms" in text
    assert "link.json (measured on 2 hosts); no efficiency was measured on this cluster" in text
    assert re.search(r"^ +4 +8 +\d+\.\d% +\d+\.\d to \d+\.\d +\d+\.\d", text, re.MULTILINE) and "hint:" not in text
    assert main([*arguments, "--json", "--hosts", "1,4"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [row["ranks"] for row in made["rows"]] == [2, 8] and made["link"]["hosts"] == 2
    assert made["rows"][1]["causes"]["contention"] == 0
    assert made["rows"][1]["band"][0] <= made["rows"][1]["efficiency"] <= made["rows"][1]["band"][1]


def test_ranks_on_cpus_use_horovods_own_exchange(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    arguments = [
        "forecast",
        path,
        "--link",
        "1gbit-tcp",
        "--ranks-a-host",
        "2",
        "--hosts",
        "1024",
        "--inside",
        "memory",
        "--json",
    ]
    causes = []
    for device in ([], ["--device", "cpu"], ["--device", "gpu"]):
        assert main([*arguments, *device]) == 0
        causes.append(json.loads(capsys.readouterr().out)["rows"][0]["causes"])
    assert causes[0] == causes[1] != causes[2]


def test_a_wide_band_says_first_what_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    known = ["forecast", "--model", "vgg16", "--step-ms", "416", "--link", "25gbit-cloud", "--ranks-a-host", "4"]
    assert main(known) == 0
    text = capsys.readouterr().out
    assert text.startswith("hint: a band is wider than 15 points: measure the efficiency on 1 and 2 hosts")
    assert main([*known, "--device", "cpu"]) == 0
    expected = "measure the link: horovodrun -np 2 -H host1:1,host2:1 python -m horovod.bench link\n"
    assert capsys.readouterr().out.partition("points: ")[2].startswith(expected)
    assert "25gbit-cloud (from a table, not measured)" in text
    assert main([*known, "--calibrate", "1:95,2:62", "--hosts", "2,4"]) == 0
    text = capsys.readouterr().out
    assert "hint:" not in text and "measured efficiency: 1 host 95.0%, 2 hosts 62.0%" in text
    assert "The model is off what was measured by" in text


def test_the_page_shows_the_chart_and_needs_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert (
        main(["forecast", "--model", "resnet50", "--step-ms", "294", "--link", "10gbit-tcp", "--html", str(page)]) == 0
    )
    assert f"the page is {page}" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("<!doctype html>") and text.count("<svg") == 1 and "</html>" in text
    assert not re.search(r"https?:|<script|<link|src=|url\(", text)
    corners = re.search(r"<polygon class=band points='([^']+)'", text)
    assert corners is not None and len(corners[1].split()) == 2 * 7
    for x, y in (corner.split(",") for corner in corners[1].split()):
        assert 0 <= float(x) <= 300 and -5 <= float(y) <= 100
    for name in CAUSES:
        assert f"<span>{name}</span>" in text


def test_the_documentation_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "forecast.md").read_text()
    found = re.search(r"\n    python -m horovod.simulate (forecast --model [^\n]*)\n\n```\n(.*?)```", text, re.DOTALL)
    assert found is not None and main(found[1].split()) == 0
    printed = capsys.readouterr().out

    def without_figures(lines: str) -> str:
        return re.sub(r"[-+]?\d+\.\d+", "0.0", re.sub(r" +", " ", lines))

    assert without_figures(printed) == without_figures(found[2])
    figures = [list(map(float, re.findall(r"\d+\.\d+", lines))) for lines in (printed, found[2])]
    assert figures[0] == pytest.approx(figures[1], abs=0.2)


def test_the_documentation_has_the_presets() -> None:
    text = (ROOT / "docs" / "forecast.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) to (\d+)% \|", text, re.MULTILINE)
    assert rows == [
        (link.name, f"{link.gbit:g}", *(f"{100 * part:.0f}" for part in link.utilisation)) for link in PRESETS.values()
    ]
    for model in MODELS:
        assert f"`{model}`" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "expected a profile or --model, one of them"),
        (["profile", "--model", "vgg16"], "expected a profile or --model, one of them"),
        (["--model", "vgg16"], "--model needs --step-ms"),
        (["profile", "--step-ms", "3"], "--step-ms is for --model"),
        (["profile", "--ranks-a-host", "1"], "--hosts 1 with --ranks-a-host 1 is 1 rank, fewer than the 2 of the"),
        (["none.json"], "cannot read none.json: No such file"),
        (["--model", "vgg16", "--step-ms", "3", "--html", "none/page.html"], "cannot write none/page.html: No such"),
    ],
)
def test_what_cannot_be_forecast_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    known = ["profile.json" if word == "profile" else word for word in arguments]
    assert main(["forecast", "--link", "10gbit-tcp", *known]) == 1
    assert text in capsys.readouterr().err
    assert main(["forecast", "--model", "vgg16", "--step-ms", "3", "--link", "rope"]) == 1
    assert "--link rope: there is no such file, nor such a link\nhint: links are 1gbit-tcp, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [
        ("--hosts", "2,1", "expected numbers that grow"),
        ("--hosts", "0", "expected a number from 1 to 100000"),
        ("--calibrate", "2:201", "'2:201': expected HOSTS:PERCENT"),
        ("--calibrate", "x", "'x': expected HOSTS:PERCENT, such as 2:91.9"),
        ("--step-ms", "inf", "expected a number from 0.001 to 1e+09"),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, text: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["forecast", "--link", "10gbit-tcp", flag, value])
    assert text in capsys.readouterr().err
