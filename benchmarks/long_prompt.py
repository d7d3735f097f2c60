"""What a prompt of 32k tokens does to the inter-token latency of 16 streams, with a latency target or not.

    PYTHONPATH=tests/pagetide python -m benchmarks.long_prompt [--cpu-time] [--raw docs/benchmarks/...json]

The engine alone, on the CPU, over a small Llama with random weights. Streams of 32 + 256 tokens take turns so
that 16 run at any time; a round measures them alone, then while the long prompt is computed. Where other
programs run, --cpu-time counts one thread's CPU time, in the engine's own budget too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_checkpoints import make_checkpoint

from benchmarks.driven import Client, Clock, Driven, cpu_s
from pagetide.build import build
from pagetide.config import Settings

MODEL = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40_960,
}
NUM_STREAMS, STREAM_PROMPT, STREAM_OUTPUT = 16, 32, 256
LONG_PROMPT = 32_768
ALONE_S = 10.0
TARGET_OF_MEDIAN = 1.8
"""The target is this times what the streams wait for a token when they are alone."""


@dataclass(slots=True)
class Streams:
    """Keeps NUM_STREAMS going."""

    driven: Driven
    running: list[Client] = field(default_factory=list)
    ended: list[Client] = field(default_factory=list)

    def turn(self) -> None:
        self.driven.turn()
        self.ended += [stream for stream in self.running if stream.ended]
        self.running = [stream for stream in self.running if not stream.ended]
        while len(self.running) < NUM_STREAMS:
            self.running.append(self.driven.ask(STREAM_PROMPT, STREAM_OUTPUT))

    def measure(self, during: Client | None) -> list[float]:
        """What each waited for a token until `during` has its first one, or for `ALONE_S`."""
        self.ended = []
        for stream in self.running:
            del stream.token_s[:-1]
        end_s = self.driven.clock() + ALONE_S
        while not during.token_s if during else self.driven.clock() < end_s:
            self.turn()
        return [each for stream in (*self.ended, *self.running) for each in stream.intervals_s]


def one_round(checkpoint: Path, target_itl_ms: float | None, seed: int, clock: Clock) -> dict[str, Any]:
    """The streams alone, then beside the long prompt, on one engine that is warm."""
    settings = Settings(
        model=str(checkpoint),
        device="cpu",
        dtype="bfloat16",
        prefix_cache=False,
        target_itl_ms=target_itl_ms,
        num_threads=1 if clock is cpu_s else 0,
    )
    driven = Driven(build(settings, checkpoint, on_step=lambda stats: None), random.Random(seed), clock)
    streams = Streams(driven)
    for _ in range(2 * STREAM_OUTPUT):
        streams.turn()
    alone_s = streams.measure(during=None)
    late = driven.ask(LONG_PROMPT, 1)
    beside_s = streams.measure(during=late)
    return {
        "target_itl_ms": target_itl_ms,
        "long_ttft_s": late.ttft_s,
        "alone": told(alone_s),
        "beside": told(beside_s),
    }


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="count one thread's CPU time")
    parser.add_argument("--raw", type=Path, help="where to write all that was measured")
    options = parser.parse_args()
    clock: Clock = cpu_s if options.cpu_time else time.monotonic
    results, load_average = [], [os.getloadavg()]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / "llama", **MODEL)
        for seed in range(options.rounds):
            results.append(one_round(checkpoint, None, seed, clock))
            show(results[-1])
            target_ms = TARGET_OF_MEDIAN * results[-1]["alone"]["p50_ms"]
            results.append(one_round(checkpoint, target_ms, seed, clock))
            show(results[-1])
            load_average.append(os.getloadavg())
            if options.raw:
                raw = {"cpu_time": options.cpu_time, "load_average": load_average}
                options.raw.write_text(json.dumps({"model": MODEL, **raw, "rounds": results}) + "\n")


if __name__ == "__main__":
    main()
