"""What a run of the benchmark found, as a page: the table, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

COLUMNS = (
    ("output tok/s", "output_tokens_per_s", ".0f"),
    ("total tok/s", "total_tokens_per_s", ".0f"),
    ("one stream tok/s", "single_tokens_per_s", ".0f"),
    ("TTFT at 1,024, ms", "ttft_1024_ms", ".0f"),
    ("shared prefix, s", "shared_first_s", ".2f"),
    ("again, s", "shared_second_s", ".2f"),
    ("peak RSS, MB", "peak_rss_mb", ",.0f"),
)
OURS = ("Pagetide engine", "Pagetide through Triton")
BF16_WEIGHT_BYTES = 269e6
"""One step reads them once."""


def cells(numbers: dict[str, float]) -> list[str]:
    return [format(numbers[key], spec) for _, key, spec in COLUMNS]


def roofline(machine: dict[str, Any]) -> str:
    single = machine["read_gb_per_s"] * 1e9 / BF16_WEIGHT_BYTES
    return (
        f"Reads of {machine['read_gb_per_s']:.0f} GB/s allow {single:.0f} tok/s to one stream; bfloat16 "
        f"products run at up to {machine['bf16_gflop_per_s']:.0f} GFLOP/s."
    )


def page(report: dict[str, Any], raw: str) -> str:
    versions = {f"{name} {version}" for each in report["versions"].values() for name, version in each.items()}
    machine = report["machine"]
    lines = [
        "# Beside other engines",
        "",
        f"`{report['command']}`, {report['date'][:10]}, {machine['cores']} cores of {machine['cpu']} "
        f"({machine['instructions']}): medians of {report['rounds']} interleaved rounds.",
        f"SmolLM2-135M in bfloat16; {', '.join(sorted(versions))}. [Raw numbers]({raw}).",
        "",
        *_table(("engine", *(title for title, _, _ in COLUMNS)), _rows(report)),
        "",
        roofline(machine),
        "",
        "Output and total: 64 requests of 32 to 256 prompt and 16 to 128 output tokens, all at once, 32",
        "running. Shared prefix: 32 prompts of 768 shared and 32 tokens of their own, 16 outputs, then the",
        "same prefix with other ends. Every round has prompts of its own.",
        "",
        "How many times as good as each of the others Pagetide's engine is (time and memory: the other's,",
        "divided by ours):",
        "",
        *_table(("beside", *(_without_unit(title) for title, _, _ in COLUMNS)), _ratios(report["medians"])),
    ]
    return "\n".join(lines) + "\n"


def _rows(report: dict[str, Any]) -> Iterator[list[str]]:
    for name, numbers in report["medians"].items():
        yield [name, *cells(numbers)]
    for name, problem in report["problems"].items():
        yield [name, f"not measured: {problem}", *[""] * (len(COLUMNS) - 1)]


def _ratios(medians: dict[str, dict[str, float]]) -> Iterator[list[str]]:
    ours = medians.get(OURS[0])
    for name, numbers in medians.items():
        if ours is not None and name not in OURS:
            yield [name, *(f"{_times_as_good(key, ours[key], numbers[key]):.2f}" for _, key, _ in COLUMNS)]


def _without_unit(title: str) -> str:
    return title.rsplit(", ", 1)[0]


def _times_as_good(key: str, ours: float, theirs: float) -> float:
    return ours / theirs if key.endswith("per_s") else theirs / ours


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] + ["---:"] * (len(head) - 1), *rows)]
