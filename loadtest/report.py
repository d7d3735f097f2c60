"""Writes what a run measured: a table for the terminal, CSV for a spreadsheet, JSON for a script."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.records import SLO, Record, Spread, Summary, summarize

REQUEST_COLUMNS = (
    "workload", "outcome", "due_s", "ttft_s", "tpot_s", "e2e_s",
    "prompt_tokens", "output_tokens", "max_itl_s",
    "good", "error",
)  # fmt: skip


def write(directory: Path, records: Sequence[Record], slo: SLO) -> Summary:
    """Writes requests.csv, summary.csv and summary.json into `directory`, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    summary = summarize(records, slo)
    start_s = min((record.due_s for record in records), default=0.0)
    write_csv(directory / "requests.csv", REQUEST_COLUMNS, (_request_row(r, start_s, slo) for r in records))
    write_csv(directory / "summary.csv", ("metric", *Spread.__annotations__), _spread_rows(summary))
    (directory / "summary.json").write_text(
        json.dumps({"slo": asdict(slo), **asdict(summary)}, indent=2) + "\n"
    )
    return summary


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def table(summary: Summary, slo: SLO) -> str:
    """The summary as text."""
    lines = [f"{'ms':<6}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'values':>10}"]
    for name, spread in _spreads(summary):
        values = (spread.mean, spread.p50, spread.p90, spread.p99)
        lines.append(f"{name:<6}" + "".join(f"{value:>10.1f}" for value in values) + f"{spread.count:>10}")
    lines += [
        "",
        f"requests       {summary.ok} ok, {summary.cancelled} cancelled, {summary.failed} failed "
        f"in {summary.duration_s:.1f} s",
        f"output         {summary.output_tokens_per_s:.1f} tokens/s, {summary.requests_per_s:.2f} requests/s",
        f"goodput        {summary.goodput_per_s:.2f} requests/s, {summary.good_share:.1%} within "
        f"TTFT <= {slo.ttft_s:g} s and TPOT <= {1000 * slo.tpot_s:g} ms",
    ]
    return "\n".join(lines)


def _spreads(summary: Summary) -> list[tuple[str, Spread]]:
    return [
        ("TTFT", summary.ttft_ms),
        ("ITL", summary.itl_ms),
        ("TPOT", summary.tpot_ms),
        ("E2E", summary.e2e_ms),
    ]


def _spread_rows(summary: Summary) -> Iterable[tuple[object, ...]]:
    return ((f"{name}_ms", *asdict(spread).values()) for name, spread in _spreads(summary))


def _request_row(record: Record, start_s: float, slo: SLO) -> tuple[object, ...]:
    return (
        record.workload,
        record.outcome.value,
        round(record.due_s - start_s, 6),
        record.ttft_s,
        record.tpot_s,
        record.e2e_s,
        record.prompt_tokens,
        record.output_tokens,
        max(record.itls_s, default=None),
        int(slo.met_by(record)),
        record.error,
    )
