"""`make bench-peers`: Pagetide and other engines on the same requests and weights, in turns, in one table."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers import limits, page, workload
from benchmarks.peers.engines import PEERS, ROOT, WORK, Peer, PeerError, Running, prepare
from benchmarks.serving import cpu_name
from pagetide import tokenizer
from pagetide.build import resolve
from pagetide_kernels import cpu

PARTS = ("offline", "single_first", "single", "long", "first", "second")
WIDTH = 140
"""Columns of a terminal that show the whole table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="peers whose name has one of these words")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/benchmarks/peers.json")
    options = parser.parse_args()
    console = Console(width=WIDTH)
    WORK.mkdir(parents=True, exist_ok=True)
    values = json.loads((ROOT / "model_repository/smollm2/1/model.json").read_text())
    gguf = resolve(values["model"], Path())
    rounds = workload.make(tokenizer.load(gguf).encode, options.rounds)
    chosen = [p for p in PEERS if not options.only or any(word in p.name for word in options.only)]
    running, problems = start(chosen, gguf, console)
    cores = len(os.sched_getaffinity(0))
    machine = {"cpu": cpu_name(), "cores": cores, "instructions": cpu.isa(), **limits.measure()}
    results = measure(running, rounds, console)
    for engine in running.values():
        engine.stop()
    summary = {name: summarise(runs, rounds[0]) for name, runs in results.items()}
    report = {
        "command": _command(sys.argv[1:]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "rounds": options.rounds,
        "machine": machine,
        "versions": {name: engine.versions for name, engine in running.items()},
        "problems": problems,
        "medians": summary,
        "runs": results,
    }
    console.print(table(report))
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(page.page(report, options.output.name))
    console.print(f"raw numbers: {options.output}, and a page beside them")


def _command(args: Sequence[str]) -> str:
    return "make bench-peers" + (f' ARGS="{shlex.join(args)}"' if args else "")


def start(peers: Sequence[Peer], gguf: Path, console: Console) -> tuple[dict[str, Running], dict[str, str]]:
    """The engines that run, and why the others don't."""
    running: dict[str, Running] = {}
    problems: dict[str, str] = {}
    for peer in peers:
        console.print(f"preparing {peer.name} (the first time takes minutes)")
        try:
            prepare(peer, gguf)
            running[peer.name] = Running(peer)
        except PeerError as error:
            problems[peer.name] = str(error)
            console.print(f"[red]{peer.name}: {error}[/red]")
    return running, problems


def measure(
    running: dict[str, Running], rounds: Sequence[dict[str, Any]], console: Console
) -> dict[str, list[dict[str, Any]]]:
    """Everyone warms up once; then, part by part, they take turns."""
    warm_up = {"prompts": [prompt[:40] for prompt in rounds[0]["offline"]["prompts"][:8]], "counts": [8] * 8}
    for engine in running.values():
        engine.run(warm_up)
    results: dict[str, list[dict[str, Any]]] = {name: [{} for _ in rounds] for name in running}
    for number, asked in enumerate(rounds):
        for part in PARTS:
            for name, engine in running.items():
                done = results[name][number][part] = engine.run(asked[part])
                console.print(f"round {number + 1}/{len(rounds)}: {part}, {name}, {done['wall_s']:.2f} s")
    return results


def summarise(runs: Sequence[dict[str, Any]], asked: dict[str, Any]) -> dict[str, float]:
    def wall_s(part: str) -> float:
        return statistics.median(run[part]["wall_s"] for run in runs)

    offline = asked["offline"]
    num_output, num_prompt = sum(offline["counts"]), sum(map(len, offline["prompts"]))
    return {
        "output_tokens_per_s": num_output / wall_s("offline"),
        "total_tokens_per_s": (num_output + num_prompt) / wall_s("offline"),
        "single_tokens_per_s": (asked["single"]["counts"][0] - 1)
        / (wall_s("single") - wall_s("single_first")),
        "ttft_1024_ms": 1e3 * wall_s("long"),
        "shared_first_s": wall_s("first"),
        "shared_second_s": wall_s("second"),
        "peak_rss_mb": max(run[part]["peak_rss_mb"] for run in runs for part in PARTS),
    }


def table(report: dict[str, Any]) -> Table:
    shown = Table("engine", title="medians", caption=page.roofline(report["machine"]))
    for title, _, _ in page.COLUMNS:
        shown.add_column(title, justify="right")
    for name, numbers in report["medians"].items():
        shown.add_row(name, *page.cells(numbers))
    for name, problem in report["problems"].items():
        shown.add_row(name, f"not measured: {problem}")
    return shown


if __name__ == "__main__":
    main()
