"""The measures: TTFT, ITL, TPOT, goodput, and how they are summed up and written."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import report
from loadtest.monitor import SERIES, read
from loadtest.records import SLO, Outcome, Record, Spread, summarize

# Due at 10 s; 1, 2 and 1 tokens at 10.5, 10.7 and 11.1 s.
STREAM = Record("w", 10.0, 4, [(10.5, 1), (10.7, 2), (11.1, 1)], 20, "text", 11.1, Outcome.OK)


def test_latencies_count_from_when_a_request_was_due() -> None:
    assert STREAM.ttft_s == pytest.approx(0.5)
    assert STREAM.itls_s == pytest.approx([0.2, 0.4])
    assert STREAM.tpot_s == pytest.approx(0.6 / 3)
    assert STREAM.e2e_s == pytest.approx(1.1)


def test_one_token_has_no_time_per_output_token() -> None:
    assert replace(STREAM, responses=[(10.5, 1)]).tpot_s is None
    assert replace(STREAM, responses=[]).ttft_s is None


@pytest.mark.parametrize(
    ("slo", "met"),
    [(SLO(0.5, 0.2), True), (SLO(0.49, 0.2), False), (SLO(0.5, 0.19), False)],
)
def test_goodput_needs_both_limits(slo: SLO, met: bool) -> None:
    record = replace(STREAM, responses=[(10.5, 1), (10.7, 2), (11.09, 1)])
    assert slo.met_by(record) is met


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.FAILED])
def test_only_a_whole_stream_is_good(outcome: Outcome) -> None:
    assert not SLO(9, 9).met_by(replace(STREAM, outcome=outcome))


def test_percentiles_are_values_that_were_measured() -> None:
    spread = Spread.of([None, *(i / 1000 for i in range(1, 101))])
    assert (spread.count, spread.p50, spread.p90, spread.p99) == (100, 50, 90, 99)
    assert spread.mean == pytest.approx(50.5)
    assert Spread.of([]).count == 0


def test_cancelled_requests_are_left_out_of_the_share_and_failed_ones_are_not() -> None:
    records = [
        STREAM,
        replace(STREAM, due_s=5.0),
        replace(STREAM, outcome=Outcome.CANCELLED),
        replace(STREAM, outcome=Outcome.FAILED, error="gone", end_s=15.0),
    ]
    summary = summarize(records, SLO(1.0, 0.25))
    assert (summary.ok, summary.cancelled, summary.failed) == (2, 1, 1)
    assert summary.duration_s == pytest.approx(10.0)
    assert summary.goodput_per_s == pytest.approx(0.1)
    assert summary.good_share == pytest.approx(1 / 3)
    assert summary.output_tokens_per_s == pytest.approx(1.6)


def test_the_report_holds_every_request_and_the_summary(tmp_path: Path) -> None:
    failed = replace(STREAM, outcome=Outcome.FAILED, error="gone, with a comma")
    summary = report.write(tmp_path / "new", [STREAM, failed], SLO())
    with (tmp_path / "new/requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == ["ok", "failed"]
    assert rows[1]["error"] == "gone, with a comma"
    assert float(rows[0]["ttft_s"]) == pytest.approx(0.5)
    written = json.loads((tmp_path / "new/summary.json").read_text())
    assert written["ttft_ms"]["p99"] == pytest.approx(summary.ttft_ms.p99)
    assert "1 ok, 0 cancelled, 1 failed" in report.table(summary, SLO())


def test_an_empty_run_is_reported_without_a_division_by_zero(tmp_path: Path) -> None:
    assert report.write(tmp_path, [], SLO()).requests_per_s == 0.0


def test_the_servers_metrics_are_summed_over_the_versions_of_one_model() -> None:
    text = "\n".join(
        f'{SERIES[0]}{{model="{model}",version="{version}"}} {value}'
        for model, version, value in (("m", 1, 3), ("m", 2, 4), ("other", 1, 50))
    )
    assert read(text, "m") == [7.0, 0.0, 0.0, 0.0]
