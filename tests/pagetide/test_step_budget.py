from __future__ import annotations

import pytest

from pagetide.step_budget import MIN_CHUNK, StepBudget

STEP_S, TOKEN_S = 0.010, 0.0002


def run(budget: StepBudget, num_decoding: int, num_steps: int, token_s: float = TOKEN_S) -> float:
    """Steps full of prompt chunks beside the streams; the last one's time."""
    step_s = 0.0
    for _ in range(num_steps):
        chunk = budget.tokens(num_decoding) - num_decoding
        step_s = STEP_S + token_s * chunk
        budget.observe(num_decoding + chunk, num_decoding, step_s)
    return step_s


def warm(target_s: float | None) -> StepBudget:
    budget = StepBudget(2048, target_s)
    budget.observe(2048, 0, STEP_S + TOKEN_S * 2048)
    for _ in range(20):
        budget.observe(8, 8, STEP_S)
    return budget


@pytest.mark.parametrize("target_s", [0.02, 0.05, 0.2])
def test_chunks_fill_the_time_that_streams_leave(target_s: float) -> None:
    assert run(warm(target_s), num_decoding=8, num_steps=20) == pytest.approx(target_s, rel=0.05)


def test_chunks_shrink_as_tokens_get_slower() -> None:
    """Long contexts make each token of a chunk slower: the target holds nevertheless."""
    budget = warm(0.05)
    run(budget, 8, 20)
    assert run(budget, 8, 20, token_s=10 * TOKEN_S) == pytest.approx(0.05, rel=0.25)


def test_without_streams_or_a_target_the_whole_budget_is_used() -> None:
    assert warm(0.02).tokens(num_decoding=0) == 2048
    assert warm(None).tokens(num_decoding=8) == 2048


def test_prompts_get_on_even_when_the_target_is_missed() -> None:
    assert warm(0.001).tokens(num_decoding=8) == 8 + MIN_CHUNK
