"""Why the scheduler did what it did: who waits for whom, the last steps' plans, and where every block is.

The engine thread only copies (`snapshot`); whoever asked makes the text (`Statistics.to_json`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from pagetide.request import Sequence
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats
from pagetide.step import StepPlan

LAST_STEPS = 32
BLOCK_STATES = ("free", "cached", "held", "shared")

Rows = tuple[list[int], list[str], "array[int]", "array[int]"]
"""Sequences, their tenants, how many of their tokens had been computed, how many the step computed."""


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
class Step:
    """One of the last steps: when it ended, what it did, and what was planned for it."""

    ended_s: float
    stats: StepStats
    plan: Rows

    def told(self, now_s: float) -> dict[str, Any]:
        stats = self.stats
        return {
            "ago_s": round(now_s - self.ended_s, 6),
            "step_s": round(stats.step_s, 6),
            "num_tokens": stats.num_tokens,
            "num_generated": stats.num_generated,
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "preemptions": {reason.value: count for reason, count in stats.preemptions.items()},
            "plan": list(zip(*self.plan, strict=True)),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class BlockMap:
    """Every block of the pool: `refs` counts the block tables that name it. Copies, owned by who has them."""

    refs: array[int]
    cached: frozenset[int]

    def states(self) -> Iterator[str]:
        """One of BLOCK_STATES for each block in order; shared is held by several sequences."""
        for block, refs in enumerate(self.refs):
            yield "shared" if refs > 1 else "held" if refs else "cached" if block in self.cached else "free"

    def runs(self) -> list[tuple[str, int]]:
        """The blocks in order as (state, how many)."""
        return [(state, sum(1 for _ in run)) for state, run in itertools.groupby(self.states())]


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot between two steps. Totals count from the start of the engine.

    `host_blocks` of `host_slots` hold something. `caution` is how far admission distrusts its estimates,
    0 to 1; `token_s` what one more prompt token takes, None before it was measured.
    """

    taken_s: float
    tenants: list[TenantState]
    last_steps: list[Step]
    block_map: BlockMap
    host_blocks: int
    host_slots: int
    preemptions: dict[str, int]
    prefix_queries: int
    prefix_hits: int
    caution: float
    token_s: float | None

    def to_json(self) -> str:
        """Takes a while for a large pool: not on the engine thread."""
        runs = self.block_map.runs()
        counts: Counter[str] = Counter()
        for state, count in runs:
            counts[state] += count
        return json.dumps(
            {
                "tenants": [dataclasses.asdict(tenant) for tenant in self.tenants],
                "last_steps": [step.told(self.taken_s) for step in self.last_steps],
                "blocks": {state: counts[state] for state in BLOCK_STATES},
                "block_map": runs,
                "host_blocks": self.host_blocks,
                "host_slots": self.host_slots,
                "preemptions": self.preemptions,
                "prefix_queries": self.prefix_queries,
                "prefix_hits": self.prefix_hits,
                "caution": self.caution,
                "token_s": self.token_s,
            }
        )


class History:
    """What the steps so far added up to. Owned by the engine, on its thread."""

    def __init__(self) -> None:
        self.last: deque[Step] = deque(maxlen=LAST_STEPS)
        self.preemptions: Counter[str] = Counter()
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, step: Step) -> None:
        stats = step.stats
        self.last.append(step)
        self.preemptions.update({reason.value: count for reason, count in stats.preemptions.items()})
        self.prefix_queries += stats.prefix_queries
        self.prefix_hits += stats.prefix_hits


def rows_of(plan: StepPlan, planned: Iterable[Sequence]) -> Rows:
    """`planned` are the plan's sequences, in its order."""
    tenants = [sequence.request.tenant for sequence in planned]
    return plan.sequence_ids, tenants, plan.num_computed, plan.num_new


def snapshot(scheduler: Scheduler, history: History, now_s: float) -> Statistics:
    """On the engine thread, between two steps."""
    return Statistics(
        taken_s=now_s,
        tenants=_tenants(scheduler, now_s),
        last_steps=list(history.last),
        block_map=BlockMap(*scheduler.pool.copy_states()),
        host_blocks=scheduler.tier.num_used,
        host_slots=scheduler.tier.num_slots,
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
