"""The plan being made, and what has to be undone when its step fails."""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from pagetide.block_tables import BlockTables, Hits
from pagetide.config import BLOCK_SIZE
from pagetide.constraint import ConstrainedRow, Constraint
from pagetide.logit_edits import LogitEdits
from pagetide.request import Sequence, Status
from pagetide.stats import Reason
from pagetide.step import ScoredRows, StepPlan

CROWDING_PART = 4
"""Prompts of tenants that want more than their share fill at most one fourth of a step's budget."""


@dataclass(slots=True, eq=False)
class Draft:
    """A plan, its sequences by id in the order of its rows, and the token budget left.

    From planning to `release_sources` or `undo`, blocks that the step will fill can be hit already, and the
    sources of its copies are held. While another step is in flight, some tokens are not known yet:
    `in_flight` has the entries of that step that sample them, by sequence; what depends on them waits for
    `complete`.
    """

    tables: BlockTables
    budget: int
    in_flight: Mapping[int, int] | None = None
    plan: StepPlan = field(default_factory=StepPlan)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    published: dict[int, None] = field(default_factory=dict)
    preempted: set[Reason] = field(default_factory=set)
    crowding: Container[str] = ()
    favours: bool = False
    spare: int = 0
    num_decoding: int = 0
    restricted: list[tuple[Sequence, int]] = field(default_factory=list)
    unnamed: list[Sequence] = field(default_factory=list)

    @property
    def admits(self) -> bool:
        """Blocks that were just taken back are not given to newcomers."""
        return self.budget > 0 and not self.preempted

    def most_new(self, sequence: Sequence) -> int:
        """How many tokens of the sequence the step has room for.

        Prompts of `crowding` tenants get a part of the budget only, and none after a prompt of another
        tenant: so a flood of prompts lengthens neither the step that others wait for nor theirs. Nobody
        starves: the tenant that is furthest behind is planned first, and falls behind while it gets nothing.
        """
        if sequence.id in self.sequences:
            return 0
        room = self.budget
        if self.crowding and not sequence.is_stream and sequence.request.tenant in self.crowding:
            room = min(room, 0 if self.favours else self.spare)
        return min(sequence.num_left, room)

    @property
    def held_back(self) -> Container[str]:
        """Tenants whose prompts have no room in this step, whatever the budget still is."""
        return self.crowding if self.favours or self.spare <= 0 else ()

    def slow_down(self, tenants: Container[str]) -> None:
        """These want more than their share, and one that does not is here."""
        self.crowding = tenants
        self.spare = max(1, self.budget // CROWDING_PART)

    def hits(self, sequence: Sequence) -> Hits:
        return self.tables.hits(sequence, unwritten=self.published)

    def start(self, sequence: Sequence, hits: Hits) -> None:
        """Give a sequence without blocks its hits; they are known to be there."""
        copy = self.tables.take_hits(sequence, hits)
        if copy is not None:
            self.plan.copies.append(copy)

    def add_streams(self, streams: list[Sequence], full: list[Sequence]) -> None:
        """Compute the newest token of each. There is room for them, with a new block for the `full` ones."""
        plan = self.plan
        for sequence in full:
            self.tables.grow(sequence, sequence.num_tokens)
        self._sample(streams)
        self._list(streams)
        self._feed(streams)
        plan.num_new.extend(itertools.repeat(1, len(streams)))
        self.num_decoding += len(streams)
        self.budget -= len(streams)
        for sequence in streams:
            if sequence.num_tokens % BLOCK_SIZE == 0:
                self._publish(sequence, sequence.num_computed, sequence.num_tokens)

    def add(self, sequence: Sequence, num_new: int) -> None:
        """Compute the sequence's next `num_new` tokens. The blocks for them are known to be there."""
        start, end = sequence.num_computed, sequence.num_computed + num_new
        self.tables.grow(sequence, end)
        if sequence.is_stream:
            self.num_decoding += 1
        elif self.crowding:
            crowds = sequence.request.tenant in self.crowding
            self.favours |= not crowds
            self.spare -= num_new * crowds
        if end == sequence.num_tokens:
            self._sample([sequence])
        if sequence.scores_prompt:
            self._score(sequence, start, end)
        self._list([sequence])
        self.plan.token_ids.extend(sequence.tokens[start:end])
        if end > len(sequence.tokens):
            self._feed([sequence])
        self.plan.num_new.append(num_new)
        self.budget -= num_new
        self._publish(sequence, start, end)

    def close(self) -> None:
        """The plan is made."""
        if self.in_flight is None:
            self.complete()
        else:
            self.plan.sampled.is_open = bool(self.restricted)

    def complete(self) -> None:
        """All tokens before the step's own are known: now for what depends on them.

        From here on its sequences are as after the step, but for the tokens that it samples.
        """
        for sequence in self.unnamed:
            if sequence.status is not Status.FINISHED:
                self._publish(sequence, sequence.num_computed, sequence.num_tokens)
        for sequence, index in self.restricted:
            if sequence.status is not Status.FINISHED:
                self._restrict(sequence, index)
        self.plan.sampled.is_open = False
        self._advance()

    def _advance(self) -> None:
        sequences = list(self.sequences.values())
        for sequence, num_new in zip(sequences, self.plan.num_new, strict=True):
            sequence.num_computed += num_new
        for row in self.plan.sampled.rows:
            sequences[row].num_unknown = 1
        if self.plan.scored is not None:
            for row, count in zip(self.plan.scored.rows, self.plan.scored.counts, strict=True):
                sequences[row].num_scored += count

    def entries(self) -> dict[int, int]:
        """Which entry of its sampled rows a sequence is, by id."""
        ids = self.plan.sequence_ids
        return {ids[row]: entry for entry, row in enumerate(self.plan.sampled.rows)}

    def undo(self) -> None:
        """The step failed: nobody may hit what it was to fill."""
        for block in self.published:
            self.tables.pool.retract(block)
        self.release_sources()

    def release_sources(self) -> None:
        for copy in self.plan.copies:
            self.tables.release_source(copy)

    def _list(self, sequences: list[Sequence]) -> None:
        """As the next rows, in lists: for hundreds of streams one call each would take most of a plan."""
        self.plan.sequence_ids += [sequence.id for sequence in sequences]
        self.plan.num_computed.extend([sequence.num_computed for sequence in sequences])
        self.plan.block_tables += [sequence.block_table for sequence in sequences]
        self.sequences.update({sequence.id: sequence for sequence in sequences})

    def _feed(self, streams: list[Sequence]) -> None:
        """The newest token of each, as the step before samples it where it is not known yet."""
        first = self.plan.num_tokens
        self.plan.token_ids.extend([sequence.tokens[-1] for sequence in streams])
        if self.in_flight is not None:
            carried = [(place, s.id) for place, s in enumerate(streams, first) if s.num_unknown]
            self.plan.carried.places.extend([place for place, _ in carried])
            self.plan.carried.entries.extend([self.in_flight[sequence_id] for _, sequence_id in carried])

    def _publish(self, sequence: Sequence, start: int, end: int) -> None:
        if end > len(sequence.tokens) and end % BLOCK_SIZE == 0:
            self.unnamed.append(sequence)
        for block in self.tables.publish(sequence, start, end):
            self.published[block] = None

    def _sample(self, sequences: list[Sequence]) -> None:
        """They are about to be listed as the next rows."""
        sampled, first_row = self.plan.sampled, len(self.plan.num_new)
        for index, sequence in enumerate(sequences, len(sampled.rows)):
            if sequence.request.rules or sequence.request.constraint is not None:
                self.restricted.append((sequence, index))
        sampled.rows.extend(range(first_row, first_row + len(sequences)))
        sampled.params += [sequence.request.params for sequence in sequences]
        sampled.seeds.extend([sequence.seed for sequence in sequences])
        sampled.positions.extend([len(sequence.tokens) + sequence.num_unknown for sequence in sequences])

    def _restrict(self, sequence: Sequence, index: int) -> None:
        """Entry `index` of the sampled rows may not be every token."""
        request, sampled = sequence.request, self.plan.sampled
        if request.rules:
            sampled.edits = sampled.edits or LogitEdits()
            for rule in request.rules:
                rule.add_to(sampled.edits, index, sequence.tokens)
        if request.constraint is not None:
            sampled.constrained.append(_constrained(sequence, request.constraint, index))

    def _score(self, sequence: Sequence, start: int, end: int) -> None:
        """Ask for the log-probabilities of prompt tokens that the sequence's tokens `start` to `end` tell.

        After a preemption some are known already.
        """
        prompt_ids = sequence.request.prompt_ids
        first, last = max(start, sequence.num_scored), min(end, len(prompt_ids) - 1)
        if first >= last:
            return
        scored = self.plan.scored = self.plan.scored or ScoredRows()
        scored.rows.append(len(self.plan.num_new))
        scored.starts.append(self.plan.num_tokens + first - start)
        scored.counts.append(last - first)
        scored.num_top.append(sequence.request.params.prompt_logprobs or 0)
        scored.targets.extend(prompt_ids[first + 1 : last + 1])


def _constrained(sequence: Sequence, constraint: Constraint, index: int) -> ConstrainedRow:
    request = sequence.request
    held_back = sequence.num_output_tokens < request.params.min_tokens
    ends = request.eos_token_ids.union(request.params.stop_token_ids) if held_back else frozenset[int]()
    return ConstrainedRow(index, request.id, constraint, sequence.tokens, len(request.prompt_ids), ends)
