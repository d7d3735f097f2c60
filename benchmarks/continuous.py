"""Continuous against static batching, on outputs of very different lengths; and the KV memory that is wasted.

    python -m benchmarks.continuous [--rounds 3] [--output docs/benchmarks/continuous]

The engine alone with the default model, 16 slots and 64 requests: of five outputs four have 8 to 64 tokens
and one has 256 to 512. Static: 16 requests at a time, the next 16 when all of them are done. That is kinder
than static batches are: rows that are done cost nothing, and no prompt is padded. Short prompts, then long
ones. Leaves a page, the raw numbers and a picture of the last round with short prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.prefix_ttft import MODEL
from benchmarks.serving import cpu_name
from pagetide.build import Built, build
from pagetide.config import BLOCK_SIZE, Settings
from pagetide.request import Output, Request, RequestStats, SamplingParams

mpl.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
SLOTS, REQUESTS, SEED = 16, 64, 7
PROMPTS = {"short": (16, 128), "long": (128, 512)}
SHORT, LONG = (8, 64), (256, 512)
LONGEST = 2048
"""What a contiguous reservation must hold if any request may come: the model's longest here."""

COLOURS = {"empty": "#eaeef2", "short": "#54aeff", "long": "#bc4c00"}


@dataclass(slots=True)
class Held:
    """KV tokens at each step, added up: in blocks, of them used, and what contiguous memory would reserve."""

    allocated: int = 0
    used: int = 0
    own_longest: int = 0
    any_longest: int = 0

    def unused(self) -> dict[str, float]:
        """As shares of each."""
        return {name: 1 - self.used / held for name, held in asdict(self).items() if name != "used"}


@dataclass
class Run:
    """How each request went, in their order; times are `time.monotonic()`."""

    began_s: float
    lives: dict[int, RequestStats] = field(default_factory=dict)
    held: Held = field(default_factory=Held)

    @property
    def wall_s(self) -> float:
        return max(life.finished_s for life in self.lives.values()) - self.began_s

    @property
    def tokens_per_s(self) -> float:
        return sum(life.num_output_tokens for life in self.lives.values()) / self.wall_s


Ask = tuple["array[int]", int]
"""A prompt, and how many tokens come out."""


class Bench:
    """Drives one engine, turn by turn, on this thread."""

    def __init__(self) -> None:
        settings = Settings(model=MODEL, max_running=SLOTS, kv_cache_bytes=2**30, prefix_cache=False)
        self._built: Built = build(settings, Path(), on_step=lambda stats: None)

    def asks(self, prompts: tuple[int, int], seed: int) -> list[Ask]:
        rng = random.Random(seed)

        def tokens(count: int) -> array[int]:
            return array("i", (rng.randrange(self._built.vocab_size) for _ in range(count)))

        lengths = [LONG if number % 5 == 0 else SHORT for number in range(REQUESTS)]
        return [(tokens(rng.randint(*prompts)), rng.randint(*length)) for length in lengths]

    def run(self, asks: Sequence[Ask], at_once: int) -> Run:
        """`at_once` requests, the next when all of them are done."""
        run = Run(time.monotonic())
        for start in range(0, len(asks), at_once):
            end = min(start + at_once, len(asks))
            for number in range(start, end):
                self._submit(run, number, *asks[number])
            while len(run.lives) < end:
                self._built.engine.turn(wait=False)
                self._look(run.held)
        return run

    def _submit(self, run: Run, number: int, prompt: array[int], num_tokens: int) -> None:
        def sink(output: Output) -> None:
            if output.finish_reason is not None:
                assert output.stats is not None
                run.lives[number] = output.stats

        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self._built.engine.submit(Request(number, prompt, params, sink, time.monotonic()))

    def _look(self, held: Held) -> None:
        for sequence in self._built.engine._scheduler.running:
            request = sequence.request
            held.allocated += len(sequence.block_table) * BLOCK_SIZE
            held.used += sequence.num_computed
            held.own_longest += len(request.prompt_ids) + request.params.max_tokens
            held.any_longest += LONGEST


def slots(lives: dict[int, RequestStats]) -> Iterator[tuple[int, RequestStats]]:
    """Each request with the first slot that was free when it started."""
    free_s = [0.0] * SLOTS
    for life in sorted(lives.values(), key=lambda life: life.scheduled_s or 0.0):
        slot = next(i for i, at_s in enumerate(free_s) if at_s <= (life.scheduled_s or 0.0))
        free_s[slot] = life.finished_s
        yield slot, life


