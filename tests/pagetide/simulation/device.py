"""The machine of a simulated world: it takes simulated time, and fails when told to.

A real device does a launched step's work at some time between its launch and its result. This one does it at
once or only when it is asked for the result, by the seed: whoever gives a block away too early, or reads it
too early, is betrayed by one or the other.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from simulation.pure_model import Digests, PureRunner, draw
from simulation.scenario import Scenario

from pagetide.config import BLOCK_SIZE
from pagetide.step import StepPlan, StepResult


class InjectedError(Exception):
    """A step failure that the scenario asked for."""


@dataclass(slots=True)
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Device:
    """`plan` is the last one that it got, for the checks."""

    scenario: Scenario
    clock: Clock
    model: PureRunner
    rng: random.Random
    num_steps: int = 0
    plan: StepPlan | None = None
    free_s: float = 0.0
    last: Flight | None = None
    queue: deque[Flight] = field(default_factory=deque)

    def run(self, plan: StepPlan) -> StepResult:
        """Launch it and wait."""
        return self._take(plan).result()

    def launch(self, plan: StepPlan) -> Flight:
        flight = self._take(plan)
        if flight.fails and self.rng.random() < 0.5:
            raise InjectedError(f"step {flight.number} was told to fail at its launch")
        if self.rng.random() < 0.5:
            self.compute(flight)
        return flight

    def fence(self) -> Callable[[], None]:
        """What it returns waits for the steps launched so far."""
        last = self.last
        return lambda: None if last is None else self.compute(last)

    def compute(self, flight: Flight) -> None:
        """All steps up to this one, in their order; those that nobody asks about too."""
        while self.queue and not flight.is_computed:
            self.queue.popleft().compute()

    def scribble(self, plan: StepPlan) -> None:
        """What a step leaves behind that breaks off midway: nobody may ever read it."""
        for table, start, count in zip(plan.block_tables, plan.num_computed, plan.num_new, strict=True):
            for position in range(start, start + count):
                self.model.kv[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = 0xBAD

    def _take(self, plan: StepPlan) -> Flight:
        self.num_steps += 1
        self.plan = plan
        step_s = self.scenario.step_s + self.scenario.token_s * plan.num_tokens
        self.free_s = max(self.free_s, self.clock.now_s) + step_s
        seen = replace(plan, block_tables=[table[:] for table in plan.block_tables])
        number = self.num_steps
        fails = number in self.scenario.failing_steps
        before, self.last = self.last, Flight(self, seen, number, self.free_s, fails)
        self.last.before = before if plan.carried.places else None
        self.queue.append(self.last)
        return self.last


@dataclass(slots=True, eq=False)
class Flight:
    """One launched step. Its block tables are as they were at the launch."""

    device: Device
    plan: StepPlan
    number: int
    ends_s: float
    fails: bool
    before: Flight | None = None
    is_computed: bool = False
    digests: list[Digests] = field(default_factory=list)
    tokens: list[int] | None = None

    def compute(self) -> None:
        self.is_computed = True
        if self.fails:
            self.device.scribble(self.plan)
        else:
            before, self.before = self.before, None
            self.digests = self.device.model.forward(self.plan, before.drawn() if before else ())

    def drawn(self) -> list[int]:
        """Nonsense from a step that failed: what was launched behind it runs all the same."""
        self.device.compute(self)
        if self.tokens is None:
            self.tokens = [0] * len(self.plan.sampled.rows) if self.fails else draw(self.plan, self.digests)
        return self.tokens

    def sample(self) -> None:
        assert not self.plan.sampled.is_open

    def result(self) -> StepResult:
        device = self.device
        device.clock.now_s = max(device.clock.now_s, self.ends_s)
        tokens = self.drawn()
        if self.fails:
            raise InjectedError(f"step {self.number} was told to fail")
        return StepResult(tokens, [None] * len(tokens))
