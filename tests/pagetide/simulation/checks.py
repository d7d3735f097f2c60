"""What must hold after every turn of the loop, whatever happened in it."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from simulation.scenario import Scenario

from pagetide.config import BLOCK_SIZE
from pagetide.request import FinishReason, Output, Request, Sequence, Status
from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan

MOST_STEPS_PER_TOKEN = 40
"""Far more than any request needs; a loop that goes round in circles passes it soon."""


@dataclass(slots=True)
class Account:
    """One request: what it must get, what it got, and how it ended."""

    request: Request
    expected: list[int]
    got: list[int] = field(default_factory=list)
    ending: FinishReason | None = None
    aborted: bool = False


@dataclass(slots=True)
class Ledger:
    """Every request that was submitted. Raises AssertionError as soon as an answer is wrong."""

    accounts: dict[int, Account] = field(default_factory=dict)
    open: dict[int, Account] = field(default_factory=dict)
    num_steps: int = 0
    work: int = 0

    def expect(self, request: Request, output: list[int]) -> None:
        self.accounts[request.id] = self.open[request.id] = Account(request, output)
        self.work += len(request.prompt_ids) + request.params.max_tokens

    def abort(self, request_id: int) -> None:
        self.accounts[request_id].aborted = True

    def take(self, request_id: int, output: Output, now_s: float) -> None:
        account = self.accounts[request_id]
        assert account.ending is None, f"request {request_id} got an output after its end"
        account.got.extend(output.token_ids)
        expected = account.expected[: len(account.got)]
        assert account.got == expected, f"request {request_id} got {account.got}, not {expected}"
        account.ending = output.finish_reason
        if output.finish_reason is not None:
            del self.open[request_id]
            self._check_ending(account, output, now_s)

    def check_ended(self, turn_started_s: float) -> None:
        """An abort or a timeout that was there when the turn began took effect in it."""
        for request_id, account in self.open.items():
            assert not account.aborted, f"request {request_id} was aborted and goes on"
            assert deadline(account.request) > turn_started_s, f"request {request_id} outlived its timeout"

    def check_preemptions(self, scheduler: Scheduler) -> None:
        """Bounded for each, and nobody is left with what was taken."""
        for sequence in scheduler.sequences:
            most = scheduler.limits.max_preemptions
            assert sequence.num_preemptions <= most, (
                f"sequence {sequence.id} preempted more than {most} times"
            )
            if sequence.status is Status.WAITING:
                assert not sequence.block_table, f"sequence {sequence.id} waits and holds blocks"

    def check_all_answered(self) -> None:
        assert not self.open, f"requests {list(self.open)} never ended"

    def count_step(self) -> None:
        self.num_steps += 1
        assert self.num_steps < MOST_STEPS_PER_TOKEN * self.work, (
            f"{self.num_steps} steps for {self.work} tokens of work"
        )

    @staticmethod
    def decoding(scheduler: Scheduler) -> list[Sequence]:
        """Running streams that wait for their next token."""
        return [sequence for sequence in scheduler.running if sequence.is_stream]

    def _check_ending(self, account: Account, output: Output, now_s: float) -> None:
        reason, request = output.finish_reason, account.request
        assert output.stats is not None, f"request {request.id} ended without statistics"
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert account.got == account.expected, f"request {request.id} ended early: {account.got}"
        elif reason is FinishReason.TIMEOUT:
            assert deadline(request) <= now_s, f"request {request.id} timed out too early"
        elif reason is FinishReason.CANCELLED:
            assert account.aborted, f"request {request.id} was cancelled by nobody"
        else:
            assert "told to fail" in str(output.error), f"request {request.id} failed: {output.error}"


def deadline(request: Request) -> float:
    return float("inf") if request.timeout_s is None else request.arrival_s + request.timeout_s


def check_blocks(scheduler: Scheduler) -> None:
    """Conservation, exact reference counts, and no block in two sequences unless their tokens agree."""
    scheduler.check()
    pool, scope = scheduler.pool, scheduler.tenants.policies.prefix_scope
    tables = [(sequence, list(sequence.block_table)) for sequence in scheduler.sequences]
    users = Counter(itertools.chain.from_iterable(table for _, table in tables))
    refs = users + Counter(scheduler.tier.pinned) + Counter(scheduler.flights.sources)
    told = {block: count for block in range(pool.num_blocks) if (count := pool.refs(block))}
    assert told == refs, f"references {told}, users {dict(refs)}"
    contents: dict[int, bytes] = {}
    for sequence, table in tables:
        assert len(set(table)) == len(table), f"sequence {sequence.id} has a block twice: {table}"
        assert sequence.num_computed <= len(table) * BLOCK_SIZE, f"sequence {sequence.id} lost its blocks"
        for index, block in enumerate(table):
            if users[block] > 1:
                content = scope(sequence.request.tenant) + _content(sequence, index)
                assert contents.setdefault(block, content) == content, f"block {block} has two contents"


def _content(sequence: Sequence, index: int) -> bytes:
    """What a full block stands for: its tokens, all before them, and who may know them."""
    end = (index + 1) * BLOCK_SIZE
    assert end <= sequence.num_tokens, f"sequence {sequence.id} shares a block that is not full"
    return sequence.request.cache_salt + sequence.tokens[:end].tobytes()


def check_plan(plan: StepPlan, decoding: list[Sequence], scenario: Scenario) -> None:
    """Within the limits, no sequence twice, and every running stream gets its next token."""
    assert 0 < plan.num_tokens <= scenario.limits.max_step_tokens, f"{plan.num_tokens} tokens in one step"
    assert len(plan.num_new) <= scenario.limits.max_running, f"{len(plan.num_new)} rows"
    assert len(set(plan.sequence_ids)) == len(plan.sequence_ids), f"rows {plan.sequence_ids}"
    assert min(plan.num_new) > 0, f"rows of {list(plan.num_new)} tokens"
    targets = [copy.target for copy in plan.copies]
    assert len(set(targets) - {copy.source for copy in plan.copies}) == len(targets), f"copies {plan.copies}"
    if len(decoding) <= scenario.limits.max_step_tokens:
        stalled = [s for s in decoding if s.status is Status.RUNNING and s.id not in plan.sequence_ids]
        refused = [s.id for s in stalled if s.num_computed < len(s.block_table) * BLOCK_SIZE]
        assert not refused, f"running streams {refused} got no token and lack no block"


def hits_in_flight(plan: StepPlan) -> int:
    """Blocks that a row reads and an earlier row of the same step writes."""
    written: set[int] = set()
    count = 0
    for table, start, num_new in zip(plan.block_tables, plan.num_computed, plan.num_new, strict=True):
        first = start // BLOCK_SIZE
        count += len(written.intersection(table[:first]))
        written.update(table[first : -(-(start + num_new) // BLOCK_SIZE)])
    return count
