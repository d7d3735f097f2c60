"""Why the scheduler did what it did: who waits for whom, the last steps, and where every block is."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter, deque

from pagetide.block_pool import BlockPool
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats

LAST_STEPS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class TenantState:
    """`clock` is weighted tokens so far: the lowest goes first. `share` is of the machine, 0 to 1.

    `throttled_s` is when its rate limit lets it go on, `oldest_wait_s` how long its first in line waits.
    """

    name: str
    weight: float
    share: float
    clock: float
    num_waiting: int
    num_running: int
    throttled_s: float
    oldest_wait_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class StepRecord:
    """One of the last steps; `at_s` is seconds before now."""

    at_s: float
    num_tokens: int
    num_generated: int
    num_running: int
    num_waiting: int
    preemptions: dict[str, int]
    step_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot between two steps.

    `block_map` is the blocks in order as runs of (state, how many), the states being blank, cached, held
    and shared (by several sequences). Totals count from the start of the engine.
    """

    tenants: list[TenantState]
    last_steps: list[StepRecord]
    block_map: list[tuple[str, int]]
    blocks: dict[str, int]
    host_blocks: int
    preemptions: dict[str, int]
    prefix_queries: int
    prefix_hits: int
    caution: float
    token_s: float | None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class History:
    """What the steps so far added up to. Owned by the engine, on its thread."""

    def __init__(self) -> None:
        self.last: deque[tuple[float, StepStats]] = deque(maxlen=LAST_STEPS)
        self.preemptions: Counter[str] = Counter()
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, step: StepStats, now_s: float) -> None:
        self.last.append((now_s, step))
        self.preemptions.update({reason.value: count for reason, count in step.preemptions.items()})
        self.prefix_queries += step.prefix_queries
        self.prefix_hits += step.prefix_hits


def snapshot(scheduler: Scheduler, history: History, now_s: float) -> Statistics:
    """On the engine thread, between two steps."""
    states = [_state(scheduler.pool, block) for block in range(scheduler.pool.num_blocks)]
    return Statistics(
        tenants=_tenants(scheduler, now_s),
        last_steps=[_record(step, now_s - at_s) for at_s, step in history.last],
        block_map=[(state, len(list(run))) for state, run in itertools.groupby(states)],
        blocks=dict(Counter(states)),
        host_blocks=scheduler.tier.num_used,
        preemptions=dict(history.preemptions),
        prefix_queries=history.prefix_queries,
        prefix_hits=history.prefix_hits,
        caution=scheduler.caution,
        token_s=scheduler.token_s,
    )


def _tenants(scheduler: Scheduler, now_s: float) -> list[TenantState]:
    tenants = scheduler.tenants
    return [
        TenantState(
            name=account.name,
            weight=account.policy.weight,
            share=tenants.share(account),
            clock=account.clock,
            num_waiting=len(account.waiting),
            num_running=account.num_running,
            throttled_s=account.throttled_s(now_s),
            oldest_wait_s=now_s - account.waiting[0][-1].request.arrival_s if account.waiting else 0.0,
        )
        for account in tenants.accounts
        if account.is_active
    ]


def _record(step: StepStats, ago_s: float) -> StepRecord:
    preemptions = {reason.value: count for reason, count in step.preemptions.items()}
    return StepRecord(
        ago_s,
        step.num_tokens,
        step.num_generated,
        step.num_running,
        step.num_waiting,
        preemptions,
        step.step_s,
    )


def _state(pool: BlockPool, block: int) -> str:
    return "shared" if pool.refs(block) > 1 else pool.state(block)
