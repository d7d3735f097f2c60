"""What one scheduler may do: numbers that never change while it lives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_model_len` counts prompt and output tokens of one sequence.

    A sequence is preempted at most `max_preemptions` times; then it starts only when its longest length
    fits, and stays. One step of priority is worth `ageing_s` seconds of waiting. `target_itl_s` is what
    running streams should wait between tokens at most. `offline` wants throughput only: whole budgets,
    and no preemption for a tenant's share.
    """

    max_step_tokens: int
    max_running: int
    max_model_len: int
    max_preemptions: int = 3
    ageing_s: float = 10.0
    target_itl_s: float | None = None
    offline: bool = False


class AdmissionError(ValueError):
    """The request can never run here; the message names the field, the value and the limit."""


def check_fits(num_prompt_tokens: int, max_tokens: int, longest: int) -> None:
    """Raises AdmissionError unless the request can run alone where `longest` tokens are served."""
    if num_prompt_tokens == 0:
        raise AdmissionError("the prompt has 0 tokens; it needs at least 1")
    if num_prompt_tokens + max_tokens > longest:
        raise AdmissionError(
            f"prompt ({num_prompt_tokens} tokens) + max_tokens ({max_tokens}) is "
            f"{num_prompt_tokens + max_tokens}; this model serves at most {longest}"
        )
