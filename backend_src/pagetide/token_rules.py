"""What a request's parameters do to its logits, step after step. Names and meanings are vLLM's.

A rule lives with its request: made by the adapter's thread, used by the engine thread from then on. It sees
nothing but the sequence's tokens, so chunks, prefix hits, preemptions and neighbours can't change it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagetide.logit_edits import LogitEdits, TokenMask


class TokenRule(Protocol):
    def add_to(self, edits: LogitEdits, row: int, tokens: array[int]) -> None:
        """Says what holds for the token after `tokens`, the whole sequence, of which row `row` is sampled."""


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """`allowed_token_ids`."""

    mask: TokenMask

    def add_to(self, edits: LogitEdits, row: int, tokens: array[int]) -> None:
        edits.allowed.add(row, self.mask)


class BadWords:
    """`bad_words` in tokens: the last of one is banned where the output ends with those before it."""

    def __init__(self, spellings: Iterable[tuple[int, ...]], num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._single = array("i")
        self._by_token_before: dict[int, list[tuple[array[int], int]]] = defaultdict(list)
        for *before, last in spellings:
            if before:
                self._by_token_before[before[-1]].append((array("i", before), last))
            else:
                self._single.append(last)

    def add_to(self, edits: LogitEdits, row: int, tokens: array[int]) -> None:
        edits.banned.add(row, self._single)
        num_output = len(tokens) - self._num_prompt
        for before, last in self._by_token_before.get(tokens[-1], ()):
            if len(before) <= num_output and tokens[-len(before) :] == before:
                edits.banned.add(row, array("i", (last,)))


@dataclass(frozen=True, slots=True)
class MinTokens:
    """`min_tokens`: what would stop a sequence of fewer than `length` tokens is banned."""

    stops: array[int]
    length: int

    def add_to(self, edits: LogitEdits, row: int, tokens: array[int]) -> None:
        if len(tokens) < self.length:
            edits.banned.add(row, self.stops)


class LogitBias:
    """`logit_bias`."""

    def __init__(self, pairs: Sequence[tuple[int, float]]) -> None:
        self._tokens = array("i", (token for token, _ in pairs))
        self._values = array("f", (value for _, value in pairs))

    def add_to(self, edits: LogitEdits, row: int, tokens: array[int]) -> None:
        edits.biased.add(row, self._tokens, self._values)


class Penalties:
    """`repetition_penalty`, `presence_penalty` and `frequency_penalty`.

    Each token that was seen is counted once and kept, so a step costs one copy of the distinct ones. Only
    the repetition penalty looks at the prompt.
    """

    def __init__(self, repetition: float, presence: float, frequency: float, prompt_ids: array[int]) -> None:
        self._factors = repetition, presence, frequency
        self._tokens = array("i", dict.fromkeys(prompt_ids) if repetition != 1 else ())
        self._counts = array("i", bytes(self._tokens.itemsize * len(self._tokens)))
        self._places = {token: place for place, token in enumerate(self._tokens)}
        self._num_counted = len(prompt_ids)

    def add_to(self, edits: LogitEdits, row: int, tokens: array[int]) -> None:
        self._count(tokens)
        penalised = edits.penalised
        repetition, presence, frequency = self._factors
        penalised.rows.append(row)
        penalised.repetition.append(repetition)
        penalised.presence.append(presence)
        penalised.frequency.append(frequency)
        penalised.tokens.extend(self._tokens)
        penalised.counts.extend(self._counts)
        penalised.starts.append(len(penalised.tokens))

    def _count(self, tokens: array[int]) -> None:
        """Take in the output since last time."""
        for token in tokens[self._num_counted :]:
            place = self._places.setdefault(token, len(self._tokens))
            if place == len(self._tokens):
                self._tokens.append(token)
                self._counts.append(0)
            self._counts[place] += 1
        self._num_counted = len(tokens)
