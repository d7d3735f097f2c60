"""`make bench`: output tokens/s, TTFT and ITL at concurrency 1, 8 and 32, side by side.

Subjects take turns within each round, so that what disturbs the machine disturbs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import workload
from benchmarks.measure import Numbers, numbers
from benchmarks.subjects import EngineAlone, Subject, ThroughTriton, Transformers
from pagetide.config import Settings

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = ROOT / "model_repository"
REQUESTS = {1: 4, 8: 16, 32: 64}
"""Requests a run, by concurrency."""

Results = dict[tuple[str, int], list[Numbers]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/benchmarks/serving.json")
    parser.add_argument("--without-transformers", action="store_true")
    options = parser.parse_args()
    console = Console()
    directory = REPOSITORY / "smollm2" / "1"
    values = json.loads((directory / "model.json").read_text())
    engine = EngineAlone(Settings.from_mapping(values), directory)
    asks = [
        workload.make(sum(REQUESTS.values()), engine.encode, workload.SEED + each)
        for each in range(options.rounds)
    ]
    with ThroughTriton(REPOSITORY) as triton:
        subjects: list[Subject] = [engine, triton]
        if not options.without_transformers:
            subjects.append(Transformers(values["model"]))
        results = measure(subjects, asks, console)
    console.print(table(results))
    options.output.write_text(json.dumps(report(results, options.rounds), indent=1) + "\n")
    console.print(f"raw numbers: {options.output}")


def measure(
    subjects: Sequence[Subject], rounds: Sequence[Sequence[workload.Ask]], console: Console
) -> Results:
    """Each subject once to warm up, then an interleaved run of each at each concurrency, round by round.

    Every round has prompts of its own, so that no run finds its prefixes cached by the round before.
    """
    for subject in subjects:
        subject.run(rounds[0][-2:], 2)
    results: Results = {}
    for round_number, asks in enumerate(rounds, 1):
        todo = iter(asks)
        for concurrency, count in REQUESTS.items():
            own = list(islice(todo, count))
            for subject in subjects:
                console.print(f"round {round_number}/{len(rounds)}: {subject.name} at {concurrency}")
                result = numbers(subject.run(own, concurrency))
                results.setdefault((subject.name, concurrency), []).append(result)
    return results


def medians(runs: Sequence[Numbers]) -> Numbers:
    return Numbers(
        *(statistics.median(getattr(run, field.name) for run in runs) for field in fields(Numbers))
    )


def table(results: Results) -> Table:
    shown = Table(title="medians", caption="ms for TTFT and ITL; 'of engine' is output tokens/s")
    for column in ("concurrency", "subject", "output tok/s", "of engine", "TTFT p50", "ITL p50", "ITL p99"):
        shown.add_column(column, justify="left" if column == "subject" else "right")
    for (name, concurrency), runs in results.items():
        middle = medians(runs)
        alone = medians(results[EngineAlone.name, concurrency]).output_tokens_per_s
        latencies = (middle.ttft_p50_s, middle.itl_p50_s, middle.itl_p99_s)
        shown.add_row(
            str(concurrency),
            name,
            f"{middle.output_tokens_per_s:.1f}",
            f"{middle.output_tokens_per_s / alone:.2f}",
            *(f"{1e3 * latency:.1f}" for latency in latencies),
        )
    return shown


def report(results: Results, rounds: int) -> dict[str, object]:
    return {
        "command": "make bench",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "rounds": rounds,
        "runs": [
            {"subject": name, "concurrency": concurrency, "runs": [asdict(run) for run in runs]}
            for (name, concurrency), runs in results.items()
        ],
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
