"""What passes between the scheduler and the runner: a plan of one step, and its result.

Rows are sequences. Everything is integers in `array`s, so the runner turns them into tensors with one
copy each, and the scheduler never needs torch.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from pagetide.constraint import ConstrainedRow
from pagetide.logit_edits import LogitEdits
from pagetide.request import SamplingParams, TokenLogprobs

NO_TOKEN = -1
"""In place of a token where what the request allows leaves none."""


@dataclass(slots=True)
class SampledRows:
    """The rows whose last planned token is followed by a new one; all lists run side by side.

    `rows` index the plan's rows. `positions` are the new tokens' indices in their sequences: with
    `seeds` they alone decide the random draw. `edits` is None where no row's logits are changed.
    `constrained` are the rows that follow a grammar. While it `is_open`, both are still to come: they depend
    on tokens of the step before, which are not known yet.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    params: list[SamplingParams] = field(default_factory=list)
    seeds: array[int] = field(default_factory=lambda: array("Q"))
    positions: array[int] = field(default_factory=lambda: array("Q"))
    edits: LogitEdits | None = None
    constrained: list[ConstrainedRow] = field(default_factory=list)
    is_open: bool = False


@dataclass(slots=True)
class CarriedTokens:
    """Token `places[i]` of the plan is the one that entry `entries[i]` of the step before it samples.

    The two steps may be in flight together: then only the device knows it.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    entries: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class ScoredRows:
    """Prompt tokens whose log-probabilities are asked for; all lists but `targets` run side by side.

    Row `rows[i]` of the plan wants those of `counts[i]` tokens, told by the logits after the plan's tokens
    from `starts[i]` on, with `num_top[i]` alternatives each. `targets` holds the tokens of all rows, flat.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    num_top: array[int] = field(default_factory=lambda: array("q"))
    targets: array[int] = field(default_factory=lambda: array("i"))


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The KV of block `source` goes into block `target`, in every layer."""

    source: int
    target: int


@dataclass(slots=True)
class StepPlan:
    """B rows, T tokens in all. Row i computes `num_new[i]` tokens from position `num_computed[i]` on.

    `token_ids` holds the rows' new tokens one after the other (length T). `block_tables[i]` names the
    blocks that hold row i's KV up to `num_computed[i] + num_new[i]`; the runner reads it while it launches
    this step only. What `token_ids` holds in the places of `carried` tokens means nothing. A row may read
    blocks that an earlier row of the same step writes: within each layer all KV is written before any is
    read. `copies` come before everything else; no block is the target of two,
    or source and target at once. `scored` is None where nobody asks for log-probabilities of a prompt.
    """

    sequence_ids: list[int] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    num_new: array[int] = field(default_factory=lambda: array("q"))
    num_computed: array[int] = field(default_factory=lambda: array("q"))
    block_tables: list[array[int]] = field(default_factory=list)
    sampled: SampledRows = field(default_factory=SampledRows)
    scored: ScoredRows | None = None
    copies: list[BlockCopy] = field(default_factory=list)
    carried: CarriedTokens = field(default_factory=CarriedTokens)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token, or NO_TOKEN, for each entry of `StepPlan.sampled`, in that order.

    `logprobs[i]` is None unless row i asked for log-probabilities. `scores[i]` belongs to entry i of
    `StepPlan.scored`.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    scores: list[tuple[TokenLogprobs, ...]] = field(default_factory=list)
