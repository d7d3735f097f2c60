"""Deterministic simulation: the real engine loop, scheduler and block pool under one seed's world.

No thread and no real clock. After each turn of the loop everything that must always hold is checked, so a
failure names the step at which it went wrong. (The method is FoundationDB's: Zhou et al., SIGMOD'21.)
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from simulation.checks import Ledger, check_blocks, check_plan, hits_in_flight
from simulation.pure_model import EOS, PureRunner, pure_output
from simulation.scenario import Arrival, Scenario, make_scenario
from simulation.show import block_map, plan_line
from simulation.slow_mover import SlowMover
from simulation.turns import Turns

from pagetide.admission import PeakEstimate
from pagetide.block_pool import BlockPool, chain_root
from pagetide.config import BLOCK_SIZE
from pagetide.engine import Engine
from pagetide.kv_pool import HostTier, NoTier
from pagetide.request import Request, Sequence
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats
from pagetide.step import StepPlan, StepResult

MAX_WAITING = 1000


class InjectedError(Exception):
    """A step failure that the scenario asked for."""


class SimulationError(AssertionError):
    """What went wrong, in which seed, at which step, and where every block was."""


@dataclass(slots=True)
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Misled(PeakEstimate):
    """Believes that everything ends with its next token, however often that was wrong."""

    def tokens_left(self, sequence: Sequence) -> int:
        return min(1, sequence.most_left)


@dataclass(slots=True)
class Runner:
    """Takes simulated time, fails when told to, and keeps the last plan for the checks."""

    scenario: Scenario
    clock: Clock
    model: PureRunner
    num_steps: int = 0
    plan: StepPlan | None = None

    def run(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        self.plan = plan
        self.clock.now_s += self.scenario.step_s + self.scenario.token_s * plan.num_tokens
        if self.num_steps in self.scenario.failing_steps:
            self._scribble(plan)
            raise InjectedError(f"step {self.num_steps} was told to fail")
        return self.model.run(plan)

    def _scribble(self, plan: StepPlan) -> None:
        """What a step leaves behind that breaks off midway: nobody may ever read it."""
        for table, start, count in zip(plan.block_tables, plan.num_computed, plan.num_new, strict=True):
            for position in range(start, start + count):
                self.model.kv[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = 0xBAD


@dataclass(slots=True)
class _Event:
    at_s: float
    submit: Request | None = None
    abort: int | None = None


@dataclass(slots=True)
class Simulation:
    """`lines` collects one line a step when `trace` is set."""

    seed: int
    trace: bool = False
    scenario: Scenario = field(init=False)
    clock: Clock = field(default_factory=Clock)
    ledger: Ledger = field(default_factory=Ledger)
    turns: Turns = field(default_factory=Turns)
    coverage: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    scheduler: Scheduler = field(init=False)
    runner: Runner = field(init=False)
    engine: Engine = field(init=False)
    events: list[_Event] = field(init=False)

    def __post_init__(self) -> None:
        self.scenario = make_scenario(self.seed)
        self.runner = Runner(self.scenario, self.clock, PureRunner(self.scenario.num_blocks))
        self.scheduler = self._make_scheduler()
        self.engine = Engine(
            self.scheduler, self.runner, MAX_WAITING, on_step=self._on_step, clock=self.clock
        )
        events = [
            event for i, arrival in enumerate(self.scenario.arrivals) for event in self._events(i, arrival)
        ]
        self.events = sorted(events, key=lambda event: event.at_s, reverse=True)

    def run(self) -> None:
        """Raises SimulationError at the first step that breaks a promise."""
        try:
            while self.events or not self.scheduler.is_idle:
                self._turn()
            self.ledger.check_all_answered()
            self.coverage.update(a.ending.value for a in self.ledger.accounts.values() if a.ending)
            held = self.scheduler.pool.num_held - len(self.scheduler.tier.pinned)
            if held:
                raise AssertionError(f"idle, but {held} blocks are held")
        except Exception as error:
            raise SimulationError(self._report(error)) from error

    def _make_scheduler(self) -> Scheduler:
        scenario = self.scenario
        pool = BlockPool(scenario.num_blocks)
        root = (lambda scope: chain_root(b"weights", scope)) if scenario.prefix_cache else None
        estimate = Misled() if scenario.misled else PeakEstimate()
        tier = self._make_tier(pool) if scenario.num_host_slots else NoTier()
        return Scheduler(pool, scenario.limits, root, self.clock, scenario.policies, estimate, tier)

    def _make_tier(self, pool: BlockPool) -> HostTier:
        num_slots = self.scenario.num_host_slots
        mover = SlowMover(self.runner.model.kv, num_slots, random.Random(self.seed), self.coverage)
        return HostTier(pool, num_slots, mover)

    def _events(self, request_id: int, arrival: Arrival) -> list[_Event]:
        request = Request(
            id=request_id,
            prompt_ids=arrival.prompt,
            params=arrival.params,
            sink=lambda output: self.ledger.take(request_id, output, self.clock.now_s),
            arrival_s=arrival.at_s,
            eos_token_ids=frozenset() if arrival.params.ignore_eos else frozenset({EOS}),
            cache_salt=arrival.salt,
            tenant=arrival.tenant,
            priority=arrival.priority,
            timeout_s=arrival.timeout_s,
        )
        events = [_Event(arrival.at_s, submit=request)]
        if arrival.abort_after_s is not None:
            events.append(_Event(arrival.at_s + arrival.abort_after_s, abort=request_id))
        return events

    def _turn(self) -> None:
        self._let_things_happen()
        self.runner.plan, started_s = None, self.clock.now_s
        decoding, before = self.ledger.decoding(self.scheduler), self.turns.before(self.scheduler)
        self.engine.turn(wait=False)
        self.ledger.check_ended(started_s)
        self.ledger.check_preemptions(self.scheduler)
        check_blocks(self.scheduler)
        if self.runner.plan is None:
            self._pass_time()
        else:
            self._check_step(self.runner.plan, decoding, before, started_s)

    def _check_step(
        self, plan: StepPlan, decoding: list[Sequence], before: dict[int, Sequence], planned_s: float
    ) -> None:
        check_plan(plan, decoding, self.scenario)
        planned = self.scheduler.planned
        self.turns.check_started(self.scheduler, before, planned, planned_s)
        self.turns.count(plan, planned)
        self.turns.check_shares(self.scheduler)
        self.ledger.count_step()
        self.coverage["copies"] += len(plan.copies)
        self.coverage["hits on blocks of the same step"] += hits_in_flight(plan)
        if self.trace:
            self.lines.append(plan_line(self.runner.num_steps, self.clock.now_s, plan))

    def _on_step(self, stats: StepStats) -> None:
        """What the world made the scheduler do: a world in which nothing happens proves nothing."""
        self.coverage["steps"] += 1
        self.coverage["prefix hit tokens"] += stats.prefix_hits
        for reason, count in stats.preemptions.items():
            self.coverage[f"preemptions for {reason.value}"] += count

    def _let_things_happen(self) -> None:
        while self.events and self.events[-1].at_s <= self.clock.now_s:
            event = self.events.pop()
            if event.submit is not None:
                self.ledger.expect(event.submit, pure_output(event.submit))
                self.engine.submit(event.submit)
            elif event.abort is not None:
                self.ledger.abort(event.abort)
                self.engine.abort(event.abort)

    def _pass_time(self) -> None:
        """Nothing was planned: jump to the next thing that happens. If nothing will, the loop is stuck."""
        pause_s = None if self.scheduler.is_idle else self.scheduler.pause_s()
        nexts = [event.at_s for event in self.events[-1:]]
        nexts += [] if pause_s is None else [self.clock.now_s + max(pause_s, 1e-6)]
        if nexts:
            self.clock.now_s = max(self.clock.now_s, min(nexts))
        elif not self.scheduler.is_idle:
            raise AssertionError("work is left, nothing was planned, and nothing is awaited")

    def _report(self, error: Exception) -> str:
        step = self.runner.num_steps
        plan = plan_line(step, self.clock.now_s, self.runner.plan) if self.runner.plan else "none"
        return (
            f"seed {self.seed}, step {step}: {type(error).__name__}: {error}\n"
            f"last plan: {plan}\n{block_map(self.scheduler)}"
        )


def simulate(seed: int) -> None:
    Simulation(seed).run()
