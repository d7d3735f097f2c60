"""What parameters mean in tokens: how `bad_words` may be spelled, and whether a token is left to choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from pagetide.parse_values import InvalidArgumentError, shown
from pagetide.request import SamplingParams

Spelling = tuple[int, ...]


class Encoder(Protocol):
    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...


def spell(params: SamplingParams, encoder: Encoder, vocab_size: int) -> SamplingParams:
    """`params` with the spellings of its bad words, which are vLLM's.

    Raises InvalidArgumentError for a word without a token, or with one that the model can't generate.
    """
    found = [each for index, word in enumerate(params.bad_words) for each in _spellings(index, word, encoder)]
    unknown = max((token for spelling in found for token in spelling), default=0)
    if unknown >= vocab_size:
        raise InvalidArgumentError(f"bad_words have token {unknown}; the model's last is {vocab_size - 1}")
    return replace(params, bad_word_ids=tuple(dict.fromkeys(found)))


def check_choice(params: SamplingParams, ends: frozenset[int]) -> None:
    """Raises InvalidArgumentError if no first token could be chosen; `ends` end a sequence."""
    banned = {spelling[0] for spelling in params.bad_word_ids if len(spelling) == 1}
    if params.min_tokens > 0:
        banned.update(ends, params.stop_token_ids)
    if params.allowed_token_ids is not None and params.allowed_token_ids.is_within(banned):
        raise InvalidArgumentError(
            "allowed_token_ids has no token that bad_words and min_tokens allow; it must have at least one"
        )


def _spellings(index: int, word: str, encoder: Encoder) -> Iterator[Spelling]:
    """At the start of a text, and behind a space where that changes the first token and not their number."""
    bare = tuple(encoder.encode(word.lstrip(), add_special_tokens=False))
    if not bare:
        raise InvalidArgumentError(f"bad_words[{index}] is {shown(word)}; it must have at least one token")
    yield bare
    spaced = tuple(encoder.encode(f" {word.lstrip()}", add_special_tokens=False))
    if len(spaced) == len(bare) and spaced[0] != bare[0]:
        yield spaced
