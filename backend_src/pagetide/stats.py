"""What the engine tells its listener after each step: plain numbers, so metrics never touch engine state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Reason(str, Enum):
    """Why a sequence was preempted."""

    BLOCKS = "blocks"
    """Running sequences outgrew the pool."""

    SHARE = "share"
    """Its tenant had more than its share, and another one waited."""


@dataclass(slots=True)
class Tally:
    """Counts of one step, taken by the engine with `Scheduler.take_tally`."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: Counter[Reason] = field(default_factory=Counter)
    num_prompt_tokens: int = 0
    num_generated: int = 0


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step. Counts without a unit are of this step alone; blocks and requests are as it left them.

    `num_tokens` were computed and `num_generated` came out; `num_prompt_tokens` are the prompts (prefix
    hits included) that got their first token. `prefix_queries` and `prefix_hits` are the tokens of the
    requests admitted in this step: looked up, and found. `preemptions` counts them by reason. The
    last `num_failed_in_a_row` steps failed.
    """

    num_running: int
    num_waiting: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    num_tokens: int
    num_prompt_tokens: int
    num_generated: int
    prefix_queries: int
    prefix_hits: int
    step_s: float
    preemptions: Mapping[Reason, int] = field(default_factory=dict)
    num_failed_in_a_row: int = 0

    @property
    def num_preemptions(self) -> int:
        return sum(self.preemptions.values())
