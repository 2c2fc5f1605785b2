# SPDX-License-Identifier: Apache-2.0
"""The text of the metrics, its names, the answers over HTTP, and the board of Grafana that uses the names."""

from __future__ import annotations

import errno
import json
import re
import socket
from typing import Any

import pytest
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as open_parser
from support.pages import ROOT

from horovod.metrics import http, series, text
from horovod.metrics.exporter import hint_for_file, hint_for_port
from horovod.metrics.series import FAMILIES, Place, Sample, Totals
from horovod.settings import SettingError, Settings

PLACE = Place(rank=2, size=4, local_rank=0, local_size=2, host='a "b"\\n\n', generation=3, transport="shm")
# Dashboards and alerts use these: they may grow in number only.
NAMES = {
    "horovod_batches_total",
    "horovod_tensors_total",
    "horovod_bytes_total",
    "horovod_calls_total",
    "horovod_wait_seconds_total",
    "horovod_blocked_for_ranks_seconds_total",
    "horovod_blocked_for_data_seconds_total",
    "horovod_slow_requests_total",
    "horovod_control_messages_total",
    "horovod_engine_wakes_total",
    "horovod_names_evicted_total",
    "horovod_nccl_batches_total",
    "horovod_level_batches_total",
    "horovod_staged_batches_total",
    "horovod_late_rank_waits_total",
    "horovod_late_rank_wait_seconds_total",
    "horovod_in_flight_calls",
    "horovod_running",
    "horovod_world_size",
    "horovod_local_size",
    "horovod_generation",
    "horovod_init_time_seconds",
    "horovod_rank_info",
}


def facts(scale: int = 1, late: dict[int, float] | None = None) -> dict[str, Any]:
    """Statistics, as the native core gives them, with another value for each counter."""
    names = "batches tensors bytes slow_requests control_messages engine_wakes names_evicted"
    names += " batches_by_nccl batches_in_levels batches_staged"
    counters = {name: scale * (number + 1) for number, name in enumerate(names.split())}
    times = {"waited_s": 0.1, "blocked_for_ranks_s": 0.25, "blocked_for_data_s": 0.5}
    arrivals: dict[str, Any] = {"calls": 100 * scale, **{name: scale * value for name, value in times.items()}}
    by_rank = {rank: {"times": scale, "waited_s": scale * waited_s} for rank, waited_s in (late or {}).items()}
    return {**counters, "in_flight": 7, "arrivals": {**arrivals, "by_rank": by_rank}}


def samples_of(these: dict[str, Any], totals: Totals | None = None) -> list[Sample]:
    return list(series.samples(PLACE, 12.5, these, (totals or Totals()).plus(these)))


def full_names() -> set[str]:
    suffix = {"counter": "_total", "info": "_info", "gauge": ""}
    return {family.name + suffix[family.kind] for family in FAMILIES}


def test_names_stay_and_are_on_the_page() -> None:
    assert full_names() == NAMES
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = page.split("## The series")[1].split("\n## ")[0]
    assert set(re.findall(r"`(horovod_\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", rows, re.M)))) >= full_names()
    assert set(re.findall(r"\bhorovod_\w+", page)) <= full_names()


@pytest.mark.parametrize("kind", ["OpenMetrics", "plain"])
def test_the_text_has_every_number_and_label(kind: str) -> None:
    rows = samples_of(facts(late={0: 1.5, -1: 0.5}))
    if kind == "plain":
        parsed = list(plain_parser.text_string_to_metric_families(text.in_plain_text(rows)))
    else:
        parsed = list(open_parser.text_string_to_metric_families(text.in_open_metrics(rows)))
    assert len(parsed) == len(FAMILIES) and all(family.documentation for family in parsed)
    found = {(one.name, one.labels.get("late_rank", "")): one for family in parsed for one in family.samples}
    assert {name for name, _ in found} == full_names()
    for one in found.values():
        assert (one.labels["rank"], one.labels["host"]) == ("2", PLACE.host)
    values = {key: one.value for key, one in found.items()}
    assert values["horovod_bytes_total", ""] == 3 and values["horovod_staged_batches_total", ""] == 10
    assert values["horovod_blocked_for_data_seconds_total", ""] == 0.5
    assert values["horovod_late_rank_wait_seconds_total", "-1"] == 0.5
    assert values["horovod_late_rank_waits_total", "0"] == 1
    assert values["horovod_world_size", ""] == 4 and values["horovod_generation", ""] == 3
    assert values["horovod_in_flight_calls", ""] == 7 and values["horovod_running", ""] == 1
    assert found["horovod_rank_info", ""].labels["transport"] == "shm"


def test_units_are_those_of_the_names() -> None:
    for family in FAMILIES:
        assert family.unit == ("seconds" if "seconds" in family.name else "bytes" if "bytes" in family.name else "")


def test_a_generation_that_has_ended_takes_nothing_away() -> None:
    first, second = facts(5, {0: 1.0, 1: 2.0}), facts(1, {1: 0.25, 3: 4.0})
    totals = Totals().plus(first).plus(second)
    assert totals.counters["horovod_bytes"] == 18 and totals.counters["horovod_wait_seconds"] == pytest.approx(0.6)
    assert totals.late == {0: (5, 5.0), 1: (6, 10.25), 3: (1, 4.0)}
    ended = {one.family.name: one.value for one in samples_of(second, totals=Totals().plus(first))}
    assert ended["horovod_bytes"] == 18


