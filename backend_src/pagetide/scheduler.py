"""Who runs in the next step, and whose blocks hold what. Integers only; never imports torch.

There is no prefill phase and no decode phase. A sequence has `num_tokens` and `num_computed`, and each
step gives it some of the difference within the token budget: chunked prefill, prefix hits and
resumption after preemption are all this one case. (Iteration-level scheduling: Orca, OSDI'22; paged
blocks: vLLM, SOSP'23; chunks beside decodes: Sarathi-Serve, OSDI'24.)

Age decides: an older sequence takes blocks only from younger ones, the youngest first, so the oldest
always gets on and every request ends.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pagetide.block_pool import BlockPool
from pagetide.block_tables import BlockTables
from pagetide.config import BLOCK_SIZE
from pagetide.request import (
    FinishReason,
    Output,
    Request,
    SamplingParams,
    Sequence,
    Status,
    TokenLogprobs,
)
from pagetide.step import StepPlan, StepResult

_SEED_BITS = 64


class AdmissionError(ValueError):
    """The request can never run here; the message names the field, the value and the limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan may hold. `max_model_len` counts prompt and output tokens of one sequence."""

    max_step_tokens: int
    max_running: int
    max_model_len: int


@dataclass(slots=True)
class Tally:
    """Counts of one step, taken by the engine with `Scheduler.take_tally`."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generated: int = 0


Delivery = tuple[Request, Output]


@dataclass(slots=True)
class _Draft:
    """The plan being made: its sequences by id, the budget left, and the blocks it promises to fill."""

    budget: int
    plan: StepPlan = field(default_factory=StepPlan)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    published: list[int] = field(default_factory=list)
    preempted: bool = False


