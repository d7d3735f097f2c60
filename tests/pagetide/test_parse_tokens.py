from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pagetide import tokenizer
from pagetide.logit_edits import TokenMask
from pagetide.parse_tokens import check_choice, spell
from pagetide.parse_values import InvalidArgumentError
from pagetide.request import SamplingParams


class Words:
    """A tokenizer that knows a few texts."""

    def __init__(self, known: Mapping[str, list[int]]) -> None:
        self._known = known

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return self._known[text]


def spellings(words: list[str], known: Mapping[str, list[int]]) -> tuple[tuple[int, ...], ...]:
    return spell(SamplingParams(bad_words=tuple(words)), Words(known), vocab_size=50).bad_word_ids


def test_a_word_is_spelled_alone_and_behind_a_space() -> None:
    known = {"no": [1], " no": [2], "never": [3, 4], " never": [5, 4]}
    assert spellings(["no", " never"], known) == ((1,), (2,), (3, 4), (5, 4))


def test_a_space_that_is_a_token_of_its_own_adds_no_spelling() -> None:
    """Then the word itself follows it, and is banned as it is."""
    assert spellings(["no"], {"no": [1], " no": [9, 1]}) == ((1,),)
    assert spellings(["no"], {"no": [1], " no": [1]}) == ((1,),)


def test_a_word_without_a_token_or_with_one_beyond_the_model_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"bad_words\[1\] is ' '; it must have at least one token"):
        spellings(["no", " "], {"no": [1], " no": [2], "": []})
    with pytest.raises(InvalidArgumentError, match="bad_words have token 50; the model's last is 49"):
        spellings(["no"], {"no": [50], " no": [2]})


def test_the_default_models_words_have_both_spellings(smollm2_path: Path) -> None:
    text = tokenizer.load(smollm2_path)
    found = spell(SamplingParams(bad_words=(" the",)), text, text.vocab_size).bad_word_ids
    assert [text.decode(each) for each in found] == ["the", " the"]
    assert [len(each) for each in found] == [1, 1]


ALLOWED = SamplingParams(allowed_token_ids=TokenMask.of([4, 5, 70]))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(bad_word_ids=((1,), (2, 3)), min_tokens=3),
        ALLOWED,
        replace(ALLOWED, bad_word_ids=((4,), (5,), (70, 70))),
        replace(ALLOWED, bad_word_ids=((4,), (5,)), stop_token_ids=(70,)),
        replace(ALLOWED, min_tokens=1, stop_token_ids=(4,)),
    ],
)
def test_a_request_that_leaves_a_first_token_is_taken(params: SamplingParams) -> None:
    check_choice(params, frozenset({5}))


@pytest.mark.parametrize(
    "params",
    [
        replace(ALLOWED, bad_word_ids=((4,), (5,), (70,))),
        replace(ALLOWED, min_tokens=1, stop_token_ids=(4, 70)),
        replace(ALLOWED, bad_word_ids=((70,),), min_tokens=1, stop_token_ids=(4,)),
    ],
)
def test_a_request_that_leaves_no_first_token_is_refused(params: SamplingParams) -> None:
    with pytest.raises(InvalidArgumentError, match="allowed_token_ids has no token that bad_words and min"):
        check_choice(params, frozenset({5}))
