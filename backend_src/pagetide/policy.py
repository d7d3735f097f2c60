"""The choices of the scheduler: in which order, who fits, who gives way. It changes nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from operator import attrgetter

from pagetide.admission import PeakEstimate, peak_blocks_of
from pagetide.block_tables import BlockTables, Hits, peak_blocks
from pagetide.config import BLOCK_SIZE
from pagetide.limits import Limits
from pagetide.request import Sequence
from pagetide.tenants import Account, Tenants


class Policy:
    """Reads the pool, the tenants and the sequences. Lives in the scheduler."""

    def __init__(self, limits: Limits, tables: BlockTables, tenants: Tenants, estimate: PeakEstimate) -> None:
        self._limits = limits
        self._tables = tables
        self._pool = tables.pool
        self._tenants = tenants
        self.estimate = estimate

    def by_urgency(self, running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Streams that wait for one token, and prompts; in each, tenants that are behind come first.

        Streams go first, so long prompts never stall them.
        """
        ordered = sorted(running, key=attrgetter("id"))
        if len(self._tenants.active) > 1:
            ordered.sort(key=self._tenants.clock)
        streams, prompts = list[Sequence](), list[Sequence]()
        for sequence in ordered:
            (streams if sequence.is_stream else prompts).append(sequence)
        return streams, prompts

    def room(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Free blocks that the running sequence may take: what protected ones will need is theirs."""
        return self._pool.num_free if self._tenants.is_protected(sequence) else self.spare(running)

    def spare(self, running: Iterable[Sequence]) -> int:
        """Free blocks that are promised to no protected sequence."""
        return self._pool.num_free - self._reserved(running)

    def fitting(self, sequence: Sequence, hits: Hits, running: Iterable[Sequence]) -> Hits | None:
        """The hits with which the waiting sequence can start beside those that run, or None."""
        running = list(running)
        if self._fits(sequence, hits, running):
            return hits
        whole = hits.whole()
        return whole if whole != hits and self._fits(sequence, whole, running) else None

    def can_start(self, sequence: Sequence, hits: Hits, running: Iterable[Sequence]) -> bool:
        """There is a place for it and there are blocks."""
        running = list(running)
        return len(running) < self._limits.max_running and self.fitting(sequence, hits, running) is not None

    def cheapest(
        self, running: Iterable[Sequence], planned: Container[int], needy: Sequence
    ) -> Sequence | None:
        """Whom to preempt so that `needy` gets blocks, or None if nobody can be.

        Of tenants above their share first, then the one with the least to compute again: `needy` itself
        if that is cheapest and another one gets on instead.
        """
        running = list(running)
        free = [s for s in running if s.id not in planned and not self._tenants.is_protected(s)]
        if all(s is needy for s in free):
            return None
        above = self.above_share(running)
        return min(free, key=lambda s: (s.request.tenant not in above, *_cost(s)))

    def is_owed(self, waiting: Sequence, hits: Hits, running: Iterable[Sequence]) -> bool:
        """Whether the waiting sequence's tenant would still be within its share with it."""
        account = self._tenants.account(waiting)
        if account.num_running == 0:
            return True
        share = self._tenants.share(account)
        mine = [s for s in running if s.request.tenant == account.name]
        num_blocks = sum(len(s.block_table) for s in mine) + self._tables.cost(waiting, hits)
        return len(mine) < self._slots(share) and num_blocks <= share * self._pool.num_blocks

    def debtor(self, running: Iterable[Sequence]) -> Sequence | None:
        """The cheapest sequence that a tenant above its share can give back."""
        running = list(running)
        above = self.above_share(running)
        owing = [s for s in running if s.request.tenant in above and not self._tenants.is_protected(s)]
        return min(owing, key=_cost, default=None)

    def above_share(self, running: Iterable[Sequence]) -> set[str]:
        """Tenants with more slots or blocks than their share; one sequence is always granted."""
        if len(self._tenants.active) < 2:
            return set()
        blocks: Counter[str] = Counter()
        for sequence in running:
            blocks[sequence.request.tenant] += len(sequence.block_table)
        return {each.name for each in self._tenants.active if self._is_above(each, blocks[each.name])}

    def crowding(self, running: Iterable[Sequence]) -> set[str]:
        """Tenants that want more than their share while one that does not is here, or was lately.

        Their prompts would lengthen the steps for which the others wait.
        """
        if self._limits.offline or len(self._tenants.around) < 2:
            return set()
        wanting = {each.name for each in self._tenants.active if self._wants_more(each)}
        wanting |= self.above_share(running)
        return wanting if any(each.name not in wanting for each in self._tenants.around) else set()

    def _wants_more(self, account: Account) -> bool:
        return account.num_wanted > self._slots(self._tenants.share(account))

    def _is_above(self, account: Account, num_blocks: int) -> bool:
        share = self._tenants.share(account)
        too_many = account.num_running > self._slots(share)
        return too_many or (account.num_running > 1 and num_blocks > share * self._pool.num_blocks)

    def _slots(self, share: float) -> int:
        return max(1, int(share * self._limits.max_running))

    def _reserved(self, running: Iterable[Sequence]) -> int:
        """Blocks that protected running sequences may still take."""
        if self._tenants.num_protected == 0:
            return 0
        protected = (s for s in running if self._tenants.is_protected(s))
        return sum(peak_blocks(s) - len(s.block_table) for s in protected)

    def _fits(self, waiting: Sequence, hits: Hits, running: list[Sequence]) -> bool:
        """It fits now, beside what the others have, and by the estimate until they end."""
        unprotected = (s for s in running if not self._tenants.is_protected(s))
        free = self.spare(running) - sum(map(self._tables.to_come, unprotected))
        if self._tenants.is_protected(waiting):
            return peak_blocks(waiting) - len(hits.blocks) + self._tables.idle(hits) <= free
        if self._tables.cost(waiting, hits) > free:
            return False
        return not running or self._peak_with(waiting, hits, running) <= self._pool.num_blocks

    def _peak_with(self, waiting: Sequence, hits: Hits, running: list[Sequence]) -> int:
        own = sum(len(s.block_table) - s.num_hit_blocks for s in running)
        shared = max(0, self._pool.num_held - own) + self._tables.idle(hits)
        rows = [(self.estimate.tokens_left(s), s.num_tokens - s.num_hit_blocks * BLOCK_SIZE) for s in running]
        rows.append((self.estimate.tokens_left(waiting), waiting.num_tokens - len(hits.blocks) * BLOCK_SIZE))
        return shared + peak_blocks_of(rows)


def _cost(sequence: Sequence) -> tuple[int, int]:
    """Tokens to compute again; of equals, the youngest is the cheapest."""
    return sequence.num_computed - sequence.num_hit_blocks * BLOCK_SIZE, -sequence.id