class Scheduler:
    """Owns the sequences and the block pool; lives on the engine thread.

    `root` is for prefix hits: see BlockTables.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        root: Callable[[bytes], bytes] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self._tables = BlockTables(pool, root)
        self._clock = clock
        self._ids = itertools.count()
        self._by_request: dict[int, Sequence] = {}
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._preempted: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._draft = _Draft(budget=0)
        self._tally = Tally()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._preempted)

    @property
    def sequences(self) -> Iterable[Sequence]:
        """All that have not ended, oldest first."""
        return self._by_request.values()

    @property
    def running(self) -> Iterable[Sequence]:
        return self._running.values()

    @property
    def is_idle(self) -> bool:
        return not self._by_request

    @property
    def longest(self) -> int:
        """Most tokens of one request, by the model's length and the pool's size."""
        return min(self.limits.max_model_len, self.pool.num_blocks * BLOCK_SIZE)

    def check_fits(self, num_prompt_tokens: int, params: SamplingParams) -> None:
        """Raises AdmissionError unless the request can run alone. Reads only what never changes."""
        if num_prompt_tokens == 0:
            raise AdmissionError("the prompt has 0 tokens; it needs at least 1")
        if num_prompt_tokens + params.max_tokens > self.longest:
            raise AdmissionError(
                f"prompt ({num_prompt_tokens} tokens) + max_tokens ({params.max_tokens}) is "
                f"{num_prompt_tokens + params.max_tokens}; this model serves at most {self.longest}"
            )

    def add(self, request: Request) -> None:
        """Queue a request that passed `check_fits`."""
        seed = request.params.seed
        sequence = Sequence(
            id=next(self._ids),
            request=request,
            tokens=array("i", request.prompt_ids),
            seed=secrets.randbits(_SEED_BITS) if seed is None else seed % 2**_SEED_BITS,
        )
        self._by_request[request.id] = sequence
        self._waiting[sequence.id] = sequence
        if request.timeout_s is not None:
            heapq.heappush(self._deadlines, (request.arrival_s + request.timeout_s, sequence.id, sequence))

    def expire(self) -> list[Delivery]:
        """End the requests whose time is over, with the tokens that they have."""
        expired, now_s = [], self._clock()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.status is not Status.FINISHED:
                expired.append(self._finish(sequence, Output(finish_reason=FinishReason.TIMEOUT)))
        return expired

    def abort(self, request_id: int, reason: FinishReason) -> Delivery | None:
        """End a request between steps. None if it has ended already."""
        sequence = self._by_request.get(request_id)
        return None if sequence is None else self._finish(sequence, Output(finish_reason=reason))

    def abort_all(self, reason: FinishReason, error: str | None = None) -> list[Delivery]:
        output = Output(finish_reason=reason, error=error)
        return [self._finish(sequence, output) for sequence in list(self._by_request.values())]

    def plan(self) -> StepPlan | None:
        """The next step, running sequences first; None if there is nothing to compute."""
        self._draft = _Draft(budget=self.limits.max_step_tokens)
        for sequence in self._running_by_urgency():
            self._advance(sequence)
        if not self._draft.preempted:
            self._admit()
        return self._draft.plan if self._draft.plan.num_tokens else None

    def update(self, plan: StepPlan, result: StepResult) -> list[Delivery]:
        """Take in what the planned step produced: KV is computed, sampled rows grow by one token."""
        sequences = list(self._draft.sequences.values())
        for sequence, num_new in zip(sequences, plan.num_new, strict=True):
            sequence.num_computed += num_new
        return [
            self._append(sequences[row], token, logprobs)
            for row, token, logprobs in zip(plan.sampled.rows, result.token_ids, result.logprobs, strict=True)
        ]

    def fail(self, error: str) -> list[Delivery]:
        """The planned step raised: its sequences end, and blocks that it was to fill are forgotten."""
        for block in self._draft.published:
            self.pool.retract(block)
        output = Output(finish_reason=FinishReason.ERROR, error=error)
        return [self._finish(sequence, output) for sequence in self._draft.sequences.values()]

    def take_tally(self) -> Tally:
        tally, self._tally = self._tally, Tally()
        return tally

    def check(self) -> None:
        """Raises RuntimeError if a block is lost, or held by nobody. Cheap enough for every idle moment."""
        self.pool.check()
        held = {block for sequence in self._by_request.values() for block in sequence.block_table}
        if len(held) != self.pool.num_held:
            raise RuntimeError(f"{self.pool.num_held} blocks held, {len(held)} in block tables")

    def _running_by_urgency(self) -> list[Sequence]:
        """Decodes before prompt chunks, older before younger: long prompts never stall running streams."""
        return sorted(self._running.values(), key=lambda s: (s.num_left > 1, s.id))

    def _advance(self, sequence: Sequence) -> None:
        """Plan a running sequence's next tokens, taking blocks from younger ones if it must."""
        num_new = min(sequence.num_left, self._draft.budget)
        if num_new == 0 or sequence.status is not Status.RUNNING:
            return
        end = sequence.num_computed + num_new
        while self.pool.num_free < self._tables.missing(sequence, end):
            victim = self._youngest_unplanned(sequence)
            if victim is None:
                return
            self._preempt(victim)
        self._schedule(sequence, num_new)

    def _youngest_unplanned(self, than: Sequence) -> Sequence | None:
        candidates = (
            s for s in self._running.values() if s.id > than.id and s.id not in self._draft.sequences
        )
        return max(candidates, key=lambda s: s.id, default=None)

    def _preempt(self, victim: Sequence) -> None:
        """Take the victim's blocks; it keeps its tokens and will compute them again."""
        self._tables.release(victim)
        victim.num_preemptions += 1
        victim.status = Status.WAITING
        del self._running[victim.id]
        self._preempted[victim.id] = victim
        self._draft.preempted = True
        self._tally.num_preemptions += 1

    def _admit(self) -> None:
        """Start waiting sequences, oldest first, while the whole of each fits beside all that runs."""
        promised = sum(self._tables.to_come(sequence) for sequence in self._running.values())
        while self._draft.budget and self.num_running < self.limits.max_running:
            sequence = self._next_waiting()
            if sequence is None or not self._start(sequence, promised):
                return
            promised += self._tables.to_come(sequence)

    def _next_waiting(self) -> Sequence | None:
        if self._preempted:
            return self._preempted[min(self._preempted)]
        return next(iter(self._waiting.values()), None)

    def _start(self, sequence: Sequence, promised: int) -> bool:
        hits = self._tables.hits(sequence)
        if self._tables.cost(sequence, hits) + promised > self.pool.num_free:
            return False
        self._tables.take_hits(sequence, hits)
        self._record_start(sequence)
        self._waiting.pop(sequence.id, None)
        self._preempted.pop(sequence.id, None)
        self._running[sequence.id] = sequence
        sequence.status = Status.RUNNING
        self._schedule(sequence, min(sequence.num_left, self._draft.budget))
        return True

    def _record_start(self, sequence: Sequence) -> None:
        if sequence.scheduled_s is None:
            sequence.scheduled_s = self._clock()
            sequence.num_prefix_hit_tokens = sequence.num_computed
        self._tally.prefix_queries += sequence.num_tokens
        self._tally.prefix_hits += sequence.num_computed

    def _schedule(self, sequence: Sequence, num_new: int) -> None:
        """Put the sequence's next `num_new` tokens into the plan. The blocks are known to be there."""
        start, end = sequence.num_computed, sequence.num_computed + num_new
        self._tables.grow(sequence, end)
        plan = self._draft.plan
        if end == sequence.num_tokens:
            self._plan_sample(sequence, row=len(plan.num_new))
        plan.sequence_ids.append(sequence.id)
        plan.token_ids.extend(sequence.tokens[start:end])
        plan.num_new.append(num_new)
        plan.num_computed.append(start)
        plan.block_tables.append(sequence.block_table)
        self._draft.sequences[sequence.id] = sequence
        self._draft.budget -= num_new
        self._draft.published += self._tables.publish(sequence, start, end)

    def _plan_sample(self, sequence: Sequence, row: int) -> None:
        request, sampled = sequence.request, self._draft.plan.sampled
        held_back = sequence.num_output_tokens < request.params.min_tokens
        sampled.rows.append(row)
        sampled.params.append(request.params)
        sampled.seeds.append(sequence.seed)
        sampled.positions.append(sequence.num_tokens)
        sampled.banned.append(
            request.eos_token_ids.union(request.params.stop_token_ids) if held_back else frozenset()
        )

    def _append(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> Delivery:
        sequence.tokens.append(token)
        self._tally.num_generated += 1
        if sequence.first_token_s is None:
            sequence.first_token_s = self._clock()
            self._tally.num_prompt_tokens += len(sequence.request.prompt_ids)
        reason, stop_token = sequence.finish_reason(token, self.limits.max_model_len)
        output = Output((token,), (logprobs,) if logprobs else (), reason, stop_token)
        return (sequence.request, output) if reason is None else self._finish(sequence, output)

    def _finish(self, sequence: Sequence, output: Output) -> Delivery:
        """The sequence's last delivery: `output` with its statistics. Its blocks are free from here on."""
        self._tables.release(sequence)
        for group in (self._running, self._waiting, self._preempted):
            group.pop(sequence.id, None)
        del self._by_request[sequence.request.id]
        sequence.status = Status.FINISHED
        return sequence.request, replace(output, stats=sequence.stats(self._clock()))
