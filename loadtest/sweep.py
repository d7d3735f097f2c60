"""Goodput against offered load: an OpenLoop run a rate on a running server, then a table and a picture.

    python -m loadtest.sweep
    python -m loadtest.sweep --rates 4 8 16 --run-time 60 --output gpu -- --host server:8001 --max-output 512

What follows `--` goes to Locust. Every rate asks with prompts of its own, so that none finds those of
another in the prefix cache. Goodput is the offered rate times the share of requests that met the SLO.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from loadtest import charts
from loadtest.charts import Chart

LOCUST = (sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary")
PERCENTILES = ("p50", "p90", "p99")
RATES = (0.5, 1.0, 1.5, 2.0, 3.0)
COLUMNS = (
    "offered/s",
    "goodput/s",
    "within SLO",
    "tokens/s",
    "TTFT ms",
    "ITL ms",
    "TPOT ms",
    "KV most",
    "failed",
)


@dataclass(frozen=True)
class Measured:
    """What one rate gave: the run's summary.json and its KV use as (seconds, share of blocks)."""

    rate: float
    summary: dict[str, Any]
    kv_use: list[tuple[float, float]]

    @property
    def goodput_per_s(self) -> float:
        return self.rate * float(self.summary["good_share"])

    @property
    def most_kv_use(self) -> float:
        return max((use for _, use in self.kv_use), default=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a request failed at any rate."""
    options = _options(arguments)
    command = shlex.join(["python", "-m", "loadtest.sweep", *(arguments or sys.argv[1:])])
    print(command)
    load_average = [os.getloadavg()]
    runs = [run(rate, number, options) for number, rate in enumerate(sorted(options.rates))]
    load_average.append(os.getloadavg())
    facts = {"command": command, "date": now(), "machine": machine(), "load_average": load_average}
    write(options.output, runs, facts)
    print("\n".join(table(runs)))
    print(f"Written to {options.output}.json, .svg and .md")
    return int(any(measured.summary["failed"] for measured in runs))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="Requests a second")
    parser.add_argument("--run-time", type=int, default=45, help="Seconds of each rate")
    parser.add_argument(
        "--output", type=Path, default=Path("docs/benchmarks/loadtest"), help="Without suffix"
    )
    parser.add_argument("--results", type=Path, default=Path("loadtest-results"), help="Folder for each run")
    parser.add_argument("locust", nargs="*", help="Locust's options, after --")
    return parser.parse_args(arguments)


def run(rate: float, seed: int, options: argparse.Namespace) -> Measured:
    """Runs Locust until its last request has ended. Raises FileNotFoundError if it wrote no report."""
    results = options.results / f"rate-{rate:g}"
    print(f"{rate:g} requests/s for {options.run_time} s", flush=True)
    wanted = ["-u", "1", "-t", f"{options.run_time}s", "--results", str(results)]
    wanted += ["--stop-timeout", "120", "--timeout", "120"]  # where too much is offered, all wait long
    wanted += ["--seed", str(seed), *options.locust, "--rate", str(rate), "OpenLoop"]
    subprocess.run([*LOCUST, *wanted], check=False)
    summary = json.loads((results / "summary.json").read_text())
    with (results / "server.csv").open() as file:
        rows = csv.DictReader(file)
        kv_use = [(float(row["at_s"]), float(row["vllm:kv_cache_usage_perc"])) for row in rows]
    return Measured(rate, summary, kv_use)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, 'unknown CPU')}, {len(os.sched_getaffinity(0))} cores"


def write(output: Path, runs: Sequence[Measured], facts: dict[str, Any]) -> None:
    """The raw numbers, the picture, and a page with the table."""
    output.parent.mkdir(parents=True, exist_ok=True)
    numbers = facts | {"runs": [asdict(measured) for measured in runs]}
    Path(f"{output}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    charts.write(Path(f"{output}.svg"), pictures(runs))
    Path(f"{output}.md").write_text("\n".join(page(output.name, runs, facts)) + "\n")


def page(name: str, runs: Sequence[Measured], facts: dict[str, Any]) -> list[str]:
    slo = runs[0].summary["slo"]
    before, after = (average[0] for average in facts["load_average"])
    return [
        "# Goodput against offered load",
        "",
        f"`{facts['command']}` on {facts['machine']}, {facts['date']}; load average {before:.1f} before and",
        f"{after:.1f} after. Requests arrive by a Poisson process at each rate. Within the SLO are those",
        f"with TTFT <= {slo['ttft_s']:g} s and TPOT <= {1000 * slo['tpot_s']:g} ms; goodput is the offered",
        f"rate times their share. [How it is measured](../loadtest.md), [raw numbers]({name}.json).",
        "",
        f"![Goodput, KV use, TTFT and ITL]({name}.svg)",
        "",
        "Latencies as p50 / p90 / p99.",
        "",
        *table(runs),
    ]


def table(runs: Sequence[Measured]) -> list[str]:
    """In Markdown."""
    rows = [COLUMNS, ("---:",) * len(COLUMNS), *map(_row, runs)]
    return [f"| {' | '.join(row)} |" for row in rows]


def _row(measured: Measured) -> tuple[str, ...]:
    summary = measured.summary
    latencies = (summary[name] for name in ("ttft_ms", "itl_ms", "tpot_ms"))
    return (
        f"{measured.rate:g}",
        f"{measured.goodput_per_s:.2f}",
        f"{summary['good_share']:.0%}",
        f"{summary['output_tokens_per_s']:.0f}",
        *(" / ".join(f"{latency[p]:.0f}" for p in PERCENTILES) for latency in latencies),
        f"{measured.most_kv_use:.0%}",
        str(summary["failed"]),
    )


def pictures(runs: Sequence[Measured]) -> list[Chart]:
    goodput = {
        "offered": [(m.rate, m.rate) for m in runs],
        "within the SLO": [(m.rate, m.goodput_per_s) for m in runs],
    }
    kv_use = {f"{m.rate:g}/s": [(at, 100 * use) for at, use in m.kv_use if at >= 0] for m in runs}
    return [
        Chart("Goodput", "offered requests/s", "requests/s", goodput),
        Chart("KV blocks in use", "seconds", "%", kv_use),
        Chart("Time to first token", "offered requests/s", "ms", _latency(runs, "ttft_ms")),
        Chart("Inter-token latency", "offered requests/s", "ms", _latency(runs, "itl_ms")),
    ]


def _latency(runs: Sequence[Measured], name: str) -> dict[str, list[tuple[float, float]]]:
    return {p: [(m.rate, m.summary[name][p]) for m in runs] for p in PERCENTILES}


if __name__ == "__main__":
    sys.exit(main())
