"""Words to tokens: how each of `bad_words` may be spelled, as vLLM spells them."""

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
    """`params` with the spellings of its bad words.

    Raises InvalidArgumentError for a word without a token, or with one that the model can't generate.
    """
    found = [each for index, word in enumerate(params.bad_words) for each in _spellings(index, word, encoder)]
    unknown = max((token for spelling in found for token in spelling), default=0)
    if unknown >= vocab_size:
        raise InvalidArgumentError(f"bad_words have token {unknown}; the model's last is {vocab_size - 1}")
    return replace(params, bad_word_ids=tuple(dict.fromkeys(found)))


def _spellings(index: int, word: str, encoder: Encoder) -> Iterator[Spelling]:
    """At the start of a text, and behind a space where that changes the first token and not their number."""
    bare = tuple(encoder.encode(word.lstrip(), add_special_tokens=False))
    if not bare:
        raise InvalidArgumentError(f"bad_words[{index}] is {shown(word)}; it must have at least one token")
    yield bare
    spaced = tuple(encoder.encode(f" {word.lstrip()}", add_special_tokens=False))
    if len(spaced) == len(bare) and spaced[0] != bare[0]:
        yield spaced
