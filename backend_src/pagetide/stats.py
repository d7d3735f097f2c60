"""What the engine tells its listener after each step: plain numbers, so metrics never touch engine state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step. Counts without a unit are of this step alone; blocks and requests are as it left them.

    `num_tokens` were computed and `num_generated` came out; `num_prompt_tokens` are the prompts (prefix
    hits included) that got their first token. `prefix_queries` and `prefix_hits` are the tokens of the
    requests admitted in this step: looked up, and found.
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
    num_preemptions: int
    step_s: float
