"""A failed seed in a form that a person can read."""

from __future__ import annotations

from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan


def plan_line(step: int, now_s: float, plan: StepPlan) -> str:
    """`seq:start+count` a row, `*` where a token is sampled."""
    sampled = set(plan.sampled.rows)
    rows = (
        f"{sequence}:{start}+{count}{'*' * (row in sampled)}"
        for row, (sequence, start, count) in enumerate(
            zip(plan.sequence_ids, plan.num_computed, plan.num_new, strict=True)
        )
    )
    return f"step {step} at {now_s:.3f} s: {'  '.join(rows)}"


def block_map(scheduler: Scheduler) -> str:
    """Who holds which block: one line a block, then one a sequence."""
    pool = scheduler.pool
    users: dict[int, list[str]] = {}
    for sequence in scheduler.sequences:
        for index, block in enumerate(sequence.block_table):
            users.setdefault(block, []).append(f"sequence {sequence.id}[{index}]")
    blocks = [
        f"  block {block:3}: {pool.refs(block)} refs, {pool.state(block):6} {', '.join(users.get(block, []))}"
        for block in range(pool.num_blocks)
    ]
    sequences = [
        f"  sequence {s.id}: request {s.request.id}, {s.status.value}, {s.num_computed} of {s.num_tokens} "
        f"tokens computed, preempted {s.num_preemptions} times, blocks {list(s.block_table)}"
        for s in scheduler.sequences
    ]
    return "\n".join(["block map:", *blocks, "sequences:", *sequences])
