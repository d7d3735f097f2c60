"""What the load test sends: lengths as asked, the same for the same seed, prefixes that really are shared."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from loadtest.arrivals import poisson
from loadtest.workloads import (
    LENGTHS,
    WORDS,
    Conversation,
    Lengths,
    LogNormal,
    Prompt,
    cancelled,
    completion,
    words,
)


@pytest.mark.parametrize("name", sorted(LENGTHS))
def test_lengths_stay_within_their_caps_and_around_their_median(name: str) -> None:
    capped = LENGTHS[name].capped(max_prompt=2048, max_output=128)
    prompts = [completion(name, capped, Random(seed)) for seed in range(2000)]
    assert all(len(prompt.text.split()) <= 2048 for prompt in prompts)
    assert all(1 <= prompt.max_tokens <= 128 for prompt in prompts)
    drawn = median(len(prompt.text.split()) for prompt in prompts)
    assert 0.9 < drawn / LENGTHS[name].prompt.median < 1.1


def test_the_same_seed_gives_the_same_requests() -> None:
    first, again, other = (completion("alpaca", LENGTHS["alpaca"], Random(seed)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_words_are_distinct_and_counted() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert len(words(Random(0), 500).split()) == 500


def test_each_turn_of_a_chat_begins_with_the_turn_before() -> None:
    short = Lengths(LogNormal(8, 0.5, 4, 16), LogNormal(8, 0.5, 4, 16))
    chat = Conversation(Random(1), system_tokens=32, lengths=short, max_prompt=200)
    before, count = "", 0
    for prompt in chat.turns():
        assert prompt.text.startswith(before)
        assert len(prompt.text.split()) <= 200
        before, count = f"{prompt.text} the reply", count + 1
        chat.hear(" the reply")
    assert count > 3


def test_all_chats_share_their_instructions() -> None:
    first, second = (
        next(Conversation(Random(seed), 64, LENGTHS["alpaca"], 512).turns()).text for seed in (1, 2)
    )
    assert first.split("\n")[0] == second.split("\n")[0]
    assert first != second


def test_cancels_come_before_the_first_token_and_along_the_way() -> None:
    prompts = [cancelled(Prompt("alpaca", "hi", 32), Random(seed)) for seed in range(400)]
    after = [prompt.cancel_after for prompt in prompts]
    assert 60 < after.count(0) < 140
    assert all(each is not None and each < 32 for each in after)


def test_poisson_arrivals_have_their_rate_and_no_rhythm() -> None:
    schedule = poisson(20.0, Random(3), lambda: Prompt("alpaca", "hi", 1))
    times = [next(schedule)[0] for _ in range(4000)]
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.05)
    # An exponential's spread is its mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)


def test_a_rate_of_zero_is_refused_with_the_value() -> None:
    with pytest.raises(ValueError, match="rate is 0"):
        next(poisson(0, Random(0), lambda: Prompt("alpaca", "hi", 1)))
