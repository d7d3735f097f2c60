"""What changes the logits of a step before tokens are chosen: integers and floats from scheduler to runner.

`rows` in every part are entries of `SampledRows`. All arrays are flat, so each becomes a tensor by one copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class TokenMask:
    """A set of token ids, one bit each: bit i % 32 of the little-endian 32-bit word i // 32 is token i.

    xgrammar packs its masks the same way. `words` may end early: tokens beyond it are not in the set.
    """

    words: bytes

    @staticmethod
    def of(token_ids: Iterable[int]) -> TokenMask:
        ids = set(token_ids)
        bits = bytearray(WORD_BITS // 8 * (max(ids, default=0) // WORD_BITS + 1))
        for token in ids:
            bits[token // 8] |= 1 << token % 8
        return TokenMask(bytes(bits))

    def is_within(self, token_ids: Iterable[int]) -> bool:
        mine, others = (int.from_bytes(m.words, "little") for m in (self, TokenMask.of(token_ids)))
        return mine & ~others == 0


@dataclass(slots=True)
class Allowed:
    """Row `rows[i]` may only get tokens in `masks[i]`."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    masks: list[TokenMask] = field(default_factory=list)

    def add(self, row: int, mask: TokenMask) -> None:
        self.rows.append(row)
        self.masks.append(mask)


@dataclass(slots=True)
class Banned:
    """Row `rows[i]` must not get token `tokens[i]`."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))

    def add(self, row: int, tokens: array[int]) -> None:
        self.rows.extend(array("q", (row,)) * len(tokens))
        self.tokens.extend(tokens)


@dataclass(slots=True)
class Biased:
    """Row `rows[i]`'s logit of token `tokens[i]` grows by `values[i]`; no token comes twice for a row."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    values: array[float] = field(default_factory=lambda: array("f"))

    def add(self, row: int, tokens: array[int], values: array[float]) -> None:
        self.rows.extend(array("q", (row,)) * len(tokens))
        self.tokens.extend(tokens)
        self.values.extend(values)


@dataclass(slots=True)
class Penalised:
    """Row `rows[i]` has seen `tokens[starts[i]:starts[i + 1]]`, each once, and generated them `counts` times.

    A count of 0 is a token of the prompt only. This is also how the CUDA kernel `penalise` takes it.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    repetition: array[float] = field(default_factory=lambda: array("f"))
    presence: array[float] = field(default_factory=lambda: array("f"))
    frequency: array[float] = field(default_factory=lambda: array("f"))
    starts: array[int] = field(default_factory=lambda: array("q", (0,)))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    counts: array[int] = field(default_factory=lambda: array("i"))


@dataclass(slots=True)
class LogitEdits:
    """Applied in this order, which is vLLM's."""

    allowed: Allowed = field(default_factory=Allowed)
    banned: Banned = field(default_factory=Banned)
    biased: Biased = field(default_factory=Biased)
    penalised: Penalised = field(default_factory=Penalised)
