"""What the scheduler hands through to the runner for a sequence that must follow a grammar.

Neither looks inside: a constraint belongs to the runner's mask thread (pagetide.grammar_masks).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Protocol


class Constraint(Protocol):
    """One sequence's place in its grammar. It follows the tokens it is shown, so it needs no messages:
    a preempted sequence keeps its tokens, and the constraint goes on where it was.
    """

    def fill(self, row: ConstrainedRow, bitmask: Any, at: int) -> None:
        """Write into `bitmask[at]` (int32, one bit a token) what may come after the row's tokens.

        Raises an exception when that is nothing, which ends this request alone.
        """


@dataclass(frozen=True, slots=True)
class ConstrainedRow:
    """Entry `index` of the step's sampled rows.

    `tokens` is the sequence's own array, read during this step only; its output begins at `start`.
    `held_back` are the end tokens that `min_tokens` bars, unless the grammar leaves no other.
    """

    index: int
    request_id: int
    constraint: Constraint
    tokens: array[int]
    start: int
    held_back: frozenset[int]
