"""Continuous against static batching, on outputs of very different lengths; and the KV memory that is wasted.

    python -m benchmarks.continuous

The engine alone with the default model, 16 slots, 64 requests of 256 to 768 prompt tokens: four answers of
five have 8 to 64 tokens, one has 256 to 512. Static: 16 requests at a time, the next 16 when all are done.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
from matplotlib import pyplot

from benchmarks.prefix_ttft import MODEL
from pagetide.build import Built, build
from pagetide.config import BLOCK_SIZE, Settings
from pagetide.request import Output, Request, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
SLOTS, REQUESTS, SEED = 16, 64, 7
PROMPTS, SHORT, LONG = (256, 768), (8, 64), (256, 512)


@dataclass(slots=True)
class Life:
    """One request: seconds since the run began."""

    num_tokens: int
    submitted_s: float = 0.0
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass
class Run:
    lives: list[Life]
    waste: list[float]

    @property
    def wall_s(self) -> float:
        return max(life.finished_s or 0.0 for life in self.lives)

    @property
    def tokens_per_s(self) -> float:
        return sum(life.num_tokens for life in self.lives) / self.wall_s


class Bench:
    """Drives one engine, turn by turn, on this thread."""

    def __init__(self) -> None:
        settings = Settings(model=MODEL, max_running=SLOTS, kv_cache_bytes=2**30, prefix_cache=False)
        self._built: Built = build(settings, Path(), on_step=lambda stats: None)
        self._ids = iter(range(10**9))

    def run(self, seed: int, static: bool) -> Run:
        requests = list(self._requests(random.Random(seed)))
        run = Run([life for _, life in requests], [])
        started_s = time.perf_counter()
        width = SLOTS if static else REQUESTS
        for start in range(0, REQUESTS, width):
            for prompt, life in requests[start : start + width]:
                self._submit(prompt, life, started_s)
            self._finish(run, run.lives[start : start + width])
        return run

    def _requests(self, rng: random.Random) -> Iterator[tuple[array[int], Life]]:
        for number in range(REQUESTS):
            length = rng.randint(*PROMPTS)
            prompt = array("i", (rng.randrange(self._built.vocab_size) for _ in range(length)))
            yield prompt, Life(rng.randint(*(LONG if number % 5 == 0 else SHORT)))

    def _submit(self, prompt: array[int], life: Life, started_s: float) -> None:
        def sink(output: Output) -> None:
            now_s = time.perf_counter() - started_s
            life.first_token_s = life.first_token_s or now_s
            if output.finish_reason is not None:
                life.finished_s = now_s

        life.submitted_s = time.perf_counter() - started_s
        params = SamplingParams(max_tokens=life.num_tokens, temperature=0.0, ignore_eos=True)
        self._built.engine.submit(Request(next(self._ids), prompt, params, sink, time.monotonic()))

    def _finish(self, run: Run, lives: Sequence[Life]) -> None:
        engine = self._built.engine
        while any(life.finished_s is None for life in lives):
            engine.turn(wait=False)
            running = engine._scheduler.running
            if running:
                room = sum(len(sequence.block_table) for sequence in running) * BLOCK_SIZE
                run.waste.append(1 - sum(sequence.num_computed for sequence in running) / max(room, 1))


def picture(runs: dict[str, Run], path: Path) -> None:
    """Who runs when: a line for each request, from its first token to its last."""
    matplotlib.use("Agg")
    figure, axes = pyplot.subplots(
        1, len(runs), figsize=(11, 5), sharex=True, sharey=True, layout="constrained"
    )
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        for row, life in enumerate(run.lives):
            axis.barh(
                row, (life.first_token_s or 0) - life.submitted_s, left=life.submitted_s, color="#d0d7de"
            )
            axis.barh(
                row,
                (life.finished_s or 0) - (life.first_token_s or 0),
                left=life.first_token_s,
                color="#0969da",
            )
        axis.set_title(f"{name}: {run.wall_s:.0f} s, {run.tokens_per_s:.0f} tokens/s")
        axis.set_xlabel("seconds (grey: waits and prefill, blue: generates)")
    axes[0].set_ylabel("request")
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/benchmarks/continuous.json")
    options = parser.parse_args()
    bench = Bench()
    rounds = [
        {name: bench.run(SEED + number, static=name == "static") for name in ("static", "continuous")}
        for number in range(options.rounds)
    ]
    factors = [r["continuous"].tokens_per_s / r["static"].tokens_per_s for r in rounds]
    waste = statistics.mean(share for each in rounds for share in each["continuous"].waste)
    kept = statistics.mean(life.num_tokens for life in rounds[0]["static"].lives) + statistics.mean(PROMPTS)
    print(f"continuous / static, tokens/s: {', '.join(f'{factor:.2f}' for factor in factors)}")
    print(f"KV memory allocated and not used, mean over steps: {waste:.2%}")
    print(f"reserved for a longest sequence of 2,048 it would be {1 - kept / 2048:.0%}")
    picture(rounds[-1], options.output.with_suffix(".png"))
    numbers = [{name: [asdict(life) for life in run.lives] for name, run in each.items()} for each in rounds]
    summary = {"command": "python -m benchmarks.continuous", "factors": factors, "waste": waste}
    options.output.write_text(json.dumps({**summary, "rounds": numbers}) + "\n")


if __name__ == "__main__":
    main()
