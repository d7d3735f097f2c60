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
    for adder in (_add_target, _add_workload, _add_open_loop, _add_report):
        adder(group.add_argument)


def _add_target(add: Any) -> None:
    add("--model", default="smollm2", help="Model to ask (default: smollm2)")
    add("--metrics-url", default="http://127.0.0.1:8002/metrics", help="The server's metrics")
    add("--timeout", type=positive(float), default=60.0, help="Longest wait for a response, seconds")


def _add_workload(add: Any) -> None:
    add("--workload", choices=sorted(LENGTHS), default="sharegpt", help="Lengths to draw from")
    add("--max-prompt", type=positive(int), default=1024, help="Longest prompt, in tokens")
    add("--max-output", type=positive(int), default=256, help="Longest output, in tokens")
    add("--system-tokens", type=positive(int), default=256, help="Instructions that all chats share")
    add("--burst-size", type=positive(int), default=4, help="Long prompts that arrive together")
    add("--burst-every", type=positive(float), default=15.0, help="Seconds between their arrivals")
    add("--seed", type=int, default=0, help="Same seed, same requests")


def _add_open_loop(add: Any) -> None:
    add("--rate", type=positive(float), default=1.0, help="OpenLoop: requests a second, Poisson")
    add("--trace", type=trace, help="OpenLoop: replay this Azure .csv or Mooncake .jsonl instead")
    add("--trace-speed", type=positive(float), default=1.0, help="Replay so many times as fast")
    add("--trace-lengths", type=positive(float), default=1.0, help="Multiply the trace's lengths")
    add("--max-open", type=positive(int), default=512, help="OpenLoop: most requests in flight")


def _add_report(add: Any) -> None:
    add("--slo-ttft", type=positive(float), default=2.0, help="SLO: seconds to the first token")
    add("--slo-tpot", type=positive(float), default=0.1, help="SLO: seconds per token after it")
    add("--results", type=Path, default=Path("loadtest-results"), help="Folder for the report")


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