def test_the_late_ranks_of_a_large_job_are_those_waited_for_longest() -> None:
    waits = {rank: float(rank % 100) for rank in range(1000)}
    rows = samples_of(facts(late=waits))
    shown = [int(one.labels["late_rank"]) for one in rows if one.family.name == "horovod_late_rank_waits"]
    assert len(shown) == 32 and shown == sorted(shown)
    assert min(waits[rank] for rank in shown) == 96.0


def answer(request: str) -> tuple[str, dict[str, str], str]:
    head, _, body = http.answer_to(request.encode(), lambda is_open: f"open: {is_open}").decode().partition("\r\n\r\n")
    status, *headers = head.split("\r\n")
    return status, dict(line.split(": ", 1) for line in headers), body


def test_a_client_gets_the_text_that_it_accepts() -> None:
    prometheus = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n"
    status, headers, body = answer(f"GET /metrics HTTP/1.1\r\nHost: a\r\n{prometheus}\r\n")
    assert status == "HTTP/1.0 200 OK" and body == "open: True" and headers["Content-Length"] == "10"
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert headers["Server"] == "horovod"
    status, headers, body = answer("GET /metrics?x=1 HTTP/1.1\r\n\r\n")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4") and body == "open: False"


def test_head_gets_the_headers_alone() -> None:
    got, (status, headers, body) = answer("GET /metrics HTTP/1.1\r\n\r\n"), answer("HEAD /metrics HTTP/1.1\r\n\r\n")
    assert status == "HTTP/1.0 200 OK" and body == "" and headers["Content-Length"] == got[1]["Content-Length"]
    assert answer("HEAD / HTTP/1.1\r\n\r\n")[0].split()[1] == "404"
    status, headers, body = answer("POST /metrics HTTP/1.1\r\n\r\n")
    assert headers["Content-Type"].startswith("text/plain") and body.startswith("Error code: 501, ")


@pytest.mark.parametrize("value", ["99999", "65536", "0", "-1", "abc"])
def test_what_is_not_a_port_is_refused(value: str) -> None:
    with pytest.raises(SettingError, match=rf"^HOROVOD_METRICS_PORT='{value}': expected a port, 1 to 65535"):
        Settings.from_environment({"HOROVOD_METRICS_PORT": value})
    assert Settings.from_environment({"HOROVOD_METRICS_PORT": "65535"}).metrics_port == 65535


def test_the_hint_for_the_port_fits_the_error() -> None:
    for of_address in (socket.gaierror(-2, "Name or service not known"), OSError(errno.EADDRNOTAVAIL, "")):
        assert hint_for_port(of_address).startswith("set HOROVOD_METRICS_ADDRESS to ")
    for of_port in (OSError(errno.EADDRINUSE, ""), OverflowError("port must be 0-65535.")):
        assert hint_for_port(of_port).startswith("set HOROVOD_METRICS_PORT to ")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 501),
        ("nonsense\r\n\r\n", 400),
        ("x" * http.LONGEST_REQUEST, 400),
        ("GET /metrics HTTP/9.9\r\n\r\n", 505),
    ],
)
def test_another_request_gets_no_metrics(request_: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    answered = http.answer_to(request_.encode(), lambda is_open: "secret").decode()
    assert f" {code} " in answered or f"Error code: {code}" in answered
    assert "secret" not in answered and capsys.readouterr().err == ""


def test_the_hint_for_the_file_fits_the_error() -> None:
    assert hint_for_file(OSError(errno.ENOSPC, "")).startswith("make room on the disk of HOROVOD_METRICS_FILE")
    assert hint_for_file(OSError(errno.ENOENT, "")).startswith("make the folder of HOROVOD_METRICS_FILE")


def test_a_file_for_all_ranks_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^HOROVOD_METRICS_FILE='a.prom': expected a path with \{rank\} in it"):
        Settings.from_environment({"HOROVOD_METRICS_FILE": "a.prom"})
    assert Settings.from_environment({"HOROVOD_METRICS_FILE": ""}).metrics_file == ""


BOARD = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())


def test_the_board_shows_series_that_exist() -> None:
    expressions = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in BOARD["templating"]["list"]]
    used = {name for text_ in expressions for name in re.findall(r"\bhorovod_\w+", text_)}
    assert len(used) > 15 and used <= full_names()


def test_no_panels_of_the_board_overlap() -> None:
    cells = []
    for panel in BOARD["panels"]:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells += [(column, row) for column in range(x, x + w) for row in range(y, y + h)]
        assert x + w <= 24 and panel["title"] and panel["description"]
    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def lost(given: Any, kept: Any, at: str = "") -> list[str]:
    """What is in `given` and not in `kept`."""
    if isinstance(given, dict):
        gone = [f"{at}.{key}" for key in given if key not in kept]
        return gone + [path for key in given if key in kept for path in lost(given[key], kept[key], f"{at}.{key}")]
    if isinstance(given, list) and len(given) == len(kept):
        return [path for number, one in enumerate(given) for path in lost(one, kept[number], f"{at}[{number}]")]
    return [] if given == kept else [f"{at}: {given!r} became {kept!r}"]


@pytest.mark.check
def test_grafana_knows_every_key_of_the_board() -> None:
    """Its schema, from which the package is made, drops what it does not know."""
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason="not run: no grafana-foundation-sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()

    def through_grafana(board: Any) -> Any:
        return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))

    assert lost(BOARD, through_grafana(BOARD)) == []
    assert lost({"refrsh": "1s"}, through_grafana({**BOARD, "refrsh": "1s"})) == [".refrsh"]
