"""The plan being made, and what has to be undone when its step fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagetide.block_tables import BlockTables, Hits
from pagetide.request import Sequence
from pagetide.stats import Reason
from pagetide.step import StepPlan


@dataclass(slots=True, eq=False)
class Draft:
    """A plan, its sequences by id in the order of its rows, and the token budget left.

    From planning to `settle` or `undo`, blocks that the step will fill can be hit already, and the sources
    of its copies are held.
    """

    tables: BlockTables
    budget: int
    plan: StepPlan = field(default_factory=StepPlan)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    published: dict[int, None] = field(default_factory=dict)
    preempted: set[Reason] = field(default_factory=set)
    num_decoding: int = 0

    def hits(self, sequence: Sequence) -> Hits:
        return self.tables.hits(sequence, unwritten=self.published)

    def start(self, sequence: Sequence, hits: Hits) -> None:
        """Give a sequence without blocks its hits; they are known to be there."""
        copy = self.tables.take_hits(sequence, hits)
        if copy is not None:
            self.plan.copies.append(copy)

    def add(self, sequence: Sequence, num_new: int) -> None:
        """Compute the sequence's next `num_new` tokens. The blocks for them are known to be there."""
        start, end = sequence.num_computed, sequence.num_computed + num_new
        self.tables.grow(sequence, end)
        self.num_decoding += sequence.num_output_tokens > 0 and num_new == 1
        if end == sequence.num_tokens:
            self._sample(sequence)
        self.plan.sequence_ids.append(sequence.id)
        self.plan.token_ids.extend(sequence.tokens[start:end])
        self.plan.num_new.append(num_new)
        self.plan.num_computed.append(start)
        self.plan.block_tables.append(sequence.block_table)
        self.sequences[sequence.id] = sequence
        self.budget -= num_new
        self.published.update(dict.fromkeys(self.tables.publish(sequence, start, end)))

    def settle(self) -> None:
        """The step ran: its KV is there."""
        for sequence, num_new in zip(self.sequences.values(), self.plan.num_new, strict=True):
            sequence.num_computed += num_new
        self._release_sources()

    def undo(self) -> None:
        """The step failed: nobody may hit what it was to fill."""
        for block in self.published:
            self.tables.pool.retract(block)
        self._release_sources()

    def _release_sources(self) -> None:
        for copy in self.plan.copies:
            self.tables.release_source(copy)

    def _sample(self, sequence: Sequence) -> None:
        request, sampled = sequence.request, self.plan.sampled
        held_back = sequence.num_output_tokens < request.params.min_tokens
        sampled.rows.append(len(self.plan.num_new))
        sampled.params.append(request.params)
        sampled.seeds.append(sequence.seed)
        sampled.positions.append(sequence.num_tokens)
        sampled.banned.append(
            request.eos_token_ids.union(request.params.stop_token_ids) if held_back else frozenset()
        )
