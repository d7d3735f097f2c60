"""Goodput against offered load: one OpenLoop run a rate, then a table and a picture of all of them.

    python -m loadtest.sweep --rates 0.5 1 2 4 --run-time 60s --output docs/benchmarks/load
    python -m loadtest.sweep --rates 1 2 --output out -- --host server:8001 --max-output 64

What follows `--` goes to Locust.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest import charts
from loadtest.charts import Chart
from loadtest.report import write_csv

LOCUST = (sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary")
PERCENTILES = ("p50", "p99")


@dataclass(frozen=True)
class Measured:
    """What one rate gave: the run's summary.json and its KV use as (seconds, share of blocks)."""

    rate: float
    summary: dict[str, Any]
    kv_use: list[tuple[float, float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a request failed at any rate."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.sweep", description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="Requests a second")
    parser.add_argument("--run-time", default="60s", help="Of each rate")
    parser.add_argument(
        "--output", type=Path, required=True, help="Folder for sweep.csv, sweep.svg and the runs"
    )
    parser.add_argument("locust", nargs="*", help="Locust's options, after --")
    options = parser.parse_args(arguments)
    runs = [run(rate, options.run_time, options.output, options.locust) for rate in sorted(options.rates)]
    write_table(options.output / "sweep.csv", runs)
    charts.write(options.output / "sweep.svg", pictures(runs))
    print(f"Written to {options.output}/sweep.csv and sweep.svg")
    return int(any(measured.summary["failed"] for measured in runs))


def run(rate: float, run_time: str, output: Path, extra: Sequence[str]) -> Measured:
    """Runs Locust to its end. Raises FileNotFoundError if it wrote no report."""
    results = output / f"rate-{rate:g}"
    print(f"{rate:g} requests/s for {run_time}")
    command = [*LOCUST, "-u", "1", "-t", run_time, "--stop-timeout", "120", "--results", str(results)]
    subprocess.run([*command, *extra, "--rate", str(rate), "OpenLoop"], check=False)
    summary = json.loads((results / "summary.json").read_text())
    with (results / "server.csv").open() as file:
        rows = csv.DictReader(file)
        kv_use = [(float(row["at_s"]), float(row["vllm:kv_cache_usage_perc"])) for row in rows]
    return Measured(rate, summary, kv_use)


def write_table(path: Path, runs: Sequence[Measured]) -> None:
    columns = ("rate", "goodput_per_s", "good_share", "output_tokens_per_s", "failed")
    latencies = [(name, p) for name in ("ttft_ms", "itl_ms", "tpot_ms") for p in PERCENTILES]
    rows = [
        [m.rate, *(m.summary[c] for c in columns[1:]), *(m.summary[name][p] for name, p in latencies)]
        for m in runs
    ]
    write_csv(path, [*columns, *(f"{name}_{p}" for name, p in latencies)], rows)


def pictures(runs: Sequence[Measured]) -> list[Chart]:
    goodput = {
        "offered": [(m.rate, m.rate) for m in runs],
        "within the SLO": [(m.rate, m.summary["goodput_per_s"]) for m in runs],
    }
    kv_use = {f"{m.rate:g}/s": [(at, 100 * use) for at, use in m.kv_use if at >= 0] for m in runs[-4:]}
    return [
        Chart("Goodput", "offered requests/s", "requests/s", goodput),
        Chart("Time to first token", "offered requests/s", "ms", _latency(runs, "ttft_ms")),
        Chart("Inter-token latency", "offered requests/s", "ms", _latency(runs, "itl_ms")),
        Chart("KV blocks in use", "seconds", "%", kv_use),
    ]


def _latency(runs: Sequence[Measured], name: str) -> dict[str, list[tuple[float, float]]]:
    return {p: [(m.rate, m.summary[name][p]) for m in runs] for p in PERCENTILES}


if __name__ == "__main__":
    sys.exit(main())
