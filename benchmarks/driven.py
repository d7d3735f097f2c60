"""An engine driven turn by turn in the measuring thread, and clients that note when their tokens came."""

from __future__ import annotations

import argparse
import itertools
import random
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pagetide.build import Built
from pagetide.request import Output, Request, SamplingParams

Clock = Callable[[], float]


def cpu_s() -> float:
    """What one thread computed so far: time on a machine where nothing else runs, if it has only that one."""
    return time.process_time()


def read_options(description: str | None, rounds: int) -> argparse.Namespace:
    """The command line of what is measured so."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--cpu-time", action="store_true", help="count one thread's CPU time")
    parser.add_argument("--raw", type=Path, help="where to write all that was measured")
    return parser.parse_args()


@dataclass(slots=True)
class Client:
    """One request; times are the clock's."""

    clock: Clock
    asked_s: float
    token_s: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.asked_s

    @property
    def intervals_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.token_s)]

    def take(self, output: Output) -> None:
        assert output.error is None, output.error
        self.token_s += [self.clock()] * len(output.token_ids)
        self.ended = output.finish_reason is not None


@dataclass(slots=True)
class Driven:
    """Asks for greedy outputs of a fixed length behind random prompts, none of which share anything.

    With `clock`, the engine measures its steps by it too.
    """

    built: Built
    rng: random.Random
    clock: Clock = time.monotonic
    ids: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.built.engine._clock = self.clock

    def ask(self, num_prompt: int, num_output: int, tenant: str = "", asked_s: float | None = None) -> Client:
        client = Client(self.clock, self.clock() if asked_s is None else asked_s)
        prompt = array("i", (self.rng.randrange(self.built.vocab_size) for _ in range(num_prompt)))
        params = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
        request = Request(next(self.ids), prompt, params, client.take, time.monotonic(), tenant=tenant)
        self.built.engine.submit(request)
        return client

    def turn(self) -> None:
        self.built.engine.turn(wait=False)
