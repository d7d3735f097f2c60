"""Keeps outputs valid UTF-8 where the grammar compiler is lax.

xgrammar 0.2.9 lets any continuation byte follow any lead byte. After four of them UTF-8 has only some
(RFC 3629, section 4): the others would write surrogates, or a character in more bytes than it needs.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

SECOND_BYTES = {
    0xE0: range(0xA0, 0xC0),
    0xED: range(0x80, 0xA0),
    0xF0: range(0x90, 0xC0),
    0xF4: range(0x80, 0x90),
}
_MOST_CONTINUATION = 3


def is_part_of_text(token: bytes) -> bool:
    """Whether some valid UTF-8 has these bytes in a row."""
    start = 0
    while start < min(len(token), _MOST_CONTINUATION) and 0x80 <= token[start] < 0xC0:
        start += 1
    try:
        codecs.getincrementaldecoder("utf-8")().decode(token[start:])
    except UnicodeDecodeError:
        return False
    # Python waits for the third byte before it says no to a surrogate's second.
    return token[-2:-1] != b"\xed" or token[-1] in SECOND_BYTES[0xED]


class Utf8:
    """What may follow a token whose last byte is one of the four. Immutable."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._leads = {i: token[-1] for i, token in enumerate(tokens) if token and token[-1] in SECOND_BYTES}
        self._allowed = {lead: _starting_with(tokens, seconds) for lead, seconds in SECOND_BYTES.items()}

    def after(self, token: int) -> Words | None:
        """The words of a bitmask, or None if the token allows all that the grammar does."""
        lead = self._leads.get(token)
        return None if lead is None else self._allowed[lead]


def _starting_with(tokens: Sequence[bytes], first_bytes: range) -> Words:
    bits = np.zeros(-(-len(tokens) // 32) * 32, np.uint8)
    bits[: len(tokens)] = [bool(token) and token[0] in first_bytes for token in tokens]
    return np.packbits(bits, bitorder="little").view(np.uint32)
