"""What passes between the scheduler and the runner: a plan of one step, and its result.

Rows are sequences. Everything is integers in `array`s, so the runner turns them into tensors with one
copy each, and the scheduler never needs torch.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from pagetide.request import SamplingParams, TokenLogprobs


@dataclass(slots=True)
class StepPlan:
    """B rows, T tokens in all. Row i computes `num_new[i]` tokens from position `num_computed[i]` on.

    `token_ids` holds the rows' new tokens one after the other (length T). `block_tables[i]` names the
    blocks that hold row i's KV up to `num_computed[i] + num_new[i]`; the runner reads it during this
    step only. `sampled` lists the rows whose last token is followed by a new one; `params`, `seeds`
    and `positions` (the new token's index in its sequence) run beside it.
    """

    sequence_ids: list[int] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("q"))
    num_new: array[int] = field(default_factory=lambda: array("i"))
    num_computed: array[int] = field(default_factory=lambda: array("i"))
    block_tables: list[array[int]] = field(default_factory=list)
    sampled: array[int] = field(default_factory=lambda: array("i"))
    params: list[SamplingParams] = field(default_factory=list)
    seeds: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token for each row in `StepPlan.sampled`, in that order.

    `logprobs` is None unless some row asked; rows that did not ask hold None.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None
