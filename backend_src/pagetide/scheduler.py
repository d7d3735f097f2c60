"""Who runs in the next step, and whose blocks hold what. Integers only; never imports torch.

There is no prefill phase and no decode phase. A sequence has `num_tokens` and `num_computed`, and each
step gives it some of the difference within the token budget: chunked prefill, prefix hits and
resumption after preemption are all this one case. (Iteration-level scheduling: Orca, OSDI'22; paged
blocks: vLLM, SOSP'23; chunks beside decodes: Sarathi-Serve, OSDI'24.)

Every request ends: each is preempted at most `max_preemptions` times, and one that was is started again
only when its longest length fits, which is then kept free for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from pagetide.admission import PeakEstimate
from pagetide.block_pool import BlockPool
from pagetide.block_tables import BlockTables
from pagetide.config import BLOCK_SIZE
from pagetide.draft import Draft
from pagetide.flights import Flights
from pagetide.growth import Growth
from pagetide.kv_pool import NoTier, Tier
from pagetide.limits import Limits, check_fits
from pagetide.policy import Policy
from pagetide.request import FinishReason, Output, Request, SamplingParams, Sequence, Status
from pagetide.roster import Delivery, Roster
from pagetide.stats import Reason, Tally
from pagetide.step import StepPlan, StepResult
from pagetide.step_budget import StepBudget
from pagetide.tenant_policy import TenantPolicies
from pagetide.tenants import Tenants

_MOVE_PAUSE_S = 0.001


class Scheduler:
    """Owns the sequences and the block pool; lives on the engine thread.

    `root` maps who may share a prefix to the hash that its first block chains to; None: no prefix hits.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        root: Callable[[bytes], bytes] | None,
        clock: Callable[[], float] = time.monotonic,
        policies: TenantPolicies | None = None,
        estimate: PeakEstimate | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.tier: Tier = tier or NoTier()
        self.tenants = Tenants(policies or TenantPolicies(), limits.ageing_s, limits.max_preemptions)
        self._root = root
        self._clock = clock
        self._budget = StepBudget(limits.max_step_tokens, None if limits.offline else limits.target_itl_s)
        self._tables = BlockTables(pool, None if root is None else self._root_of)
        self._policy = Policy(limits, self._tables, self.tenants, estimate or PeakEstimate())
        self._roster = Roster(self._tables, self.tenants, clock)
        self._growth = Growth(self._roster, self._policy.estimate, limits.max_model_len, clock)
        self._draft = Draft(self._tables, budget=0)
        self.flights = Flights(self._draft)
        self._tally = Tally()

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        return self.tenants.num_waiting

    @property
    def sequences(self) -> Iterable[Sequence]:
        """All that have not ended, oldest first."""
        return self._roster.sequences

    @property
    def running(self) -> Iterable[Sequence]:
        return self._roster.running.values()

    @property
    def caution(self) -> float:
        """How far admission distrusts its estimate of lengths, 0 to 1."""
        return self._policy.estimate.caution

    @property
    def token_s(self) -> float | None:
        """What one more prompt token takes in a step, once it was measured."""
        return self._budget.token_s

    @property
    def planned(self) -> Mapping[int, Sequence]:
        """The sequences of the newest plan by id, some of which may have ended since."""
        return self._draft.sequences

    @property
    def is_idle(self) -> bool:
        return not self._roster and not self.flights

    @property
    def longest(self) -> int:
        """Most tokens of one request, by the model's length and the pool's size."""
        return min(self.limits.max_model_len, self.pool.num_blocks * BLOCK_SIZE)

    def check_fits(self, num_prompt_tokens: int, params: SamplingParams) -> None:
        """Raises AdmissionError unless the request can run alone. Reads only what never changes."""
        check_fits(num_prompt_tokens, params.max_tokens, self.longest)

    def add(self, request: Request) -> None:
        """Queue a request that passed `check_fits`."""
        self._roster.add(request)

    def expire(self) -> list[Delivery]:
        """End the requests whose time is over, with the tokens that they have."""
        return self._roster.expire()

    def pause_s(self) -> float | None:
        """When nothing was planned: seconds after which to look again, None until something comes."""
        now_s, deadline_s = self._clock(), self._roster.next_deadline_s
        pauses = [
            self.tenants.throttled_s(now_s),
            None if deadline_s is None else max(0.0, deadline_s - now_s),
        ]
        if self.tier.pinned:
            pauses.append(_MOVE_PAUSE_S)
        return min((pause for pause in pauses if pause is not None), default=None)

    def abort(self, request_id: int, reason: FinishReason) -> Delivery | None:
        """End a request between steps. None if it has ended already."""
        sequence = self._roster.find(request_id)
        return None if sequence is None else self._roster.finish(sequence, Output(finish_reason=reason))

    def plan(self) -> StepPlan | None:
        """The next step, running sequences first; None if there is nothing to compute.

        One planned step may still be in flight: then it is taken as done, but for the tokens it samples.
        """
        self.tier.settle()
        self.tenants.look(self._clock())
        streams, prompts = self._policy.by_urgency(self._going_on())
        draft = self._draft = Draft(self._tables, self._budget.tokens(len(streams)), self.flights.entries)
        draft.slow_down(self._policy.crowding(self.running))
        self._make_way(draft.budget - len(streams))
        self._advance_streams(streams)
        self._admit(ahead_of=prompts)
        for sequence in prompts:
            self._advance(sequence)
        self._admit()
        self.tier.start_moves(self._wanted, lambda: self._policy.spare(self.running), self.token_s)
        self._policy.estimate.stepped(preempted=Reason.BLOCKS in draft.preempted)
        return self.flights.start(draft)

    def update(self, result: StepResult) -> list[Delivery]:
        """Take in what the oldest planned step produced: its sampled rows grow by one token."""
        deliveries = self._growth.take(self.flights.land(), result, self._tally)
        self.flights.complete()
        return deliveries

    def fail(self, error: str) -> list[Delivery]:
        """The oldest planned step raised: its sequences end, and blocks that it was to fill are forgotten.

        A step in flight behind it is forgotten too. Its other sequences start again.
        """
        failed, others = self.flights.crash()
        for sequence in others:
            self._roster.restart(sequence)
        output = Output(finish_reason=FinishReason.ERROR, error=error)
        return [self._roster.finish(sequence, output) for sequence in failed]

    def observe(self, step_s: float) -> None:
        """What the last step that is over took."""
        ended = self.flights.ended
        self._budget.observe(ended.plan.num_tokens, ended.num_decoding, step_s)

    def take_tally(self) -> Tally:
        tally, self._tally = self._tally, Tally()
        return tally

    def check(self) -> None:
        """Raises RuntimeError if a block is lost, or held by nobody. Cheap enough for every idle moment."""
        self.pool.check()
        held = {block for sequence in self.sequences for block in sequence.block_table}
        held.update(self.tier.pinned, self.flights.sources)
        if len(held) != self.pool.num_held:
            raise RuntimeError(f"{self.pool.num_held} blocks held, {len(held)} in block tables or moving")

    def _root_of(self, sequence: Sequence) -> bytes:
        """Private to the tenant or its group, and there to those with the same salt."""
        assert self._root is not None
        scope = self.tenants.policies.prefix_scope(sequence.request.tenant)
        return self._root(len(scope).to_bytes(8, "little") + scope + sequence.request.cache_salt)

    def _going_on(self) -> Iterable[Sequence]:
        """Running sequences but those that the step in flight brings to their full length."""
        if not self.flights:
            return self.running
        longest = self.limits.max_model_len
        return [s for s in self.running if not (s.num_unknown and s.will_be_full(longest))]

    def _advance_streams(self, streams: list[Sequence]) -> None:
        """Plan a token for each: at once, which is several times faster, unless one has to give way."""
        full = self._tables.full(streams)
        fit = len(streams) <= self._draft.budget and len(full) <= self._policy.spare(self.running)
        if fit and not self._draft.preempted:
            self._draft.add_streams(streams, full)
            self.tenants.charge_streams(streams)
        else:
            for sequence in streams:
                self._advance(sequence)

    def _advance(self, sequence: Sequence) -> None:
        """Plan a running sequence's next tokens, if its blocks are there or can be had."""
        num_new = self._draft.most_new(sequence)
        if num_new == 0 or sequence.status is not Status.RUNNING:
            return
        if self._find_room(sequence, sequence.num_computed + num_new):
            self._compute(sequence, num_new)

    def _find_room(self, sequence: Sequence, end: int) -> bool:
        """Preempt, the cheapest first, until the sequence has room; it may be the cheapest itself."""
        missing = self._tables.missing(sequence, end)
        while missing > 0 and missing > self._policy.room(sequence, self.running):
            victim = self._policy.cheapest(self.running, self._draft.sequences, sequence)
            if victim is None:
                return False
            self._preempt(victim, Reason.BLOCKS)
            if victim is sequence:
                return False
        return True

    def _make_way(self, budget: int) -> None:
        """Start the first waiting sequence with what tenants above their share have too much."""
        sequence = self.tenants.first(self._clock())
        if sequence is None or self.limits.offline or budget <= 0 or len(self.tenants.active) < 2:
            return
        hits = self._draft.hits(sequence)
        if not self._policy.is_owed(sequence, hits, self.running):
            return
        while not self._policy.can_start(sequence, hits, self.running):
            victim = self._policy.debtor(self.running)
            if victim is None:
                return
            self._preempt(victim, Reason.SHARE)
        if self._draft.preempted:
            self._start(sequence, min(budget, self._draft.most_new(sequence)))

    def _preempt(self, victim: Sequence, reason: Reason) -> None:
        self._roster.preempt(victim)
        self._draft.preempted.add(reason)
        self._tally.preemptions[reason] += 1

    def _admit(self, ahead_of: Iterable[Sequence] = ()) -> None:
        """Start waiting sequences, one tenant after the other, while they will fit beside all that runs.

        With `ahead_of`, only those whose tenants are further behind than the tenants of all these prompts.
        """
        limit = min(map(self.tenants.clock, ahead_of), default=math.inf)
        while self._draft.admits and self.num_running < self.limits.max_running:
            sequence = self.tenants.first(self._clock(), self._draft.held_back)
            if sequence is None or self.tenants.clock(sequence) >= limit:
                return
            if not self._start(sequence, self._draft.most_new(sequence)):
                return

    def _start(self, sequence: Sequence, most_new: int) -> bool:
        """Run a waiting sequence with `most_new` tokens at first. False if it does not fit."""
        if most_new <= 0:
            return False
        hits = self._policy.fitting(sequence, self._draft.hits(sequence), self.running)
        if hits is None or self.tier.is_loading(self._tables.next_hash(sequence, hits)):
            return False
        self._draft.start(sequence, hits)
        self._tally.prefix_queries += sequence.num_tokens
        self._tally.prefix_hits += sequence.num_computed
        self._roster.run(sequence)
        self._compute(sequence, min(sequence.num_left, most_new))
        return True

    def _wanted(self) -> list[bytes]:
        """The blocks that the next sequence to start could hit."""
        sequence = self.tenants.first(self._clock())
        return [] if sequence is None else self._tables.chain(sequence)

    def _compute(self, sequence: Sequence, num_new: int) -> None:
        """Plan it, and charge its tenant."""
        self._draft.add(sequence, num_new)
        self.tenants.charge(sequence, num_new)
