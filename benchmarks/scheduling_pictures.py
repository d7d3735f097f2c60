"""The pictures of docs/scheduling.md, from runs of the real scheduler and engine loop in simulated time.

PYTHONPATH=tests/pagetide python -m benchmarks.scheduling_pictures docs/pictures
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from simulation.load import Client, serve

from pagetide.limits import Limits
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats

mpl.use("svg")
from matplotlib import pyplot as plt

COLOURS = {
    "streams": "#2a6f97",
    "prompts": "#f4a259",
    "held": "#2a6f97",
    "cached": "#a9d6e5",
    "blank": "#eeeeee",
}


@dataclass(slots=True)
class Recorder:
    """What each step computed, and where the blocks were after it."""

    times_s: list[float] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    blocks: dict[str, list[int]] = field(default_factory=lambda: {"held": [], "cached": [], "blank": []})
    preempted_s: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def __call__(self, now_s: float, stats: StepStats, scheduler: Scheduler) -> None:
        streams = sum(s.num_output_tokens > 1 for s in scheduler.planned.values())
        self.times_s.append(now_s)
        self.streams.append(streams)
        self.prompts.append(stats.num_tokens - streams)
        self.waiting.append(stats.num_waiting)
        for state, count in zip(
            self.blocks, (stats.blocks_used, stats.blocks_cached, stats.blocks_free), strict=True
        ):
            self.blocks[state].append(count)
        self.preempted_s += [now_s] * stats.num_preemptions


def prompt(rng: random.Random, length: int) -> array[int]:
    return array("i", (rng.randrange(50_000) for _ in range(length)))


def latency(folder: Path) -> None:
    """16 streams while a prompt of 8k tokens arrives, without and with a latency target."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 5), sharex="col", height_ratios=(2, 1))
    for column, target_itl_s in enumerate((None, 0.03)):
        streams, recorder = _streams_and_a_long_prompt(target_itl_s)
        top, bottom = axes[0][column], axes[1][column]
        top.stackplot(recorder.times_s, recorder.streams, recorder.prompts, labels=("streams", "prompts"),
                      colors=(COLOURS["streams"], COLOURS["prompts"]), step="pre")  # fmt: skip
        top.set_title("no target" if target_itl_s is None else f"target_itl_ms {1e3 * target_itl_s:.0f}")
        top.set_ylabel("tokens in a step")
        gaps = [(b, 1e3 * (b - a)) for a, b in pairwise(streams[0].token_s)]
        bottom.plot(*zip(*gaps, strict=True), ".", color=COLOURS["streams"], markersize=3)
        bottom.set_ylabel("ITL of a stream, ms")
        bottom.set_yscale("log")
        bottom.set_ylim(10, 1000)
        bottom.set_xlabel("s")
    axes[0][0].legend(loc="upper right")
    _save(figure, folder / "latency.svg")


def _streams_and_a_long_prompt(target_itl_s: float | None) -> tuple[list[Client], Recorder]:
    rng, recorder = random.Random(3), Recorder()
    streams = [Client(0.0, prompt(rng, 64), 250) for _ in range(16)]
    late = Client(1.0, prompt(rng, 8192), 4)
    limits = Limits(2048, 64, 16_384, target_itl_s=target_itl_s)
    serve([*streams, late], limits, num_blocks=4000, on_step=recorder)
    return streams, recorder


def fairness(folder: Path) -> None:
    """A quiet tenant's TTFT while another one sends 400 requests at once."""
    figure, axes = plt.subplots(figsize=(10, 3.5))
    for label, tenant, count in (
        ("alone", "quiet", 0),
        ("one queue for all", "flood", 400),
        ("two tenants", "quiet", 400),
    ):
        rng = random.Random(1)
        quiet = [Client(1 + 0.9 * i, prompt(rng, rng.randint(100, 400)), 60, tenant) for i in range(40)]
        flood = [Client(5.0, prompt(rng, rng.randint(100, 600)), 100, "flood") for _ in range(count)]
        serve([*quiet, *flood], Limits(512, 64, 4096), num_blocks=4000)
        axes.plot([c.arrival_s for c in quiet], [c.ttft_s for c in quiet], ".-", label=label)
    axes.set_yscale("log")
    axes.set_xlabel("arrival, s (the flood comes at 5 s)")
    axes.set_ylabel("TTFT of the quiet tenant, s")
    axes.legend()
    _save(figure, folder / "fairness.svg")


def blocks(folder: Path) -> None:
    """Where the blocks are while requests with shared prefixes outgrow a small pool."""
    rng, recorder = random.Random(4), Recorder()
    prefixes = [prompt(rng, 320) for _ in range(4)]
    clients = [
        Client(0.15 * i, rng.choice(prefixes) + prompt(rng, rng.randint(20, 200)), rng.randint(20, 250))
        for i in range(80)
    ]
    serve(clients, Limits(512, 32, 4096), num_blocks=400, on_step=recorder)
    figure, axes = plt.subplots(figsize=(10, 3.5))
    axes.stackplot(recorder.times_s, *recorder.blocks.values(), labels=tuple(recorder.blocks),
                   colors=[COLOURS[state] for state in recorder.blocks])  # fmt: skip
    axes.plot(recorder.times_s, recorder.waiting, color="black", linewidth=1, label="requests waiting")
    axes.set_xlabel("s")
    axes.set_ylabel("blocks")
    axes.legend(loc="lower left")
    _save(figure, folder / "blocks.svg")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(arguments: Sequence[str]) -> None:
    folder = Path(*arguments)
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "pagetide"
    pictures: Iterable[Any] = (latency, fairness, blocks)
    for picture in pictures:
        picture(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
