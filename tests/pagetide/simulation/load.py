"""Load on the real scheduler and engine loop in simulated time: what clients would see, without a model."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.device import Clock

from pagetide.block_pool import BlockPool, chain_root
from pagetide.engine import Engine
from pagetide.limits import Limits
from pagetide.request import Output, Request, SamplingParams
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats
from pagetide.step import StepPlan, StepResult
from pagetide.tenant_policy import TenantPolicies

_IDS = itertools.count()


@dataclass(frozen=True, slots=True)
class Machine:
    """A step takes `step_s + token_s * tokens + context_s * (tokens * context)`."""

    step_s: float
    token_s: float
    context_s: float


TWO_CORES = Machine(0.010, 0.001, 3.6e-7)
"""About what SmolLM2-135M takes on two cores with AVX-512-bf16."""

FASTER = Machine(0.015, 0.0002, 5e-9)
"""Its steps take long beside their tokens: what comes between two steps weighs more."""


@dataclass(slots=True)
class Client:
    """One request and when its tokens came."""

    arrival_s: float
    prompt: array[int]
    max_tokens: int
    tenant: str = ""
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.arrival_s

    @property
    def intervals_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.token_s)]

    def request(self, clock: Clock) -> Request:
        params = SamplingParams(max_tokens=self.max_tokens, ignore_eos=True, temperature=0.0)
        return Request(
            next(_IDS),
            self.prompt,
            params,
            lambda o: self._take(o, clock),
            self.arrival_s,
            tenant=self.tenant,
        )

    def _take(self, output: Output, clock: Clock) -> None:
        self.token_s += [clock.now_s] * len(output.token_ids)


@dataclass(slots=True)
class TimedRunner:
    """Computes nothing, in the time that a model would take."""

    clock: Clock
    machine: Machine

    def run(self, plan: StepPlan) -> StepResult:
        pairs = zip(plan.num_new, plan.num_computed, strict=True)
        attended = sum(count * (start + count / 2) for count, start in pairs)
        machine = self.machine
        self.clock.now_s += machine.step_s + machine.token_s * plan.num_tokens + machine.context_s * attended
        return StepResult([1] * len(plan.sampled.rows), [None] * len(plan.sampled.rows))


OnStep = Callable[[float, StepStats, Scheduler], None]
"""Told of each step: the simulated time at its end, what it did, and the scheduler."""


def serve(
    clients: Sequence[Client],
    limits: Limits,
    num_blocks: int,
    policies: TenantPolicies | None = None,
    on_step: OnStep = lambda now_s, stats, scheduler: None,
    machine: Machine = FASTER,
) -> Scheduler:
    """Run until all clients have everything."""
    clock = Clock()
    scheduler = Scheduler(BlockPool(num_blocks), limits, lambda scope: chain_root(scope), clock, policies)
    engine = Engine(
        scheduler,
        TimedRunner(clock, machine),
        len(clients),
        lambda stats: on_step(clock(), stats, scheduler),
        clock,
    )
    coming = sorted(clients, key=lambda client: client.arrival_s, reverse=True)
    while coming or not scheduler.is_idle:
        while coming and coming[-1].arrival_s <= clock.now_s:
            engine.submit(coming.pop().request(clock))
        before_s = clock.now_s
        engine.turn(wait=False)
        if clock.now_s == before_s and coming:
            clock.now_s = max(before_s, coming[-1].arrival_s)
    return scheduler
