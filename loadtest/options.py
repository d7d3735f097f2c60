"""The options this load test adds to Locust's own."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.records import SLO
from loadtest.traces import Fit, read
from loadtest.workloads import LENGTHS, Lengths


def add(parser: Any) -> None:
    """Adds them to Locust's parser, under a heading of their own in `--help`."""
    group = parser.add_argument_group("Pagetide")
    group.add_argument("--model", default="smollm2", help="Model to ask (default: smollm2)")
    group.add_argument("--workload", choices=sorted(LENGTHS), default="sharegpt", help="Lengths to draw from")
    group.add_argument("--max-prompt", type=positive(int), default=1024, help="Longest prompt, in tokens")
    group.add_argument("--max-output", type=positive(int), default=256, help="Longest output, in tokens")
    group.add_argument(
        "--system-tokens", type=positive(int), default=256, help="Instructions that all chats share"
    )
    group.add_argument(
        "--burst-size", type=positive(int), default=4, help="Long prompts that arrive together"
    )
    group.add_argument(
        "--burst-every", type=positive(float), default=15.0, help="Seconds between their arrivals"
    )
    group.add_argument(
        "--rate", type=positive(float), default=1.0, help="OpenLoop: requests a second, Poisson"
    )
    group.add_argument(
        "--trace", type=trace, help="OpenLoop: replay this Azure .csv or Mooncake .jsonl instead"
    )
    group.add_argument(
        "--trace-speed", type=positive(float), default=1.0, help="Replay so many times as fast"
    )
    group.add_argument(
        "--trace-lengths", type=positive(float), default=1.0, help="Multiply the trace's lengths"
    )
    group.add_argument(
        "--max-open", type=positive(int), default=512, help="OpenLoop: most requests in flight"
    )
    group.add_argument(
        "--slo-ttft", type=positive(float), default=2.0, help="SLO: seconds to the first token"
    )
    group.add_argument(
        "--slo-tpot", type=positive(float), default=0.1, help="SLO: seconds per token after it"
    )
    group.add_argument(
        "--timeout", type=positive(float), default=60.0, help="Longest wait for a response, seconds"
    )
    group.add_argument("--seed", type=int, default=0, help="Same seed, same requests")
    group.add_argument("--metrics-url", default="http://127.0.0.1:8002/metrics", help="The server's metrics")
    group.add_argument("--results", type=Path, default=Path("loadtest-results"), help="Folder for the report")


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Reads a number above 0, or tells argparse what is wrong with it."""

    def convert(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise ArgumentTypeError(f"{text} must be above 0")
        return value

    convert.__name__ = kind.__name__
    return convert


def trace(text: str) -> Path:
    """Reads the whole trace once, so that a bad line is found before the run and not in the middle of it."""
    try:
        for _ in read(Path(text)):
            pass
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(str(error)) from error
    return Path(text)


def lengths(options: Namespace, workload: str | None = None) -> Lengths:
    return LENGTHS[workload or options.workload].capped(options.max_prompt, options.max_output)


def slo(options: Namespace) -> SLO:
    return SLO(options.slo_ttft, options.slo_tpot)


def fit(options: Namespace) -> Fit:
    return Fit(options.trace_speed, options.trace_lengths, options.max_prompt, options.max_output)