def picture(runs: dict[str, Run], path: Path) -> None:
    """Who runs when: a row for each slot, a bar for each request from its start to its last token."""
    plt.rcParams["svg.hashsalt"] = "pagetide"
    figure, axes = plt.subplots(len(runs), 1, figsize=(10, 6.5), sharex=True, layout="constrained")
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        for slot, life in slots(run.lives):
            began_s = (life.scheduled_s or 0.0) - run.began_s
            kind = "short" if life.num_output_tokens <= SHORT[1] else "long"
            length_s = life.finished_s - run.began_s - began_s
            axis.barh(slot, length_s, left=began_s, color=COLOURS[kind], edgecolor="white", linewidth=0.8)
        axis.axvspan(0, run.wall_s, color=COLOURS["empty"], zorder=0)
        axis.set_title(f"{name}: {run.wall_s:.1f} s, {run.tokens_per_s:.0f} tokens/s", loc="left")
        axis.set_ylabel("slot")
        axis.set_ylim(SLOTS - 0.4, -0.6)
    axes[-1].set_xlabel("seconds")
    told = {"long": "256 to 512 tokens", "short": "8 to 64 tokens", "empty": "slot is empty"}
    handles = [mpl.patches.Patch(color=COLOURS[kind], label=text) for kind, text in told.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def machine() -> str:
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def one_round(bench: Bench, prompts: tuple[int, int], seed: int) -> dict[str, Run]:
    asks = bench.asks(prompts, seed)
    return {"static": bench.run(asks, at_once=SLOTS), "continuous": bench.run(asks, at_once=REQUESTS)}


def summary(prompts: tuple[int, int], rounds: Sequence[dict[str, Run]]) -> dict[str, Any]:
    """Medians; the KV memory is that of the continuous runs together."""
    rates = {way: [each[way].tokens_per_s for each in rounds] for way in ("static", "continuous")}
    held = [each["continuous"].held for each in rounds]
    return {
        "prompt_tokens": prompts,
        "tokens_per_s": {way: statistics.median(each) for way, each in rates.items()},
        "factors": [c / s for s, c in zip(rates["static"], rates["continuous"], strict=True)],
        "kv_unused": Held(*(sum(getattr(each, name) for each in held) for name in Held.__slots__)).unused(),
    }


def page(results: dict[str, dict[str, Any]], facts: dict[str, Any], name: str) -> list[str]:
    """The table and what it says, in Markdown."""
    before, after = (average[0] for average in facts["load_average"])
    columns = ("prompts", "static tok/s", "continuous tok/s", "continuous / static, by round",
               "unused in blocks", "own longest", f"{LONGEST:,} tokens")  # fmt: skip
    rows = [columns, ("---",) * len(columns), *map(row, results.values())]
    return [
        "# Continuous against static batching",
        "",
        f"`python -m benchmarks.continuous` on {facts['machine']}, {facts['date']}; load average",
        f"{before:.1f} before and {after:.1f} after. SmolLM2-135M, {SLOTS} slots, {REQUESTS} requests: four",
        f"outputs of five have {SHORT[0]} to {SHORT[1]} tokens, one has {LONG[0]} to {LONG[1]}.",
        f"Static batches are {SLOTS} requests, the next when all are done; rows that are done cost nothing",
        "there, and no prompt is padded. The last three columns are KV memory that is allocated and not",
        "used, of the continuous runs: in blocks, and if each request reserved one piece for its own",
        "longest, or for as many tokens as the column says.",
        f"[Raw numbers]({name}.json).",
        "",
        *(f"| {' | '.join(each)} |" for each in rows),
        "",
        f"![A row for each slot, a bar for each request]({name}.svg)",
    ]


def row(told: dict[str, Any]) -> tuple[str, ...]:
    low, high = told["prompt_tokens"]
    rates = (f"{told['tokens_per_s'][way]:.0f}" for way in ("static", "continuous"))
    factors = ", ".join(f"{factor:.2f}" for factor in told["factors"])
    return f"{low} to {high}", *rates, factors, *(f"{share:.1%}" for share in told["kv_unused"].values())


def raw(run: Run) -> dict[str, Any]:
    """Seconds since the run began, in the order of the requests."""
    times = ("scheduled_s", "first_token_s", "finished_s")
    lives = [
        {"prompt": life.num_prompt_tokens, "output": life.num_output_tokens}
        | {name: round(getattr(life, name) - run.began_s, 4) for name in times}
        for _, life in sorted(run.lives.items())
    ]
    return {"wall_s": run.wall_s, "kv_tokens": asdict(run.held), "requests": lives}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs/benchmarks/continuous", help="Without suffix"
    )
    options = parser.parse_args()
    load_average = [os.getloadavg()]
    bench = Bench()
    bench.run(bench.asks((16, 32), SEED - 1)[1:5], SLOTS)
    measured = {
        name: [one_round(bench, prompts, SEED + number) for number in range(options.rounds)]
        for name, prompts in PROMPTS.items()
    }
    load_average.append(os.getloadavg())
    facts = {"date": now(), "machine": machine(), "load_average": load_average}
    write(options.output, measured, facts)


def write(output: Path, measured: dict[str, list[dict[str, Run]]], facts: dict[str, Any]) -> None:
    results = {name: summary(PROMPTS[name], rounds) for name, rounds in measured.items()}
    text = "\n".join(page(results, facts, output.name)) + "\n"
    print(text)
    Path(f"{output}.md").write_text(text)
    picture(measured["short"][-1], Path(f"{output}.svg"))
    every = {
        name: told | {"rounds": [{way: raw(run) for way, run in each.items()} for each in measured[name]]}
        for name, told in results.items()
    }
    Path(f"{output}.json").write_text(json.dumps(facts | every) + "\n")


if __name__ == "__main__":
    main()
