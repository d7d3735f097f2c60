"""Deterministic simulation: the real engine loop, scheduler and block pool under one seed's world.

No thread and no real clock. After each turn of the loop everything that must always hold is checked, so a
failure names the step at which it went wrong. (The method is FoundationDB's: Zhou et al., SIGMOD'21.)
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from simulation.checks import Ledger, check_blocks, check_plan, hits_in_flight
from simulation.device import Clock, Device
from simulation.pure_model import EOS, PureRunner, pure_output
from simulation.scenario import Arrival, Scenario, make_scenario
from simulation.show import block_map, plan_line
from simulation.slow_mover import SlowMover
from simulation.turns import Turns

from pagetide.admission import PeakEstimate
from pagetide.block_pool import BlockPool, chain_root
from pagetide.engine import Engine
from pagetide.kv_pool import HostTier, NoTier
from pagetide.loops import MakeLoop, PlainLoop
from pagetide.request import Request, Sequence, Status
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats
from pagetide.step import StepPlan

MAX_WAITING = 1000


class SimulationError(AssertionError):
    """What went wrong, in which seed, at which step, and where every block was."""


class Misled(PeakEstimate):
    """Believes that everything ends with its next token, however often that was wrong."""

    def tokens_left(self, sequence: Sequence) -> int:
        return min(1, sequence.most_left)


@dataclass(slots=True)
class _Event:
    at_s: float
    submit: Request | None = None
    abort: int | None = None


@dataclass(slots=True)
class Simulation:
    """One world under one of the engine's loops. `lines` collects one line a step when `trace` is set."""

    seed: int
    trace: bool = False
    loop: MakeLoop = PlainLoop
    scenario: Scenario = field(init=False)
    clock: Clock = field(default_factory=Clock)
    ledger: Ledger = field(default_factory=Ledger)
    turns: Turns = field(default_factory=Turns)
    coverage: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    scheduler: Scheduler = field(init=False)
    device: Device = field(init=False)
    engine: Engine = field(init=False)
    events: list[_Event] = field(init=False)

    def __post_init__(self) -> None:
        self.scenario = make_scenario(self.seed)
        model = PureRunner(self.scenario.num_blocks)
        self.device = Device(self.scenario, self.clock, model, random.Random(self.seed))
        self.scheduler = self._make_scheduler()
        self.engine = Engine(
            self.scheduler, self.device, MAX_WAITING, on_step=self._on_step, clock=self.clock, loop=self.loop
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
        kv, fence = self.device.model.kv, self.device.fence
        mover = SlowMover(kv, fence, num_slots, random.Random(self.seed), self.coverage)
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
        self.device.plan, started_s, num_over = None, self.clock.now_s, self.coverage["steps"]
        decoding, before = self.ledger.decoding(self.scheduler), self.turns.before(self.scheduler)
        self.engine.turn(wait=False)
        self.ledger.check_ended(started_s)
        self.ledger.check_preemptions(self.scheduler)
        check_blocks(self.scheduler)
        if self.device.plan is not None:
            self._check_step(self.device.plan, decoding, before, started_s)
        elif self.coverage["steps"] == num_over:
            self._pass_time()

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
        statuses = Counter(sequence.status for sequence in planned.values())
        self.coverage["sequences started again"] += statuses[Status.WAITING]
        self.coverage["rows for nothing"] += statuses[Status.FINISHED] if self.scheduler.flights else 0
        if self.trace:
            self.lines.append(plan_line(self.device.num_steps, self.clock.now_s, plan))

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
        step = self.device.num_steps
        plan = plan_line(step, self.clock.now_s, self.device.plan) if self.device.plan else "none"
        return (
            f"seed {self.seed}, step {step}: {type(error).__name__}: {error}\n"
            f"last plan: {plan}\n{block_map(self.scheduler)}"
        )


def simulate(seed: int) -> None:
    Simulation(seed).run()
