"""Bugs of the kind that schedulers have had, to be planted one at a time: the simulation must find each."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pagetide import block_tables
from pagetide.block_pool import BlockPool, chain_hash
from pagetide.block_tables import BlockTables, Hits
from pagetide.config import BLOCK_SIZE
from pagetide.deadlines import Deadlines
from pagetide.draft import Draft
from pagetide.kv_pool import HostTier
from pagetide.policy import Policy
from pagetide.request import Sequence, Status
from pagetide.roster import Roster
from pagetide.scheduler import Scheduler
from pagetide.tenants import Account, Tenants

Plant = Callable[[], AbstractContextManager[Any]]


def a_failed_step_leaves_its_blocks_to_be_hit() -> AbstractContextManager[Any]:
    return patch.object(Draft, "undo", Draft.release_sources)


def an_ended_sequence_keeps_its_blocks() -> AbstractContextManager[Any]:
    release = BlockTables.release

    def wrong(self: BlockTables, sequence: Sequence) -> None:
        if sequence.num_preemptions == 0:
            release(self, sequence)

    return patch.object(BlockTables, "release", wrong)


def preemption_forgets_that_nothing_is_computed_any_more() -> AbstractContextManager[Any]:
    def wrong(self: BlockTables, sequence: Sequence) -> None:
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = array("i")

    return patch.object(BlockTables, "release", wrong)


def a_hit_covers_the_whole_prompt() -> AbstractContextManager[Any]:
    hits = BlockTables.hits

    def wrong(self: BlockTables, sequence: Sequence, unwritten: Any) -> Hits:
        sequence.tokens.append(0)
        try:
            return hits(self, sequence, unwritten)
        finally:
            sequence.tokens.pop()

    return patch.object(BlockTables, "hits", wrong)


def a_block_is_named_by_its_own_tokens_only() -> AbstractContextManager[Any]:
    return patch.object(block_tables, "chain_hash", lambda parent, tokens: chain_hash(b"", tokens))


def prefixes_are_shared_between_tenants() -> AbstractContextManager[Any]:
    def wrong(self: Scheduler, sequence: Sequence) -> bytes:
        assert self._root is not None
        return self._root(sequence.request.cache_salt)

    return patch.object(Scheduler, "_root_of", wrong)


def a_block_is_copied_before_it_is_written() -> AbstractContextManager[Any]:
    return patch.object(Draft, "hits", lambda self, sequence: self.tables.hits(sequence, unwritten=()))


def one_token_more_than_was_copied_counts_as_computed() -> AbstractContextManager[Any]:
    with_partial = BlockTables._with_partial

    def wrong(self: BlockTables, *args: Any) -> Hits:
        hits = with_partial(self, *args)
        more = hits.num_copied + (0 < hits.num_copied < BLOCK_SIZE - 1)
        return Hits(hits.blocks, hits.source, more)

    return patch.object(BlockTables, "_with_partial", wrong)


def a_hit_takes_no_reference() -> AbstractContextManager[Any]:
    hold = BlockPool.hold

    def wrong(self: BlockPool, block: int) -> None:
        if not self.is_held(block):
            hold(self, block)

    return patch.object(BlockPool, "hold", wrong)


def a_block_can_be_hit_before_it_is_full() -> AbstractContextManager[Any]:
    publish = BlockTables.publish

    def wrong(self: BlockTables, sequence: Sequence, start: int, end: int) -> list[int]:
        return publish(self, sequence, start, -(-end // BLOCK_SIZE) * BLOCK_SIZE)

    return patch.object(BlockTables, "publish", wrong)


def a_sequence_of_this_very_step_is_preempted() -> AbstractContextManager[Any]:
    cheapest = Policy.cheapest
    return patch.object(
        Policy, "cheapest", lambda self, running, planned, needy: cheapest(self, running, (), needy)
    )


def a_preempted_sequence_draws_from_a_new_seed() -> AbstractContextManager[Any]:
    preempt = Roster.preempt

    def wrong(self: Roster, victim: Sequence) -> None:
        preempt(self, victim)
        victim.seed += 1

    return patch.object(Roster, "preempt", wrong)


def timeouts_end_only_those_who_run() -> AbstractContextManager[Any]:
    take_due = Deadlines.take_due

    def wrong(self: Deadlines, now_s: float) -> list[Sequence]:
        return [sequence for sequence in take_due(self, now_s) if sequence.status is Status.RUNNING]

    return patch.object(Deadlines, "take_due", wrong)


def an_abort_is_only_seen_by_those_who_wait() -> AbstractContextManager[Any]:
    abort = Scheduler.abort

    def wrong(self: Scheduler, request_id: int, reason: Any) -> Any:
        sequence = self._roster.find(request_id)
        return abort(self, request_id, reason) if sequence and sequence.status is Status.WAITING else None

    return patch.object(Scheduler, "abort", wrong)


def prompts_go_before_streams() -> AbstractContextManager[Any]:
    by_urgency = Policy.by_urgency
    return patch.object(Policy, "by_urgency", lambda self, running: by_urgency(self, running)[::-1])


def those_who_crowd_get_nothing_at_all() -> AbstractContextManager[Any]:
    slow_down = Draft.slow_down

    def wrong(self: Draft, tenants: Any) -> None:
        slow_down(self, tenants)
        self.spare = 0

    return patch.object(Draft, "slow_down", wrong)


def tenants_are_never_charged() -> AbstractContextManager[Any]:
    return patch.object(Account, "charge", lambda self, num_tokens: None)


def a_tenant_may_run_one_more_than_its_limit() -> AbstractContextManager[Any]:
    def wrong(self: Account, now_s: float) -> bool:
        limit = self.policy.max_running
        return (limit is None or self.num_running <= limit) and self.throttled_s(now_s) == 0.0

    return patch.object(Account, "may_start", wrong)


def priorities_never_age() -> AbstractContextManager[Any]:
    entry = Tenants._entry

    def wrong(self: Tenants, sequence: Sequence) -> Any:
        rank, _, number, _ = entry(self, sequence)
        return rank, sequence.request.priority, number, sequence

    return patch.object(Tenants, "_entry", wrong)


def preemption_is_not_bounded() -> AbstractContextManager[Any]:
    return patch.object(Tenants, "is_protected", lambda self, sequence: False)


def nobody_wakes_the_loop_when_a_rate_limit_ends() -> AbstractContextManager[Any]:
    return patch.object(Tenants, "throttled_s", lambda self, now_s: None)


def a_host_slot_is_found_under_what_it_held_before() -> AbstractContextManager[Any]:
    take_slot = HostTier._take_slot

    def wrong(self: HostTier) -> int | None:
        before = dict(self._slots)
        slot = take_slot(self)
        for content_hash in before.keys() - self._slots.keys():
            self._slots[content_hash] = before[content_hash]
        return slot

    return patch.object(HostTier, "_take_slot", wrong)


def a_damaged_block_is_believed() -> AbstractContextManager[Any]:
    settle = HostTier._settle_load
    return patch.object(HostTier, "_settle_load", lambda self, moved: settle(self, replace(moved, ok=True)))


def a_loaded_block_can_be_hit_before_it_is_there() -> AbstractContextManager[Any]:
    load = HostTier._load

    def wrong(self: HostTier, content_hash: bytes) -> None:
        load(self, content_hash)
        block, content = next(reversed(self._loading.items()))
        self._pool.publish(block, content)

    return patch.object(HostTier, "_load", wrong)


PLANTS: tuple[Plant, ...] = (
    a_failed_step_leaves_its_blocks_to_be_hit,
    an_ended_sequence_keeps_its_blocks,
    preemption_forgets_that_nothing_is_computed_any_more,
    a_hit_covers_the_whole_prompt,
    a_block_is_named_by_its_own_tokens_only,
    prefixes_are_shared_between_tenants,
    a_block_is_copied_before_it_is_written,
    one_token_more_than_was_copied_counts_as_computed,
    a_hit_takes_no_reference,
    a_block_can_be_hit_before_it_is_full,
    a_sequence_of_this_very_step_is_preempted,
    a_preempted_sequence_draws_from_a_new_seed,
    timeouts_end_only_those_who_run,
    an_abort_is_only_seen_by_those_who_wait,
    prompts_go_before_streams,
    those_who_crowd_get_nothing_at_all,
    tenants_are_never_charged,
    a_tenant_may_run_one_more_than_its_limit,
    priorities_never_age,
    preemption_is_not_bounded,
    nobody_wakes_the_loop_when_a_rate_limit_ends,
    a_host_slot_is_found_under_what_it_held_before,
    a_damaged_block_is_believed,
    a_loaded_block_can_be_hit_before_it_is_there,
)
