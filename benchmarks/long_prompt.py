"""What a prompt of 32k tokens does to the inter-token latency of 16 streams, with a latency target or not.

    PYTHONPATH=tests/pagetide python -m benchmarks.long_prompt [--cpu-time] [--raw docs/benchmarks/...json]

The engine alone, on the CPU, over a small Llama with random weights. The streams' contexts grow all the time,
so they are compared with themselves: the same number of tokens from the same start, without the long prompt.
Where other programs run, --cpu-time counts one thread's CPU time, in the engine's own budget too.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_checkpoints import make_checkpoint

from benchmarks.driven import Client, Clock, Driven, cpu_s, read_options
from pagetide.build import build
from pagetide.config import Settings

MODEL = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 40_960,
}
NUM_STREAMS, STREAM_PROMPT, STREAM_OUTPUT = 16, 32, 40_000
LONG_PROMPT = 32_768
WARM_UP = 200
TARGET_OF_MEDIAN = 1.8
"""The target is this times what the streams wait for a token when they are alone."""


def driven_streams(
    checkpoint: Path, target_itl_ms: float | None, clock: Clock
) -> tuple[Driven, list[Client]]:
    """An engine whose streams have all begun."""
    settings = Settings(
        model=str(checkpoint),
        device="cpu",
        dtype="bfloat16",
        prefix_cache=False,
        target_itl_ms=target_itl_ms,
        num_threads=1 if clock is cpu_s else 0,
    )
    driven = Driven(build(settings, checkpoint, on_step=lambda stats: None), random.Random(0), clock)
    streams = [driven.ask(STREAM_PROMPT, STREAM_OUTPUT) for _ in range(NUM_STREAMS)]
    for _ in range(WARM_UP):
        driven.turn()
    for stream in streams:
        del stream.token_s[:-1]
    return driven, streams


def alone_s(checkpoint: Path, clock: Clock, num_tokens: int) -> list[float]:
    """What each stream waits for each of `num_tokens` tokens."""
    driven, streams = driven_streams(checkpoint, None, clock)
    for _ in range(num_tokens):
        driven.turn()
    return [interval_s for stream in streams for interval_s in stream.intervals_s]


def beside(checkpoint: Path, target_itl_ms: float | None, clock: Clock) -> tuple[list[float], float]:
    """What they wait until the long prompt has its first token, and when it has."""
    driven, streams = driven_streams(checkpoint, target_itl_ms, clock)
    late = driven.ask(LONG_PROMPT, 1)
    while not late.token_s:
        driven.turn()
    return [interval_s for stream in streams for interval_s in stream.intervals_s], late.ttft_s


def one_round(checkpoint: Path, clock: Clock) -> list[dict[str, Any]]:
    target_ms = 1e3 * TARGET_OF_MEDIAN * statistics.median(alone_s(checkpoint, clock, WARM_UP))
    results = []
    for target_itl_ms in (None, target_ms):
        beside_s, ttft_s = beside(checkpoint, target_itl_ms, clock)
        without_s = alone_s(checkpoint, clock, len(beside_s) // NUM_STREAMS)
        measured = {"target_itl_ms": target_itl_ms, "long_ttft_s": ttft_s}
        results.append(measured | {"alone": told(without_s), "beside": told(beside_s)})
        show(results[-1])
    return results


def told(intervals_s: Sequence[float]) -> dict[str, Any]:
    """What the streams waited, in ms: percentiles, and the thousandths behind them."""
    cuts_ms = [1e3 * cut for cut in statistics.quantiles(intervals_s, n=1000)]
    return {
        "count": len(intervals_s),
        "p50_ms": cuts_ms[499],
        "p99_ms": cuts_ms[989],
        "max_ms": 1e3 * max(intervals_s),
        "thousandths_ms": [round(cut, 3) for cut in cuts_ms],
    }


def show(measured: dict[str, Any]) -> None:
    target, alone, beside = measured["target_itl_ms"], measured["alone"], measured["beside"]
    print(
        f"target {f'{target:.1f} ms' if target else 'none':>8}: ITL alone p50 {alone['p50_ms']:.1f}, "
        f"p99 {alone['p99_ms']:.1f} ms; beside p50 {beside['p50_ms']:.1f}, p99 {beside['p99_ms']:.1f}, "
        f"max {beside['max_ms']:.0f} ms ({beside['p99_ms'] / alone['p99_ms']:.2f} of alone); "
        f"TTFT of the prompt {measured['long_ttft_s']:.1f} s",
        flush=True,
    )


def main() -> None:
    options = read_options(__doc__, rounds=3)
    clock: Clock = cpu_s if options.cpu_time else time.monotonic
    results, load_average = [], [os.getloadavg()]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / "llama", **MODEL)
        for _ in range(options.rounds):
            results += one_round(checkpoint, clock)
    load_average.append(os.getloadavg())
    if options.raw:
        raw = {"model": MODEL, "cpu_time": options.cpu_time, "load_average": load_average}
        options.raw.write_text(json.dumps({**raw, "measured": results}) + "\n")


if __name__ == "__main__":
    main()
